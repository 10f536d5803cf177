"""Families' rules on small shapes whose parts differ, and configs that no rule fits.

fixtures/plan/family_sums.json: shapes drawn at random, biases and norms among them, and the
elements that the family's published module makes of them (balancing biases of routers included).
"""

import json
import random
from pathlib import Path

import pytest

from braid.plan.basis import Basis
from braid.plan.config import from_config
from braid.plan.wrong import PlanError

FILE = Path(__file__).parent.parent / "fixtures" / "plan" / "family_sums.json"
ROWS = json.loads(FILE.read_text(encoding="utf-8"))
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 1000,
}  # fmt: skip


def model(kind, **changes):
    return from_config({"model_type": kind, **SMALL, **changes}, "m", "a test")


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{i}-{row['config']['model_type']}" for i, row in enumerate(ROWS)]
)
def test_a_family_s_sum(row):
    found = from_config(row["config"], "m", "a test")
    assert found.parameters == row["parameters"]
    assert found.basis is Basis.EXACT


def test_an_unknown_family_is_assumed_to_be_llama_s_kin():
    found = model("newcomer")
    assert found.parameters == model("llama").parameters
    assert found.basis is Basis.ASSUMED
    assert "model_type 'newcomer' is no family whose sum braid has tested" in found.warnings[0]
    assert found.counted(found.parameters).basis is Basis.ASSUMED


@pytest.mark.parametrize(("activation", "matrices"), [("silu", 3), ("relu2", 2), (None, 3)])
def test_an_unknown_family_s_gate_by_its_activation(activation, matrices):
    assert model("newcomer", hidden_act=activation).stack[0].rest == matrices * 64 * 96 + 128


def test_a_config_without_a_family_is_assumed_too():
    found = from_config(SMALL, "m", "a test")
    assert found.basis is Basis.ASSUMED
    assert found.warnings[0].startswith("a config without model_type is no family")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mamba_d_state", 16), ("linear_num_key_heads", 4), ("attn_layer_period", 8),
        ("full_attention_interval", 4), ("cross_attention_layers", [3, 8]), ("encoder_layers", 6),
        ("is_encoder_decoder", True), ("hybrid_override_pattern", "M-*-"), ("ssm_cfg", {"a": 1}),
        ("num_hidden_groups", 1), ("embedding_size", 128), ("type_vocab_size", 2),
        ("num_kv_shared_layers", 15), ("altup_num_inputs", 4), ("zero_expert_num", 256),
        ("block_configs", [{}]), ("index_topk", 2048), ("conv_L_cache", 3), ("lru_width", 8),
        ("speech_lora", {"r": 320}), ("relative_attention", True),
        ("num_key_value_heads_per_layer", [4, 4]), ("global_attn_every_n_layers", 3),
        ("keep_window_size", 2048), ("moe_config", {"moe_num_experts": 32}), ("kv_channels", 128),
        ("residual_moe", True), ("parallel_attn_mlp_res", True), ("share_q_dim", 2048),
        ("moe_layers_enum", "4,5"), ("num_attention_groups", 1), ("num_layers_per_stack", 16),
        ("per_layer_config", {"5": {"head_dim": 512}}), ("dim_ff", 10240), ("v_head_dim", 4),
        ("ff_intermediate_size", 96), ("intermediate_multiple_size", 4),
        ("shared_input_output_embedding", True), ("moe_latent_size", 16),
    ],
)  # fmt: skip
def test_an_unknown_family_with_other_layers_is_refused_by_the_field_s_name(field, value):
    with pytest.raises(PlanError, match=f"m: model_type 'newcomer' has {field}, and braid has no"):
        model("newcomer", **{field: value})


def test_a_mixture_that_an_unknown_family_turns_off_is_refused():
    """Doge's files have a number of experts that none of its layers has."""
    with pytest.raises(PlanError, match="'newcomer' has is_moe, and braid has no rule"):
        model("newcomer", is_moe=False, num_experts=16384, num_experts_per_tok=64)


@pytest.mark.parametrize("kind", ["git", "beam", "yuan", "rwkv6", "mamba3"])
def test_a_family_known_to_be_another_is_refused_by_its_name(kind):
    with pytest.raises(PlanError, match=f"model_type '{kind}': braid has no rule for its layers"):
        model(kind)


def test_a_gated_mlp_s_width_is_not_guessed():
    """Phi-3-small's was taken for four times the hidden size; only older families have that."""
    config = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    with pytest.raises(PlanError, match="has no intermediate_size"):
        from_config({"model_type": "newcomer", **config}, "m", "")
    found = from_config({"model_type": "gptx", **config}, "m", "")
    assert found.parameters == model("gptx", intermediate_size=256).parameters


def test_only_experts_need_no_other_width():
    config = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    config |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    found = from_config({"model_type": "newcomer", **config}, "m", "")
    assert found.expert_parameters == 3 * 64 * 24


@pytest.mark.parametrize("name", [
    "LlamaForSequenceClassification", "LlamaModel", "LlamaForTokenClassification",
    "LlamaForRewardModel",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["llama", "newcomer"])
def test_a_class_without_an_output_matrix_has_none(kind, name):
    found = model(kind, architectures=[name])
    assert model(kind).parameters - found.parameters == 64 * 1000
    assert f"{name} has no matrix for the output; its task's head is not counted" in found.notes
    assert model(kind, tie_word_embeddings=True).parameters == found.parameters


@pytest.mark.parametrize("names", [
    ["LlamaForCausalLM"], ["GPT2LMHeadModel"], ["QWenLMHeadModel"], ["ChatGLMModel"], [], None,
])  # fmt: skip
def test_other_classes_have_theirs(names):
    found = model("llama", architectures=names)
    assert (found.parameters, found.notes) == (model("llama").parameters, ())


def test_no_output_leaves_no_bias_of_it():
    whole, half = model("gptj"), model("gptj", architectures=["GPTJModel"])
    assert whole.parameters - half.parameters == 64 * 1000 + 1000


@pytest.mark.parametrize(("name", "matrices"), [
    ("InternVLChatModel", 2), ("XForConditionalGeneration", 2), ("XForSequenceClassification", 1),
])  # fmt: skip
def test_the_class_outside_tells_a_task_alone(name, matrices):
    """What also sees is often named so that its decoder's output is not told."""
    text = {"model_type": "llama", **SMALL}
    found = from_config({"llm_config": text, "architectures": [name]}, "m", "")
    assert found.end_parameters == matrices * 64 * 1000 + 64


def test_layers_that_draft_are_refused():
    with pytest.raises(PlanError, match=r"architectures is \['LlamaForCausalLMEagle3'\]"):
        model("llama", architectures=["LlamaForCausalLMEagle3"])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_layers_that_look_at_an_encoder_are_refused_in_every_family(kind):
    changes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "type_vocab_size": 2,
               "max_position_embeddings": 128}  # fmt: skip
    assert model(kind, **changes, add_cross_attention=False).parameters
    with pytest.raises(PlanError, match="add_cross_attention is True"):
        model(kind, **changes, add_cross_attention=True)


def test_other_heads_of_gpt2_s_older_form_are_refused():
    with pytest.raises(PlanError, match="attention_head_type is 'warped'"):
        model("gpt2", n_embd=64, n_layer=2, n_head=4, attention_head_type="warped")


@pytest.mark.parametrize(
    "kind",
    ["deberta-v2", "modernbert", "electra", "xlnet", "esm", "clip_text_model", "siglip_text_model"],
)
def test_an_encoder_without_a_rule_has_no_guessed_cache(kind):
    with pytest.raises(PlanError, match="braid has no rule for this encoder"):
        model(kind)


@pytest.mark.parametrize("value", [None, 0, False, [], {}])
def test_such_a_field_that_is_off_does_not_matter(value):
    assert model("newcomer", ssm_cfg=value).parameters == model("llama").parameters


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("llama", {"num_attention_heads": 9, "num_key_value_heads": 9},
         "no head_dim, and hidden_size 64 does not divide over 9 heads"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: asked for a divisor of 8"),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads: asked for a whole number"),
        ("llama", {"attention_bias": "yes"}, "attention_bias: asked for true or false"),
        ("llama", {"num_hidden_layers": 10**6}, "num_hidden_layers: asked for at most 10,000"),
        ("llama", {"layer_types": ["linear_attention"] * 4}, "layer 0 has no attention"),
        ("gpt_oss", {"layer_types": ["warp_attention"] * 4},
         "layer_types is .*no rule for layers of kind 'warp_attention'"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3},
         "layer_types: 3 entries for 4 layers"),
        ("qwen3_next", {"layer_types": "full"}, "layer_types: asked for a list"),
        ("mixtral", {"num_local_experts": 4}, "has no num_experts_per_tok"),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 5},
         "num_experts_per_tok: asked for at most 4 experts"),
        ("nemotron_h", {"hybrid_override_pattern": "M-"}, "asked for a letter for each layer"),
        ("nemotron_h", {"hybrid_override_pattern": "*X-*"}, "'X' is no kind of layer"),
        ("mpt", {"d_model": 64, "n_layers": 2, "n_heads": 4, "no_bias": False}, "no_bias is False"),
        ("mllama_text_model", {"cross_attention_layers": [1]}, "cross_attention_layers is"),
        ("mistral", {"layer_types": ["sliding_attention"] * 4}, "has no sliding_window"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_go_together(kind, changes, said):
    with pytest.raises(PlanError, match=said) as caught:
        model(kind, **changes)
    assert "\n" not in str(caught.value)


def test_what_sees_is_said_to_be_left_out():
    text = {"model_type": "llama", **SMALL}
    seen = from_config({"model_type": "x", "text_config": text, "vision_config": {"a": 1}}, "m", "")
    assert seen.parameters == model("llama").parameters
    assert "what sees or hears is not counted" in seen.notes[0]


def test_a_text_config_holds_what_differs_from_its_family_s_default():
    """The published file of a small Gemma 3 says neither its heads nor its vocabulary."""
    text = {"hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 96}
    found = from_config({"model_type": "gemma3", "text_config": text}, "m", "")
    attention = 64 * 256 * (8 + 4 + 4) + 8 * 256 * 64 + 2 * 256
    layer = attention + 3 * 64 * 96 + 4 * 64
    assert found.parameters == 6 * layer + 262208 * 64 + 64
    with pytest.raises(PlanError, match=r"json has no num_attention_heads, vocab_size"):
        from_config({"model_type": "gemma3_text", **text}, "m", "")


@pytest.mark.parametrize(("outer", "inner", "matrices"), [
    (True, None, 1), (False, None, 2), (True, False, 2), (False, True, 1), (None, None, 2),
])  # fmt: skip
def test_whose_word_counts_about_shared_ends(outer, inner, matrices):
    text = {"model_type": "llama", **SMALL, "tie_word_embeddings": inner}
    found = from_config({"text_config": text, "tie_word_embeddings": outer}, "m", "")
    assert found.end_parameters == matrices * 64 * 1000 + 64


def test_falcon_s_shared_matrix_counts_once_and_a_note_says_so():
    config = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    one, two = (from_config({**config, "tie_word_embeddings": t}, "m", "") for t in (None, False))
    assert two.parameters - one.parameters == 64 * 100
    assert "store it twice" in one.notes[0]


def test_layers_that_predict_further_tokens_are_named():
    assert "1 more layer(s)" in model("llama", num_nextn_predict_layers=1).notes[0]


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_a_family_s_default_does_not_hide_another_name_of_the_same(name):
    """A default number of experts beside the config's own under another name was taken for it."""
    shapes = {**SMALL, "moe_intermediate_size": 24, "num_experts_per_tok": 2, name: 4}
    text = {"model_type": "qwen3_vl_moe_text", **shapes}
    found = from_config({"model_type": "qwen3_vl_moe", "text_config": text}, "m", "")
    assert found.experts.count == 4
    assert found.parameters == model("qwen3_moe", **shapes).parameters


def test_two_norms_more_of_glm_s_that_sees():
    assert model("glm4v_text").parameters - model("qwen2").parameters == 4 * 2 * 64


WEIRD = [None, [], {}, "x", "", -1, 0, 1.5, True, [[]], [None] * 4, 10**400, 1 << 40, 3, ["x"] * 99]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_config_is_a_model_or_one_line(seed):
    rng = random.Random(seed)
    for row in rng.sample(ROWS, 30):
        config = dict(row["config"])
        for field in rng.sample(sorted(config), 2):
            config[field] = rng.choice(WEIRD)
        config[rng.choice(["layer_types", "moe_layers", "num_experts", "use_sliding_window",
                           "sliding_window_pattern", "mlp_layer_types", "moe_layer_freq",
                           "hybrid_override_pattern", "index_topk", "attn_config"])] = (
            rng.choice(WEIRD)
        )  # fmt: skip
        found, said = _outcome(config)
        assert "\n" not in said
        assert len(said) < 300
        assert found is None or 0 < found.active_parameters <= found.parameters


def _outcome(config):
    """A model, or what is said instead."""
    try:
        return from_config(config, "m", "a test"), ""
    except PlanError as error:
        return None, str(error)

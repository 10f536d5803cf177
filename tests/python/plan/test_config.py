"""A config.json as a model: parameters counted matrix by matrix, and fields that cannot be."""

import json

import pytest

from braid.plan import models, work
from braid.plan.basis import Basis, Quantity
from braid.plan.config import from_config
from braid.plan.wrong import PlanError

DENSE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 1000,
}  # fmt: skip
SPARSE = {
    **DENSE, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    **SPARSE, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip


def model(config, **changes):
    return from_config({**config, **changes}, "m", "test")


def size(*shapes):
    """Elements of matrices."""
    return sum(rows * columns for rows, columns in shapes)


def test_a_dense_layer_by_its_matrices():
    """q 64x64, k and v 64x16, o 64x64; gate, up, down 64x96; two norms of 64."""
    layer = size((64, 64), (64, 16), (64, 16), (64, 64), (64, 96), (64, 96), (96, 64)) + 128
    found = model(DENSE)
    assert found.layer_parameters == layer
    assert found.parameters == 3 * layer + size((1000, 64), (64, 1000)) + 64
    assert found.active_parameters == found.parameters
    assert (found.dense_layers, found.sparse_layers) == (3, 0)
    assert found.cache_elements_per_token == 3 * 2 * 2 * 8


def test_one_matrix_for_both_ends():
    both, one = model(DENSE), model(DENSE, tie_word_embeddings=True)
    assert both.parameters - one.parameters == 64_000


def test_heads_of_their_own_size():
    wide = model(DENSE, head_dim=16)
    assert wide.stack[0].mixer.parameters == size((64, 128), (64, 32), (64, 32), (128, 64))
    assert wide.cache_elements_per_token == 3 * 2 * 2 * 16


def test_without_groups_every_head_has_its_keys():
    config = {k: v for k, v in DENSE.items() if k != "num_key_value_heads"}
    assert model(config).stack[0].mixer.parameters == size((64, 64)) * 4


@pytest.mark.parametrize(("kind", "matrices"), [("llama", 3), ("arcee", 2), ("gptq", 2), ("", 3)])
def test_gates_by_type(kind, matrices):
    found = model(DENSE, model_type=kind).stack[0]
    assert found.rest == matrices * 64 * 96 + 128


def test_gpt2_s_own_names():
    """Biases everywhere, norms with shifts, one matrix for both ends, learned positions."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500,
              "n_positions": 128, "n_inner": None}  # fmt: skip
    found = from_config(config, "m", "test")
    assert (found.hidden, found.layers, found.intermediate) == (64, 2, 256)
    layer = 64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 256 + 256 + 64 + 4 * 64
    assert found.parameters == 2 * layer + 64 * (500 + 128) + 128


def test_a_missing_field_is_named_as_its_family_names_it():
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "vocab_size": 500}
    with pytest.raises(PlanError, match=r"config\.json has no n_embd$"):
        from_config(config, "m", "test")


def test_experts_and_what_a_token_uses():
    found = model(SPARSE)
    expert = 3 * 64 * 24
    attention = size((64, 64), (64, 16), (64, 16), (64, 64))
    sparse = attention + 17 * expert + 16 * 64 + 128
    dense = attention + 3 * 64 * 96 + 128
    assert found.expert_parameters == expert
    assert found.layer_parameters == sparse
    assert found.parameters == dense + 2 * sparse + 2 * 64 * 1000 + 64
    assert found.parameters - found.active_parameters == 2 * 12 * expert


@pytest.mark.parametrize("name", ["n_routed_experts", "num_experts", "num_local_experts"])
def test_every_name_of_the_count(name):
    config = {k: v for k, v in SPARSE.items() if k != "n_routed_experts"}
    assert model(config, **{name: 16}).parameters == model(SPARSE).parameters


def test_experts_as_wide_as_the_layer_if_not_said():
    config = {k: v for k, v in SPARSE.items() if k != "moe_intermediate_size"}
    assert model(config).expert_parameters == 3 * 64 * 96


def test_latent_attention_by_its_matrices():
    """q 64x48 and 48x(8x24); kv 64x(32+8) and 32x8x(16+16); o (8x16)x64; norms of 48 and 32."""
    found = model(LATENT)
    down_and_up = size((64, 48), (48, 192), (64, 40), (32, 256), (128, 64)) + 48 + 32
    assert found.stack[0].mixer.parameters == down_and_up
    assert found.cache_elements_per_token == 3 * 40
    whole_q = model(LATENT, q_lora_rank=None)
    less = size((64, 48), (48, 192)) + 48
    assert whole_q.stack[0].mixer.parameters - down_and_up == 64 * 192 - less


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 10**400}, "hidden_size: asked for a whole number from 1 up, found 1000"),
        ({"vocab_size": 1 << 33}, "vocab_size: asked for a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers: asked for"),
        ({"num_key_value_heads": -1}, "num_key_value_heads: asked for a whole number from 1 up"),
        ({"text_config": [1]}, r"text_config: asked for an object, found \[1\]"),
        ({"text_config": "x"}, "text_config: asked for an object, found 'x'"),
        (
            {"first_k_dense_replace": 4},
            "first_k_dense_replace: asked for at most 3 layers",
        ),
        ({"num_experts_per_tok": None}, "config.json has no num_experts_per_tok"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok: asked for at most 16 experts"),
        ({"n_routed_experts": "16"}, "n_routed_experts: asked for"),
    ],
)
def test_fields_that_cannot_be(change, said, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SPARSE, **change}))
    with pytest.raises(PlanError, match=said) as caught:
        models.find(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_shapes_as_a_report():
    answer = work.shapes(model(SPARSE))
    found = {line.name: line.quantity.value for line in answer.lines}
    assert found["weights_bytes"] == 2 * found["parameters"]
    assert found["layer_bytes"] == 2 * found["layer_parameters"]
    assert (found["experts"], found["experts_per_token"]) == (16, 4)
    assert found["expert_bytes"] == 2 * 3 * 64 * 24
    assert found["activation_bytes"] == 128
    assert found["cache_bytes_per_token"] == 2 * 3 * 2 * 2 * 8
    assert "experts" not in {line.name for line in work.shapes(model(DENSE)).lines}


@pytest.mark.parametrize("parameters", [1e9, 70e9, 671e9])
def test_memory_in_whole_gpus(parameters):
    from braid.plan import hardware

    h200 = hardware.find("h200-nvlink4")
    count = Quantity(parameters, "", Basis.EXACT, "")
    answer = work.memory(count, h200)
    least = answer.value("least_gpus")
    assert least == int(least)
    assert (least - 1) * h200.memory_gb * 1e9 < 18 * parameters <= least * h200.memory_gb * 1e9
    assert [line.name for line in work.memory(count, None).lines] == ["memory_bytes"]

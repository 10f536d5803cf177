"""Families with biases, LayerNorm and learned positions, from before Llama; and encoders."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits

_GPT2 = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}


def four_times(fields: Fields) -> dict[str, Any]:
    """The MLP's width where it is not said."""
    if fields.get("intermediate_size") is None and fields.get("hidden_size") is not None:
        return {"intermediate_size": 4 * fields.whole("hidden_size")}
    return {}


def _gpt2(fields: Fields) -> Mapping[str, Any]:
    """SantaCoder's form has one head of keys for all queries."""
    kind = fields.get("attention_head_type")
    if kind not in (None, "multihead", "multiquery"):
        raise fields.unknown("attention_head_type", "braid knows multihead and multiquery")
    alone = {"num_key_value_heads": 1} if kind == "multiquery" else {}
    return {**four_times(fields), **alone}


def _bigcode(fields: Fields) -> Mapping[str, Any]:
    alone = {"num_key_value_heads": 1} if fields.on(Says("multi_query", True)) else {}
    return {**four_times(fields), **alone}


def _falcon(fields: Fields) -> Mapping[str, Any]:
    """How many key heads, and how many norms: 40B and 180B have one for each of two branches."""
    found = four_times(fields)
    heads = fields.get("num_attention_heads")
    if fields.on(Says("new_decoder_architecture")):
        norms = fields.whole("num_ln_in_parallel_attn", 2)
        return {
            **found,
            "num_key_value_heads": fields.get("num_kv_heads") or heads,
            "norms_per_layer": norms,
        }
    kv_heads = 1 if fields.on(Says("multi_query", True)) else heads
    norms = 1 if fields.on(Says("parallel_attn", True)) else 2
    return {**found, "num_key_value_heads": kv_heads, "norms_per_layer": norms}


def _opt(fields: Fields) -> Mapping[str, Any]:
    """Norms behind the branches, as 350M has them, leave no last norm."""
    before = fields.on(Says("do_layer_norm_before", True))
    return {"has_final_norm": before and not fields.get("_remove_final_layer_norm")}


def _mpt(fields: Fields) -> Mapping[str, Any]:
    inside = fields.inner("attn_config")
    if not fields.on(Says("no_bias", True)):
        raise fields.unknown("no_bias", "braid counts this family without biases")
    if inside.get("attn_type") not in (None, "multihead_attention"):
        raise inside.unknown("attn_type", "braid counts multihead_attention alone")
    if inside.get("alibi") is False or inside.get("qk_ln"):
        raise fields.unknown("attn_config", "braid counts ALiBi without norms of queries alone")
    hidden = fields.get("hidden_size")
    return {"intermediate_size": fields.whole("expansion_ratio", 4) * hidden} if hidden else {}


def _stablelm(fields: Fields) -> Mapping[str, Any]:
    return {"norms_per_layer": 1 if fields.on(Says("use_parallel_residual")) else 2}


_BIASED: dict[str, Any] = {
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "norm_vectors": 2,
    "gated": False,
}
_BERT = Traits(
    **_BIASED, is_encoder=True, positions=0, token_types=True, embedding_norm=True,
    final_norm=False, pooler=True,
)  # fmt: skip

FAMILIES = {
    "gpt2": Traits(**_BIASED, names=_GPT2, derive=_gpt2, needs=(), tied=True, positions=0),
    "gpt_bigcode": Traits(
        **_BIASED, names=_GPT2, derive=_bigcode, needs=(), tied=True, positions=0,
    ),
    "gptj": Traits(
        names=_GPT2, derive=four_times, needs=(), mlp_bias=True, norm_vectors=2, norms=1,
        gated=False, output_bias=True,
    ),
    "gpt_neo": Traits(
        names={"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
               "window_size": "sliding_window"},
        derive=four_times, needs=(), tied=True, positions=0, out_bias=True, mlp_bias=True,
        norm_vectors=2, gated=False,
    ),
    "gpt_neox": Traits(
        qkv_bias=Says("attention_bias", True), out_bias=Says("attention_bias", True),
        mlp_bias=True, norm_vectors=2, gated=False,
    ),
    "opt": Traits(
        names={"ffn_dim": "intermediate_size"}, derive=_opt, tied=True, positions=2,
        qkv_bias=Says("enable_bias", True), out_bias=Says("enable_bias", True),
        mlp_bias=Says("enable_bias", True), norm_vectors=2, gated=False,
        final_norm=Says("has_final_norm", True),
    ),
    "biogpt": Traits(**_BIASED, tied=True, positions=2),
    "bloom": Traits(
        **_BIASED,
        names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
               "n_embed": "hidden_size"},
        derive=four_times, needs=(), tied=True, embedding_norm=True,
    ),
    "falcon": Traits(
        names={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
               "n_head_kv": "num_kv_heads", "ffn_hidden_size": "intermediate_size"},
        derive=_falcon, needs=(), tied=True,
        note="both ends share a matrix, which counts once; some checkpoints store it twice",
        qkv_bias=Says("bias"), out_bias=Says("bias"),
        mlp_bias=Says("bias"), norm_vectors=2, gated=False,
    ),
    "mpt": Traits(
        names={"d_model": "hidden_size", "n_layers": "num_hidden_layers",
               "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings"},
        derive=_mpt, needs=(), tied=True, gated=False,
    ),
    "phi": Traits(
        **_BIASED, norms=1, output_bias=True, head_norm=Says("qk_layernorm"), head_norm_vectors=2,
    ),
    "stablelm": Traits(
        derive=_stablelm, qkv_bias=Says("use_qkv_bias"), norm_vectors=2,
        head_norm=Says("qk_layernorm"), head_norm_of="all",
    ),
    "nemotron": Traits(
        qkv_bias=Says("attention_bias"), out_bias=Says("attention_bias"),
        mlp_bias=Says("mlp_bias"), norm_vectors=2, gated=False,
    ),
    "starcoder2": Traits(
        qkv_bias=Says("use_bias", True), out_bias=Says("use_bias", True),
        mlp_bias=Says("use_bias", True), norm_vectors=2, gated=False, tied=True, is_windowed=True,
    ),
    "bert": _BERT,
    "distilbert": replace(
        _BERT, token_types=False, pooler=False,
        names={"dim": "hidden_size", "n_layers": "num_hidden_layers",
               "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"},
    ),
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
}  # fmt: skip
FAMILIES["RefinedWeb"] = FAMILIES["RefinedWebModel"] = FAMILIES["falcon"]

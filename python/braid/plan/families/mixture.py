"""Families with experts, and attention in every layer."""

from collections.abc import Mapping
from typing import Any

from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits

_BIAS = Says("attention_bias")
_QWEN3_MOE = Traits(qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True)
_DEEPSEEK_V3 = Traits(qkv_bias=_BIAS, correction=True)
_GLM4_MOE = Traits(
    qkv_bias=_BIAS, head_norm=Says("use_qk_norm"), correction=True,
    defaults={"first_k_dense_replace": 1},
)  # fmt: skip
_LLAMA4_PERIOD = 4


def _llama4(fields: Fields) -> Mapping[str, Any]:
    """Layers without rotary positions look at all tokens, the others at a chunk."""
    if fields.get("layer_types") is not None:
        return {}
    rotary = fields.list("no_rope_layers") or [
        (layer + 1) % _LLAMA4_PERIOD for layer in range(fields.layers())
    ]
    kinds = ["chunked_attention" if each else "full_attention" for each in rotary]
    return {"layer_types": kinds}


def _dbrx(fields: Fields) -> Mapping[str, Any]:
    """Attention and experts are said in objects of their own."""
    attention, experts = fields.inner("attn_config"), fields.inner("ffn_config")
    return {
        "num_key_value_heads": attention.whole("kv_n_heads"),
        "intermediate_size": experts.whole("ffn_hidden_size"),
        "num_experts": experts.whole("moe_num_experts"),
        "num_experts_per_tok": experts.whole("moe_top_k"),
    }


def _ernie(fields: Fields) -> Mapping[str, Any]:
    """A last sparse layer of -1 is the last of all."""
    return {"moe_layer_start_index": fields.whole("moe_layer_start_index", 1, least=0)}


FAMILIES = {
    "mixtral": Traits(is_windowed=True),
    "qwen2_moe": Traits(
        qkv_bias=Says("qkv_bias", True), shared_gate=True,
        defaults={"shared_expert_intermediate_size": 5632},
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "deepseek": Traits(qkv_bias=_BIAS, out_bias=_BIAS),
    "deepseek_v2": Traits(qkv_bias=_BIAS, mlp_bias=Says("mlp_bias")),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe_text": _GLM4_MOE,
    "glm4_moe_lite": Traits(
        qkv_bias=_BIAS, correction=True, shared=1, defaults={"first_k_dense_replace": 1},
    ),
    "gpt_oss": Traits(
        qkv_bias=Says("attention_bias", True), out_bias=Says("attention_bias", True), sinks=True,
        router_bias=True, expert_bias=True, full_every=2,
        defaults={"head_dim": 64, "sliding_window": 128},
    ),
    "llama4_text": Traits(
        qkv_bias=_BIAS, out_bias=_BIAS, shared=1, derive=_llama4,
        defaults={"attention_chunk_size": 8192, "head_dim": 128},
        inner={"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
               "num_key_value_heads": 8, "intermediate_size": 8192,
               "intermediate_size_mlp": 16384, "vocab_size": 202048, "num_local_experts": 16,
               "num_experts_per_tok": 1},
    ),
    "minimax_m2": Traits(
        head_norm=Says("use_qk_norm", True), head_norm_of="all",
        correction=Says("use_routing_bias", True),
    ),
    "olmoe": Traits(qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True, head_norm_of="all"),
    "phimoe": Traits(
        qkv_bias=_BIAS, out_bias=_BIAS, norm_vectors=2, output_bias=Says("lm_head_bias"),
        is_windowed=True,
    ),
    "granitemoe": Traits(qkv_bias=_BIAS, out_bias=_BIAS),
    "granitemoeshared": Traits(qkv_bias=_BIAS, out_bias=_BIAS),
    "dots1": Traits(qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True, correction=True),
    "ernie4_5_moe": Traits(
        tied=True, qkv_bias=Says("use_bias"), out_bias=Says("use_bias"), derive=_ernie,
        mlp_bias=Says("use_bias"), expert_bias=Says("use_bias"), correction=True,
        output_bias=Says("use_bias"),
    ),
    "dbrx": Traits(
        names={"d_model": "hidden_size", "n_layers": "num_hidden_layers",
               "n_heads": "num_attention_heads"},
        derive=_dbrx,
    ),
}  # fmt: skip

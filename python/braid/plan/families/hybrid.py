"""Families some of whose layers have a recurrence in attention's place."""

from collections.abc import Mapping
from typing import Any

from braid.plan.families import recurrence
from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits

_BIAS = Says("attention_bias")
_QWEN3_NEXT = Traits(
    qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True, query_gate=True, shared_gate=True,
    recurrence=recurrence.delta, defaults={"head_dim": 256, "full_attention_interval": 4},
)  # fmt: skip
_QWEN3_5_MOE = Traits(
    qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True, query_gate=True, shared_gate=True, needs=(),
    recurrence=recurrence.delta, defaults={"head_dim": 256, "full_attention_interval": 4},
)  # fmt: skip


def _jamba(fields: Fields) -> Mapping[str, Any]:
    """One expert is a dense MLP."""
    return {"num_experts": 0} if fields.get("num_experts") == 1 else {}


def _granite(fields: Fields) -> Mapping[str, Any]:
    """Without experts the shared MLP is the only one."""
    found: dict[str, Any] = {}
    if not fields.get("num_local_experts"):
        found = {"intermediate_size": fields.whole("shared_intermediate_size")}
    return {**found, **_head_size(fields)}


def _head_size(fields: Fields) -> Mapping[str, Any]:
    if fields.get("mamba_d_head") not in (None, "auto"):
        return {}
    inner = fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    return {"mamba_d_head": inner // fields.whole("mamba_n_heads")}


def _nemotron(fields: Fields) -> Mapping[str, Any]:
    """A list of layers is as long as there are layers."""
    listed = fields.list("layers_block_type")
    return {} if listed is None else {"num_hidden_layers": len(listed)}


def _minimax(fields: Fields) -> Mapping[str, Any]:
    """The converted form has every second layer recurrent where it does not say."""
    if any(fields.get(field) is not None for field in ("layer_types", "attn_type_list")):
        return {}
    kinds = ["linear_attention" if layer % 2 else "full_attention" for layer in _layers(fields)]
    return {"layer_types": kinds}


def _layers(fields: Fields) -> range:
    return range(fields.layers())


_MINIMAX = Traits(recurrence=recurrence.lightning, derive=_minimax)

FAMILIES = {
    "jamba": Traits(
        recurrence=recurrence.mamba, derive=_jamba,
        defaults={"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
                  "expert_layer_offset": 1},
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "bamba": Traits(
        recurrence=recurrence.mamba2, qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Says("mlp_bias"),
        derive=_head_size,
    ),
    "granitemoehybrid": Traits(
        recurrence=recurrence.mamba2, qkv_bias=_BIAS, out_bias=_BIAS, derive=_granite,
    ),
    "nemotron_h": Traits(
        names={"mamba_num_heads": "mamba_n_heads", "mamba_head_dim": "mamba_d_head",
               "n_groups": "mamba_n_groups", "ssm_state_size": "mamba_d_state",
               "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
               "use_bias": "mamba_proj_bias",
               "attention_head_dim": "head_dim"},
        recurrence=recurrence.mamba2, gated=False, one_per_layer=True, correction=True,
        derive=_nemotron, mlp_bias=Says("mlp_bias"),
    ),
}  # fmt: skip

"""Families of grouped attention and a dense, gated MLP behind RMS norms: Llama and its kin."""

from collections.abc import Mapping
from typing import Any

from braid.plan.families.fields import Fields, Says
from braid.plan.families.traits import Traits

_BIAS = Says("attention_bias")
_LLAMA = Traits(
    qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Says("mlp_bias"),
    inner={"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "intermediate_size": 11008, "vocab_size": 32000},
)  # fmt: skip
_MISTRAL = Traits(
    is_windowed=True,
    inner={"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000},
)  # fmt: skip
_QWEN2 = Traits(
    qkv_bias=True,
    inner={"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 32, "intermediate_size": 22016, "vocab_size": 151936},
)  # fmt: skip
_QWEN2_VL = Traits(
    qkv_bias=True,
    inner={"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
           "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064},
)  # fmt: skip
_QWEN3 = Traits(
    qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True, defaults={"head_dim": 128},
    inner={"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 32, "intermediate_size": 22016, "vocab_size": 151936},
)  # fmt: skip
_GEMMA: dict[str, Any] = {
    "tied": True,
    "qkv_bias": _BIAS,
    "out_bias": _BIAS,
    "defaults": {"head_dim": 256},
}
_OLMO2: dict[str, Any] = {
    "qkv_bias": _BIAS,
    "out_bias": _BIAS,
    "head_norm": True,
    "head_norm_of": "all",
}
_COHERE: dict[str, Any] = {"tied": True, "norms": 1, "qkv_bias": _BIAS, "out_bias": _BIAS}
_GLM_BIAS = Says("attention_bias", True)


def _qwen1(fields: Fields) -> Mapping[str, Any]:
    """Its intermediate_size counts the gate's half, too."""
    return {"intermediate_size": fields.whole("intermediate_size") // 2}


def _chatglm(fields: Fields) -> Mapping[str, Any]:
    if fields.on(Says("multi_query_attention")):
        return {"num_key_value_heads": fields.whole("multi_query_group_num")}
    return {}


def _mllama(fields: Fields) -> Mapping[str, Any]:
    raise fields.unknown("cross_attention_layers", "braid has no rule for layers of this kind")


FAMILIES = {
    "llama": _LLAMA,
    "Yi": _LLAMA,
    "baichuan": Traits(),
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": Traits(inner=_MISTRAL.inner),
    "qwen": Traits(
        qkv_bias=True, derive=_qwen1, names={"kv_channels": "head_dim"},
    ),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "gemma": Traits(
        **_GEMMA,
        inner={"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
               "num_key_value_heads": 16, "intermediate_size": 24576, "vocab_size": 256000},
    ),
    "gemma2": Traits(
        **{**_GEMMA, "defaults": {"head_dim": 256, "sliding_window": 4096}},
        norms=4, full_every=2,
        inner={"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
               "num_key_value_heads": 4, "intermediate_size": 9216, "vocab_size": 256000},
    ),
    "vaultgemma": Traits(
        **{**_GEMMA, "defaults": {"head_dim": 256, "sliding_window": 4096}}, full_every=2,
    ),
    "gemma3_text": Traits(
        **{**_GEMMA, "defaults": {"head_dim": 256, "sliding_window": 4096}},
        norms=4, head_norm=True, full_every=6,
        inner={"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
               "num_key_value_heads": 4, "intermediate_size": 9216, "vocab_size": 262208},
    ),
    "phi3": Traits(is_windowed=True),
    "olmo": Traits(norm_vectors=0, qkv_bias=_BIAS, out_bias=_BIAS),
    "olmo2": Traits(**_OLMO2),
    "olmo3": Traits(**_OLMO2, full_every=4, defaults={"sliding_window": 4096}),
    "granite": Traits(qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Says("mlp_bias")),
    "internlm2": Traits(qkv_bias=Says("bias"), out_bias=Says("bias")),
    "internlm3": Traits(
        qkv_bias=Says("qkv_bias"), out_bias=Says("bias"), mlp_bias=Says("bias"),
    ),
    "chatglm": Traits(
        names={"num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size",
               "kv_channels": "head_dim", "padded_vocab_size": "vocab_size"},
        derive=_chatglm, qkv_bias=Says("add_qkv_bias"), out_bias=Says("add_bias_linear"),
        mlp_bias=Says("add_bias_linear"), final_norm=Says("post_layer_norm", True),
    ),
    "glm": Traits(qkv_bias=_GLM_BIAS, defaults={"head_dim": 128}),
    "glm4": Traits(qkv_bias=_GLM_BIAS, defaults={"head_dim": 128}, norms=4),
    "glm4v_text": Traits(qkv_bias=_GLM_BIAS, norms=4),
    "cohere": Traits(**_COHERE, head_norm=Says("use_qk_norm"), head_norm_of="all"),
    "cohere2": Traits(**_COHERE, full_every=4, defaults={"sliding_window": 4096}),
    "ernie4_5": Traits(
        tied=True, qkv_bias=Says("use_bias"), out_bias=Says("use_bias"),
        mlp_bias=Says("use_bias"), defaults={"head_dim": 128},
    ),
    "seed_oss": Traits(
        qkv_bias=_GLM_BIAS, out_bias=Says("attention_out_bias"), mlp_bias=Says("mlp_bias"),
        defaults={"head_dim": 128},
    ),
    "smollm3": Traits(
        tied=True, qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Says("mlp_bias"),
    ),
    "exaone": Traits(names={"num_layers": "num_hidden_layers"}),
    "exaone4": Traits(head_norm=True),
    "arcee": Traits(gated=False, qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=Says("mlp_bias")),
    "bitnet": Traits(norms=3, mlp_norm=True, qkv_bias=_BIAS, out_bias=_BIAS),
    "apertus": Traits(
        gated=False, head_norm=True, more=2, qkv_bias=_BIAS, out_bias=_BIAS,
    ),
    "helium": Traits(qkv_bias=_BIAS, mlp_bias=Says("mlp_bias"), defaults={"head_dim": 128}),
    "hunyuan_v1_dense": Traits(qkv_bias=_BIAS, out_bias=_BIAS, head_norm=True),
    "mllama_text_model": Traits(derive=_mllama),
}  # fmt: skip

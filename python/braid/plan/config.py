"""A Hugging Face config.json as a Model."""

from collections.abc import Mapping
from typing import Any

from braid.plan.model import Experts, Latent, Model
from braid.plan.wrong import PlanError

Config = Mapping[str, Any]

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
_UNGATED = ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "falcon", "bert")
_LARGEST = 1 << 32  # of any shape; products of such stay finite
NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


def from_config(config: Config, name: str, origin: str) -> Model:
    """A model from what its checkpoint's config.json says. PlanError names what is missing."""
    text = config.get("text_config")  # models that also see keep the decoder's shapes here
    if text and not isinstance(text, Mapping):
        raise PlanError(f"model {name}: text_config: asked for an object, found {text!r:.40}")
    shapes = {_GPT2_NAMES.get(k, k): v for k, v in (text or config).items()}
    if shapes.get("model_type") == "gpt2" and shapes.get("intermediate_size") is None:
        shapes["intermediate_size"] = 4 * _whole(shapes, "hidden_size", name)
    missing = [field for field in NEEDED if shapes.get(field) is None]
    if missing:
        raise PlanError(f"model {name}: config.json has no {', '.join(missing)}")
    hidden, heads = _whole(shapes, "hidden_size", name), _whole(shapes, "num_attention_heads", name)
    kind = str(shapes.get("model_type", ""))
    return Model(
        name=name,
        origin=origin,
        hidden=hidden,
        layers=_whole(shapes, "num_hidden_layers", name),
        heads=heads,
        kv_heads=_whole(shapes, "num_key_value_heads", name, heads),
        head_dim=_whole(shapes, "head_dim", name, hidden // heads),
        intermediate=_whole(shapes, "intermediate_size", name),
        vocabulary=_whole(shapes, "vocab_size", name),
        tied=bool(shapes.get("tie_word_embeddings", False)),
        gated=kind not in _UNGATED,
        positions=_whole(shapes, "max_position_embeddings", name, 0) if kind == "gpt2" else 0,
        latent=_latent(shapes, name),
        experts=_experts(shapes, name),
    )


def _whole(shapes: Config, field: str, name: str, default: int | None = None) -> int:
    """A count; a field that may be absent may be 0, too."""
    value = shapes.get(field)
    if value is None and default is not None:
        return default
    least = 1 if default is None else 0
    if type(value) is not int or not least <= value <= _LARGEST:
        raise PlanError(
            f"model {name}: {field}: asked for a whole number from {least} up, found {value!r:.40}"
        )
    return value


def _latent(shapes: Config, name: str) -> Latent | None:
    if shapes.get("kv_lora_rank") is None:
        return None
    return Latent(
        q_rank=_whole(shapes, "q_lora_rank", name, 0),
        kv_rank=_whole(shapes, "kv_lora_rank", name),
        nope_dim=_whole(shapes, "qk_nope_head_dim", name),
        rope_dim=_whole(shapes, "qk_rope_head_dim", name),
        value_dim=_whole(shapes, "v_head_dim", name),
    )


def _experts(shapes: Config, name: str) -> Experts | None:
    field = next(
        (f for f in ("n_routed_experts", "num_experts", "num_local_experts") if shapes.get(f)), None
    )
    if field is None:
        return None
    dense = _whole(shapes, "first_k_dense_replace", name, 0)
    layers = _whole(shapes, "num_hidden_layers", name)
    if dense > layers:
        raise PlanError(f"model {name}: first_k_dense_replace: {dense} of {layers} layers")
    return Experts(
        count=_whole(shapes, field, name),
        per_token=_whole(shapes, "num_experts_per_tok", name),
        shared=_whole(shapes, "n_shared_experts", name, 0),
        intermediate=_whole(
            shapes, "moe_intermediate_size", name, _whole(shapes, "intermediate_size", name)
        ),
        dense_layers=dense,
    )

"""Parameters of what follows attention: a dense MLP, or a router, experts and shared experts."""

from typing import Any

from braid.plan.families.fields import Fields
from braid.plan.families.traits import Traits
from braid.plan.model import Experts

COUNT = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)


def mlp(fields: Fields, traits: Traits, layer: int) -> tuple[int, Experts | None]:
    """Of one layer: what every token passes, and the mixture."""
    if has_experts(fields) and is_sparse(fields, layer):
        return sparse(fields, traits)
    name = "intermediate_size_mlp" if fields.get("intermediate_size_mlp") else "intermediate_size"
    width = fields.whole(name)
    return dense(fields, traits, width) + width * traits.mlp_norm, None


def dense(fields: Fields, traits: Traits, width: int) -> int:
    """Parameters of one MLP of this width."""
    return _between(fields.whole("hidden_size"), traits, width, fields.on(traits.mlp_bias))


def _between(hidden: int, traits: Traits, width: int, has_bias: bool) -> int:
    """Of the matrices from vectors of `hidden` elements to `width` and back."""
    ways = 2 if traits.gated else 1
    return (ways + 1) * hidden * width + (ways * width + hidden) * has_bias


def has_experts(fields: Fields) -> bool:
    """Whether any layer may have some."""
    return any(fields.get(field) for field in COUNT)


def sparse(fields: Fields, traits: Traits) -> tuple[int, Experts]:
    """What every token passes, and the mixture."""
    hidden = fields.whole("hidden_size")
    count = _first(fields, COUNT)
    per_token_field = _field(fields, _PER_TOKEN)
    per_token = fields.whole(per_token_field)
    if per_token > count:
        raise fields.wrong(per_token_field, f"at most {count} experts", per_token)
    own = _field(fields, _WIDTH)
    width = fields.whole(own if fields.get(own) is not None else "intermediate_size")
    latent = fields.whole("moe_latent_size", 0, least=0)
    one = _between(latent or hidden, traits, width, fields.on(traits.expert_bias))
    rest = hidden * count + _shared(fields, traits, width) + _latent(fields, traits, latent)
    rest += count * traits.router_bias + count * fields.on(traits.correction)
    return rest, Experts(count, per_token, one)


def _latent(fields: Fields, traits: Traits, latent: int) -> int:
    """Of what takes tokens to the narrower vectors that experts see, and back."""
    hidden = fields.whole("hidden_size")
    biases = latent + hidden if latent and fields.on(traits.mlp_bias) else 0
    return 2 * hidden * latent + biases


def _shared(fields: Fields, traits: Traits, width: int) -> int:
    field = _field(fields, _SHARED_WIDTH)
    number = _first(fields, _SHARED, traits.shared, least=0)
    total = fields.whole(field, number * width, least=0)
    gate = fields.whole("hidden_size") if traits.shared_gate else 0
    return dense(fields, traits, total) + gate if total else 0


def is_sparse(fields: Fields, layer: int) -> bool:
    """Whether this layer of a model with experts has them."""
    word = fields.of_layer("mlp_layer_types", layer)
    if word is not None:
        return bool(word == "sparse")
    chosen = fields.list("moe_layers")
    if chosen is not None:
        return layer in chosen
    if fields.get("expert_layer_period") is not None:
        offset = fields.whole("expert_layer_offset", 0, least=0)
        return layer % fields.whole("expert_layer_period") == offset
    return _is_in_range(fields, layer) and _is_in_step(fields, layer)


def _is_in_range(fields: Fields, layer: int) -> bool:
    first = fields.whole("first_k_dense_replace", 0, least=0)
    if first > fields.layers():
        raise fields.wrong("first_k_dense_replace", f"at most {fields.layers()} layers", first)
    first = max(first, fields.whole("moe_layer_start_index", 0, least=0))
    last = fields.get("moe_layer_end_index")
    if last not in (None, -1) and layer > fields.whole("moe_layer_end_index"):
        return False
    return layer >= first and layer not in (fields.list("mlp_only_layers") or [])


def _is_in_step(fields: Fields, layer: int) -> bool:
    frequency: Any = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(fields.of_layer("moe_layer_freq", layer))
    if frequency is not None and layer % fields.whole("moe_layer_freq"):
        return False
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    return all((layer + 1) % fields.whole(step, 1) == 0 for step in steps)


def _field(fields: Fields, names: tuple[str, ...]) -> str:
    """The one of these names that the config has; the first where it has none."""
    return next((name for name in names if fields.get(name) is not None), names[0])


def _first(
    fields: Fields, names: tuple[str, ...], default: int | None = None, least: int = 1
) -> int:
    return fields.whole(_field(fields, names), default, least)

"""A model from a family's traits and a config's fields."""

from braid.plan.basis import Basis
from braid.plan.families import attention, ends, kinds, mlp
from braid.plan.families.fields import Fields
from braid.plan.families.traits import Traits
from braid.plan.model import Layer, Mixer, Model
from braid.plan.wrong import PlanError

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def model(fields: Fields, traits: Traits, origin: str) -> Model:
    """PlanError names what is missing, and what is not what it must be."""
    fields.need((*NEEDED[:3], *traits.needs, *NEEDED[3:]))
    if ends.is_draft(fields):
        raise fields.unknown("architectures", "braid has no rule for layers that draft")
    if fields.get("add_cross_attention"):
        raise fields.unknown(
            "add_cross_attention", "braid has no rule for what looks at an encoder"
        )
    stack = _stack(fields, traits)
    heads, kv_heads = attention.heads_of(fields)
    is_latent = fields.get("kv_lora_rank") is not None
    return Model(
        name=fields.model,
        origin=origin,
        hidden=fields.whole("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.whole("v_head_dim") if is_latent else attention.head_dim(fields),
        intermediate=fields.whole("intermediate_size", 0, least=0),
        stack=stack,
        end_parameters=ends.parameters(fields, traits),
        is_plain=traits.gated and not is_latent and _are_alike(stack),
        basis=Basis.EXACT,
        notes=tuple(_notes(fields, traits)),
    )


def _stack(fields: Fields, traits: Traits) -> tuple[Layer, ...]:
    """Layers of one kind are counted once."""
    made: dict[tuple[str, bool], Layer] = {}
    stack = []
    for number in range(fields.layers()):
        key = (
            kinds.of(fields, traits, number),
            mlp.has_experts(fields) and mlp.is_sparse(fields, number),
        )
        if key not in made:
            made[key] = _layer(fields, traits, number)
        stack.append(made[key])
    return tuple(stack)


def _layer(fields: Fields, traits: Traits, number: int) -> Layer:
    kind = kinds.of(fields, traits, number)
    norm = traits.norm_vectors * fields.whole("hidden_size")
    if traits.one_per_layer:
        return _single(fields, traits, number, norm)
    after, experts = mlp.mlp(fields, traits, number)
    norms = fields.whole("norms_per_layer", traits.norms, least=0)
    return Layer(_mixer(fields, traits, number, kind), after + norms * norm + traits.more, experts)


def _single(fields: Fields, traits: Traits, number: int, norm: int) -> Layer:
    """A layer that is a mixer or an MLP, behind one norm: Nemotron-H's."""
    kind = kinds.of(fields, traits, number)
    if kind == kinds.SPARSE:
        rest, experts = mlp.sparse(fields, traits)
        return Layer(Mixer(0), rest + norm, experts, all_reduces=1)
    if kind == kinds.MLP:
        rest = mlp.dense(fields, traits, fields.whole("intermediate_size"))
        return Layer(Mixer(0), rest + norm, all_reduces=1)
    return Layer(_mixer(fields, traits, number, kind), norm, all_reduces=1)


def _mixer(fields: Fields, traits: Traits, number: int, kind: str) -> Mixer:
    if kind != kinds.RECURRENT:
        return attention.mixer(fields, traits, number)
    if traits.recurrence is None:
        raise PlanError(
            f"model {fields.model}: layer {number} has no attention, and braid has no rule for what"
            " this family has there; --params takes a count"
        )
    return traits.recurrence(fields)


def _are_alike(stack: tuple[Layer, ...]) -> bool:
    """Whether all have attention over all tokens and a dense MLP."""
    return all(layer.mixer.cache_elements and not layer.experts for layer in stack)


def _notes(fields: Fields, traits: Traits) -> list[str]:
    notes = [traits.note] if traits.note else []
    more = fields.get("num_nextn_predict_layers") or fields.get("num_mtp_modules")
    if more:
        notes.append(f"{more!a:.20} more layer(s) that predict further tokens are not counted")
    if traits.is_encoder:
        notes.append("an encoder keeps no KV cache; its task's head is not counted")
    elif name := ends.headless(fields):
        notes.append(f"{name:.60} has no matrix for the output; its task's head is not counted")
    return notes

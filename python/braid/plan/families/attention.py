"""Parameters of attention, and what it caches."""

from braid.plan.families import kinds
from braid.plan.families.fields import Fields
from braid.plan.families.traits import Traits
from braid.plan.model import Mixer
from braid.plan.wrong import PlanError


def mixer(fields: Fields, traits: Traits, layer: int) -> Mixer:
    """Of one layer."""
    if fields.get("kv_lora_rank") is not None:
        return _latent(fields, traits)
    heads, kv_heads = heads_of(fields)
    dim = head_dim(fields)
    hidden, q_dim, kv_dim = fields.whole("hidden_size"), heads * dim, kv_heads * dim
    columns = (2 if traits.query_gate else 1) * q_dim + 2 * kv_dim
    count = hidden * columns + q_dim * hidden
    if fields.on(traits.qkv_bias):
        count += columns
    if fields.on(traits.out_bias):
        count += hidden
    if fields.on(traits.head_norm):
        width = q_dim + kv_dim if traits.head_norm_of == "all" else 2 * dim
        count += traits.head_norm_vectors * width
    if traits.sinks:
        count += heads
    cached = 0 if traits.is_encoder else 2 * kv_dim
    return Mixer(count, cached, kinds.window(fields, traits, layer))


def _latent(fields: Fields, traits: Traits) -> Mixer:
    """Multi-head latent attention: one small vector per token is cached."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    q_rank, rank = fields.whole("q_lora_rank", 0, least=0), fields.whole("kv_lora_rank")
    nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    value = fields.whole("v_head_dim")
    q_dim = heads * (nope + rope)
    count = q_rank * (hidden + 1 + q_dim) if q_rank else hidden * q_dim
    count += hidden * (rank + rope) + rank
    count += rank * heads * (nope + value) + heads * value * hidden
    if fields.on(traits.qkv_bias):
        count += q_rank + rank + rope + hidden
    index, cached = _index(fields, hidden, q_rank)
    return Mixer(count + index, rank + rope + cached)


def _index(fields: Fields, hidden: int, q_rank: int) -> tuple[int, int]:
    """Parameters of what chooses the tokens to attend to, and its own key per token: one head for
    all queries', behind a norm with a shift. None where every token is attended to.
    """
    if not fields.get("index_topk"):
        return 0, 0
    heads, dim = fields.whole("index_n_heads"), fields.whole("index_head_dim")
    return q_rank * heads * dim + hidden * (dim + heads) + 2 * dim, dim


def heads_of(fields: Fields) -> tuple[int, int]:
    """Of queries, and of keys. PlanError where they do not go together."""
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    return heads, kv_heads


def head_dim(fields: Fields) -> int:
    """As said, else each head's part of the hidden size. PlanError where that is no whole one."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if fields.get("head_dim") is not None:
        return fields.whole("head_dim")
    if hidden % heads:
        raise PlanError(
            f"model {fields.model}: config.json has no head_dim, and hidden_size {hidden} does not"
            f" divide over {heads} heads"
        )
    return hidden // heads

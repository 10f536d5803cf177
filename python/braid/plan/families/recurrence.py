"""Layers that stand in attention's place and keep a state of fixed size instead of a cache.

State is counted in elements of one sequence: what a convolution looks back at, and the recurrence's
own matrix.
"""

from braid.plan.families.attention import head_dim, heads_of
from braid.plan.families.fields import Fields, Says
from braid.plan.model import Mixer


def mamba(fields: Fields) -> Mixer:
    """Jamba's: Mamba of the first kind, with norms for the step, B and C."""
    hidden = fields.whole("hidden_size")
    inner = fields.whole("mamba_expand", 2) * hidden
    state, kernel = fields.whole("mamba_d_state", 16), fields.whole("mamba_d_conv", 4)
    rank = _step_rank(fields, hidden)
    count = hidden * 2 * inner + inner * hidden  # in, out
    count += inner * kernel + inner * fields.on(Says("mamba_conv_bias", True))
    count += inner * (rank + 2 * state) + rank * inner + inner  # x, dt with its bias
    count += inner * state + inner  # A, D
    count += rank + 2 * state  # three norms
    count += (2 * inner + hidden) * fields.on(Says("mamba_proj_bias"))
    return Mixer(count, state_elements=inner * (kernel + state))


def _step_rank(fields: Fields, hidden: int) -> int:
    if fields.get("mamba_dt_rank") in (None, "auto"):
        return -(-hidden // 16)
    return fields.whole("mamba_dt_rank")


def mamba2(fields: Fields) -> Mixer:
    """Mamba of the second kind: Bamba's, Granite 4's, Nemotron-H's."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("mamba_n_heads")
    inner = heads * fields.whole("mamba_d_head")
    groups, state = fields.whole("mamba_n_groups", 1), fields.whole("mamba_d_state")
    kernel = fields.whole("mamba_d_conv", 4)
    mixed = inner + 2 * groups * state  # x, B, C go through the convolution
    columns = inner + mixed + heads
    count = hidden * columns + inner * hidden
    count += mixed * kernel + mixed * fields.on(Says("mamba_conv_bias", True))
    count += 3 * heads + inner  # A, D, the step's bias; a norm
    count += (columns + hidden) * fields.on(Says("mamba_proj_bias"))
    return Mixer(count, state_elements=mixed * kernel + inner * state)


def delta(fields: Fields) -> Mixer:
    """Qwen3-Next's: a gated delta rule."""
    hidden = fields.whole("hidden_size")
    key_heads, heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
    key_dim, dim = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    kernel = fields.whole("linear_conv_kernel_dim", 4)
    keys, values = key_heads * key_dim, heads * dim
    mixed = 2 * keys + values
    count = hidden * (mixed + values + 2 * heads) + values * hidden
    count += mixed * kernel + 2 * heads + dim  # the step's bias and A; a norm
    return Mixer(count, state_elements=mixed * kernel + heads * key_dim * dim)


def lightning(fields: Fields) -> Mixer:
    """MiniMax's: linear attention whose output is normed and gated."""
    hidden, (heads, _), dim = fields.whole("hidden_size"), heads_of(fields), head_dim(fields)
    inner = heads * dim
    return Mixer(hidden * inner * 5 + inner, state_elements=heads * dim * dim)

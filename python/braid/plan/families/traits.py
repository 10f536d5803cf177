"""What tells one family of models from another: a row of traits, and functions where rows end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from braid.plan.families.fields import Fields, Switch
from braid.plan.model import Mixer

Derive = Callable[[Fields], Mapping[str, Any]]
Recurrence = Callable[[Fields], Mixer]


def nothing(_: Fields) -> Mapping[str, Any]:
    """Of a config whose fields say all."""
    return {}


@dataclass(frozen=True)
class Traits:
    """How a family's layers are made; the defaults are Llama's without biases."""

    names: Mapping[str, str] = field(default_factory=dict)
    """What its configs call a field, and what it is called here."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of fields that its configs may leave out."""
    inner: Mapping[str, Any] = field(default_factory=dict)
    """Of shapes that a text_config leaves out: it holds what differs from these."""
    derive: Derive = nothing
    """Fields that follow from others."""
    needs: tuple[str, ...] = ("intermediate_size",)
    """Besides what every model needs."""

    tied: bool = False
    """Whether one matrix serves both ends where the config does not say."""
    output_bias: Switch = False
    positions: int | None = None
    """Rows of learned positions beyond max_position_embeddings; None: no positions are learned."""
    token_types: bool = False
    embedding_norm: bool = False
    pooler: bool = False
    final_norm: Switch = True

    qkv_bias: Switch = False
    out_bias: Switch = False
    head_norm: Switch = False
    """Whether queries and keys have norms of their own."""
    head_norm_of: str = "head"
    """What such a norm has weights for: the elements of one "head", or of "all" heads."""
    head_norm_vectors: int = 1
    sinks: bool = False
    query_gate: bool = False
    """Whether as many columns as the queries have gate what attention gives."""
    is_encoder: bool = False
    is_windowed: bool = False
    """Whether sliding_window, where it is a number, holds for every layer."""
    full_every: int = 0
    """Of how many layers one, the last, looks at all tokens; the others have a window."""
    recurrence: Recurrence | None = None

    gated: bool = True
    mlp_bias: Switch = False
    mlp_norm: bool = False
    """Whether a dense MLP norms what its last matrix takes."""
    norms: int = 2
    """Of the hidden size, per layer."""
    norm_vectors: int = 1
    """A weight; 2: and a shift; 0: nothing is learned."""
    note: str = ""
    """What a reader of its counts must know."""
    more: int = 0
    """Parameters of a layer that nothing else here names."""
    one_per_layer: bool = False
    """Whether a layer is a mixer or an MLP, not both."""

    router_bias: bool = False
    correction: Switch = False
    """Whether a router has a bias that balances its experts."""
    expert_bias: Switch = False
    shared: int = 0
    """Shared experts where the config does not say."""
    shared_gate: bool = False

"""The layers of a model, and how many parameters and cached elements follow from them.

A count of parameters is the sum over all that a checkpoint holds: matrices, biases, norms. Which
those are says a family's rule (braid.plan.families); the tests compare the sums with the counts of
published checkpoints.
"""

from dataclasses import dataclass

from braid.plan.basis import Basis, Quantity


@dataclass(frozen=True)
class Mixer:
    """What lets a layer's tokens see each other: attention, or a recurrence in its place."""

    parameters: int
    cache_elements: int = 0
    """Of the KV cache, per token."""
    window: int = 0
    """Tokens that it looks back at and keeps; 0: all of them."""
    state_elements: int = 0
    """What it keeps of a sequence however long that is."""


@dataclass(frozen=True)
class Experts:
    """The mixture of a sparse layer; shared experts are no part of it."""

    count: int
    per_token: int
    parameters: int
    """Of one of them."""


@dataclass(frozen=True)
class Layer:
    """One layer."""

    mixer: Mixer
    rest: int
    """Parameters that every token passes: norms, a dense MLP or a router and shared experts."""
    experts: Experts | None = None
    all_reduces: int = 2
    """Of a pass with tensor parallelism: after the mixer, after the MLP."""

    @property
    def parameters(self) -> int:
        """All."""
        mixture = self.experts.count * self.experts.parameters if self.experts else 0
        return self.mixer.parameters + self.rest + mixture

    @property
    def idle_parameters(self) -> int:
        """Of the experts that a token does not go to."""
        if not self.experts:
            return 0
        return (self.experts.count - self.experts.per_token) * self.experts.parameters


@dataclass(frozen=True)
class Model:
    """A model's shapes."""

    name: str
    origin: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    stack: tuple[Layer, ...]
    end_parameters: int
    """Of what is no layer: embeddings, learned positions, the last norm, the output's matrix."""
    is_plain: bool = True
    """Whether every layer is grouped attention and a dense, gated MLP."""
    basis: Basis = Basis.EXACT
    """What its counts rest on."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.stack)

    @property
    def experts(self) -> Experts | None:
        """Those of the first sparse layer; None for a dense model."""
        return next((layer.experts for layer in self.stack if layer.experts), None)

    @property
    def expert_parameters(self) -> int:
        """Of one expert; 0 for a dense model."""
        return self.experts.parameters if self.experts else 0

    @property
    def all_experts_parameters(self) -> int:
        """Of all experts of all layers, without the shared ones."""
        mixtures = (layer.experts for layer in self.stack if layer.experts)
        return sum(each.count * each.parameters for each in mixtures)

    @property
    def layer_parameters(self) -> int:
        """Of one layer; of the largest where they differ."""
        return max(layer.parameters for layer in self.stack)

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return sum(layer.experts is not None for layer in self.stack)

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - self.sparse_layers

    @property
    def parameters(self) -> int:
        """All."""
        return sum(layer.parameters for layer in self.stack) + self.end_parameters

    @property
    def active_parameters(self) -> int:
        """What one token passes through."""
        return self.parameters - sum(layer.idle_parameters for layer in self.stack)

    @property
    def all_reduces(self) -> int:
        """Of a pass with tensor parallelism."""
        return sum(layer.all_reduces for layer in self.stack)

    @property
    def cache_elements_per_token(self) -> int:
        """Elements of the KV cache that a token adds while every window has room."""
        return sum(layer.mixer.cache_elements for layer in self.stack)

    @property
    def windowed_elements_per_token(self) -> int:
        """Of these, what is given up again when a token leaves its layer's window."""
        return sum(layer.mixer.cache_elements for layer in self.stack if layer.mixer.window)

    @property
    def widest_window(self) -> int:
        """In tokens; 0 where every layer keeps all of them."""
        return max((layer.mixer.window for layer in self.stack), default=0)

    @property
    def state_elements(self) -> int:
        """What recurrent layers keep of a sequence however long it is."""
        return sum(layer.mixer.state_elements for layer in self.stack)

    def cache_elements(self, tokens: int) -> int:
        """Of one sequence: its KV cache, no layer with more than its window."""
        mixers = [layer.mixer for layer in self.stack]
        return sum(each.cache_elements * min(tokens, each.window or tokens) for each in mixers)

    def counted(self, value: float, unit: str = "", origin: str = "") -> Quantity:
        """A number that follows from these counts, and is as good as they are."""
        return Quantity(value, unit, self.basis, origin)

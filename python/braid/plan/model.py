"""The shapes of a transformer, and how many parameters follow from them.

A count of parameters is the sum over the weight matrices; the tests compare it with the published
totals. Biases and the norms inside attention are left out: less than a part in ten thousand.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: what is cached per token is one small vector."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Experts:
    """The mixture of a model's sparse layers."""

    count: int
    per_token: int
    shared: int
    intermediate: int
    dense_layers: int


@dataclass(frozen=True)
class Model:
    """A decoder's shapes."""

    name: str
    origin: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    gated: bool
    positions: int
    latent: Latent | None
    experts: Experts | None

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent:
            return self._latent_parameters(self.latent)
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    def _latent_parameters(self, latent: Latent) -> int:
        q_dim = self.heads * (latent.nope_dim + latent.rope_dim)
        q = latent.q_rank * (self.hidden + q_dim) if latent.q_rank else self.hidden * q_dim
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return q + down + up + self.heads * latent.value_dim * self.hidden

    def _mlp_parameters(self, intermediate: int) -> int:
        return (3 if self.gated else 2) * self.hidden * intermediate

    @property
    def expert_parameters(self) -> int:
        """Of one expert; 0 for a dense model."""
        return self._mlp_parameters(self.experts.intermediate) if self.experts else 0

    @property
    def layer_parameters(self) -> int:
        """Of one layer; of a sparse one where there are both."""
        norms = 2 * self.hidden
        if not self.experts:
            return self.attention_parameters + self._mlp_parameters(self.intermediate) + norms
        router = self.experts.count * self.hidden
        mixture = (self.experts.count + self.experts.shared) * self.expert_parameters
        return self.attention_parameters + mixture + router + norms

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.experts.dense_layers if self.experts else self.layers

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    @property
    def embedding_parameters(self) -> int:
        """Input and output, and learned positions where a model has them."""
        return self.hidden * (self.vocabulary * (1 if self.tied else 2) + self.positions)

    @property
    def parameters(self) -> int:
        """All."""
        dense = self.attention_parameters + self._mlp_parameters(self.intermediate)
        dense += 2 * self.hidden
        sparse = self.layer_parameters
        layers = self.dense_layers * dense + self.sparse_layers * sparse
        return layers + self.embedding_parameters + self.hidden

    @property
    def active_parameters(self) -> int:
        """What one token passes through."""
        if not self.experts:
            return self.parameters
        idle = self.experts.count - self.experts.per_token
        return self.parameters - self.sparse_layers * idle * self.expert_parameters

    @property
    def cache_elements_per_token(self) -> int:
        """Elements of the KV cache, all layers."""
        if self.latent:
            return self.layers * (self.latent.kv_rank + self.latent.rope_dim)
        return 2 * self.layers * self.kv_heads * self.head_dim

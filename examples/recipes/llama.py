"""One rank's part of a Llama layer, cut as Megatron cuts it, with random weights.

Queries, keys and values, and the MLP's way up, are cut by columns: a rank has whole heads. The ways
back are cut by rows, so that each rank has a part of a sum. `add` makes it the whole sum, in
place: an all_reduce, or nothing where one rank has everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from braid.plan.parallel.block import Shape

Sum = Callable[[torch.Tensor], object]
_THETA = 500_000.0  # of Llama 3's rotary positions
_EPSILON = 1e-5


def random(
    shape: Sequence[int], seed: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Normal numbers, the same on every rank."""
    dice = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=dice, device=device, dtype=dtype)


class Layer:
    """Rank `rank` of `size`; `whole` is the layer before it is cut."""

    def __init__(
        self,
        whole: Shape,
        rank: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        if whole.heads % size or whole.kv_heads % size or whole.intermediate % size:
            raise ValueError(f"a layer of {whole} does not divide over {size} ranks")
        self.shape = replace(
            whole,
            heads=whole.heads // size,
            kv_heads=whole.kv_heads // size,
            intermediate=whole.intermediate // size,
        )
        self.device, self.dtype = device, dtype
        seeds = iter(range(100 * seed, 100 * seed + 7))

        def weight(rows: int, columns: int, cut: int) -> torch.Tensor:
            full = random((rows, columns), next(seeds), device, dtype) / rows**0.5
            return full.chunk(size, cut)[rank].contiguous()

        hidden, queries = whole.hidden, whole.heads * whole.head_dim
        keys = whole.kv_heads * whole.head_dim
        self.qkv = torch.cat([weight(hidden, n, 1) for n in (queries, keys, keys)], 1)
        self.out = weight(queries, hidden, 0)
        self.up = torch.cat([weight(hidden, whole.intermediate, 1) for _ in range(2)], 1)
        self.down = weight(whole.intermediate, hidden, 0)

    def attention(self, x: torch.Tensor, cache: "Cache", start: int) -> torch.Tensor:
        """x [batch, tokens, hidden], whose first token has place `start`: this rank's part."""
        batch, tokens, _ = x.shape
        s = self.shape
        heads = (x @ self.qkv).view(batch, tokens, -1, s.head_dim).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        keys, values = cache.put(cache.turned(k, start), v, start)
        mixed = nn.functional.scaled_dot_product_attention(
            cache.turned(q, start), keys, values, is_causal=tokens > 1, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(batch, tokens, -1) @ self.out

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, hidden]: this rank's part."""
        gate, up = (x @ self.up).chunk(2, dim=-1)
        return (nn.functional.silu(gate) * up) @ self.down


class Cache:
    """Keys and values of a layer's sequences, and the turns of their places."""

    def __init__(self, layer: Layer, batch: int, longest: int) -> None:
        s = layer.shape
        room = (batch, s.kv_heads, longest, s.head_dim)
        self._keys, self._values = (
            torch.zeros(room, device=layer.device, dtype=layer.dtype) for _ in range(2)
        )
        places = torch.arange(longest, device=layer.device).float()
        steps = torch.arange(0, s.head_dim, 2, device=layer.device).float() / s.head_dim
        angles = places[:, None] * _THETA**-steps
        self._cos, self._sin = angles.cos().to(layer.dtype), angles.sin().to(layer.dtype)

    def put(
        self, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps them from place `start` on; all until there."""
        end = start + keys.shape[2]
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        return self._keys[:, :, :end], self._values[:, :, :end]

    def take(self, other: "Cache") -> None:
        """The other's only sequence, for every sequence here."""
        self._keys.copy_(other._keys.expand_as(self._keys))
        self._values.copy_(other._values.expand_as(self._values))

    def turned(self, heads: torch.Tensor, start: int) -> torch.Tensor:
        """Rotary positions: pairs of numbers turned by the place."""
        end = start + heads.shape[2]
        cos, sin = self._cos[start:end], self._sin[start:end]
        a, b = heads.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def run_layers(
    layers: Sequence[Layer], caches: Sequence[Cache], x: torch.Tensor, start: int, add: Sum
) -> torch.Tensor:
    """All layers, two sums in each. `x` stays as it is."""
    for layer, cache in zip(layers, caches, strict=True):
        part = layer.attention(_normed(x), cache, start)
        add(part)
        x = x + part
        part = layer.mlp(_normed(x))
        add(part)
        x = x + part
    return x


def parts_of(
    layers: Sequence[Layer], caches: Sequence[Cache], x: torch.Tensor, start: int
) -> dict[str, Callable[[], torch.Tensor]]:
    """What this rank computes between two sums, of every layer for the same `x`: by name."""
    normed = _normed(x)

    def attention() -> torch.Tensor:
        pairs = zip(layers, caches, strict=True)
        return torch.stack([layer.attention(normed, cache, start) for layer, cache in pairs])

    def mlp() -> torch.Tensor:
        return torch.stack([layer.mlp(normed) for layer in layers])

    return {"attention": attention, "mlp": mlp}


def _normed(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=_EPSILON)

"""A decoder's block on this rank, part by part: matrices of the right shapes, in torch or NumPy.

What the numbers are does not matter here; that every product, the attention and the sums are done
does. Every layer has weights of its own, as in a model, so that none stay in a cache. Positions
(RoPE) are left out: they are a small part of `norm`.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from braid.plan.parallel.block import Shape

_EPSILON = 1e-5
_PERIOD = 65_521  # of random numbers; a prime, so that no two rows are alike


class Block(ABC):
    """Layers of one shape."""

    def __init__(self, shape: Shape, layers: int) -> None:
        self.shape, self.layers = shape, layers

    @abstractmethod
    def run(self, part: str, layer: int) -> None:
        """One part; on a GPU it is enqueued on the current stream."""

    def wait(self) -> None:  # noqa: B027 - on CPUs a part is over when it returns
        """Until everything is done."""


class HostBlock(Block):
    """float32, on the CPU."""

    def __init__(self, shape: Shape, layers: int, seed: int = 1) -> None:
        super().__init__(shape, layers)
        random = np.random.default_rng(seed)

        def filled(*shape: int) -> Any:  # noqa: ANN401 - arrays of float32
            period = random.standard_normal(_PERIOD, dtype=np.float32) / shape[0] ** 0.5
            return np.resize(period.astype(np.float32), shape)

        s = self.shape
        self.x = filled(s.tokens, s.hidden)
        self.y = filled(s.tokens, s.hidden)
        self.weights = [
            {
                "qkv": filled(s.hidden, s.qkv_columns),
                "out": filled(s.heads * s.head_dim, s.hidden),
                "up": filled(s.hidden, 2 * s.intermediate),
                "down": filled(s.intermediate, s.hidden),
            }
            for _ in range(layers)
        ]
        self.results: dict[str, Any] = {}
        for part in ("norm", "qkv", "attention", "out", "up", "activation", "down"):
            self.run(part, 0)

    def run(self, part: str, layer: int) -> None:
        """One part."""
        self.results[part] = getattr(self, f"_{part}")(self.weights[layer])

    def _norm(self, _: dict[str, Any]) -> Any:  # noqa: ANN401
        total = self.x + self.y
        return total / np.sqrt(np.mean(total * total, axis=1, keepdims=True) + _EPSILON)

    def _qkv(self, weights: dict[str, Any]) -> Any:  # noqa: ANN401
        return self.results["norm"] @ weights["qkv"]

    def _attention(self, _: dict[str, Any]) -> Any:  # noqa: ANN401
        s = self.shape
        heads = self.results["qkv"].reshape(s.tokens, -1, s.head_dim).transpose(1, 0, 2)
        q, k, v = heads[: s.heads], heads[s.heads : -s.kv_heads], heads[-s.kv_heads :]
        group = s.heads // s.kv_heads
        k, v = (np.repeat(x, group, axis=0) for x in (k, v))
        scores = q @ k.transpose(0, 2, 1) / s.head_dim**0.5
        scores += np.triu(np.full((s.tokens, s.tokens), -np.inf, dtype=np.float32), 1)
        parts = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = (parts / parts.sum(axis=2, keepdims=True)) @ v
        return mixed.transpose(1, 0, 2).reshape(s.tokens, -1)

    def _out(self, weights: dict[str, Any]) -> Any:  # noqa: ANN401
        return self.results["attention"] @ weights["out"]

    def _up(self, weights: dict[str, Any]) -> Any:  # noqa: ANN401
        return self.results["norm"] @ weights["up"]

    def _activation(self, _: dict[str, Any]) -> Any:  # noqa: ANN401
        gate, up = np.split(self.results["up"], 2, axis=1)
        return gate / (1 + np.exp(-gate)) * up

    def _down(self, weights: dict[str, Any]) -> Any:  # noqa: ANN401
        return self.results["activation"] @ weights["down"]


class TorchBlock(Block):
    """torch's own kernels, bfloat16 unless said."""

    def __init__(
        self, shape: Shape, layers: int, device: str = "cuda", dtype: str = "bfloat16"
    ) -> None:
        super().__init__(shape, layers)
        import torch

        self._torch: Any = torch
        kind, s = getattr(torch, dtype), shape

        def filled(*shape: int) -> Any:  # noqa: ANN401
            return torch.randn(shape, device=device, dtype=kind) / shape[0] ** 0.5

        def empty(columns: int) -> Any:  # noqa: ANN401
            return torch.empty((s.tokens, columns), device=device, dtype=kind)

        self.x, self.y = filled(s.tokens, s.hidden), filled(s.tokens, s.hidden)
        self.weights = [
            {
                "qkv": filled(s.hidden, s.qkv_columns),
                "out": filled(s.heads * s.head_dim, s.hidden),
                "up": filled(s.hidden, 2 * s.intermediate),
                "down": filled(s.intermediate, s.hidden),
            }
            for _ in range(layers)
        ]
        self.results = {
            "qkv": empty(s.qkv_columns),
            "out": empty(s.hidden),
            "up": empty(2 * s.intermediate),
            "down": empty(s.hidden),
        }
        for part in ("norm", "qkv", "attention", "out", "up", "activation", "down"):
            self.run(part, 0)

    def run(self, part: str, layer: int) -> None:
        """One part, enqueued."""
        into, torch = self.results, self._torch
        if part == "norm":
            total = self.x + self.y
            into["norm"] = torch.nn.functional.rms_norm(total, (self.shape.hidden,), eps=_EPSILON)
        elif part == "attention":
            into["attention"] = self._attention(into["qkv"])
        elif part == "activation":
            gate, up = into["up"].chunk(2, dim=1)
            into["activation"] = torch.nn.functional.silu(gate) * up
        else:
            source = {"qkv": "norm", "out": "attention", "up": "norm", "down": "activation"}[part]
            torch.mm(into[source], self.weights[layer][part], out=into[part])

    def _attention(self, qkv: Any) -> Any:  # noqa: ANN401
        s = self.shape
        heads = qkv.view(1, s.tokens, -1, s.head_dim).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        mixed = self._torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads
        )
        return mixed.transpose(1, 2).reshape(s.tokens, -1)

    def wait(self) -> None:
        """Until the device is done."""
        if self.x.is_cuda:
            self._torch.cuda.synchronize()

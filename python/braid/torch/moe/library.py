"""What braid.moe asks of torch."""

import functools
from typing import Any

import torch


@functools.cache
def _dtype(name: str) -> Any:
    return getattr(torch, name)


class Torch:
    """New tensors in the memory of `device`."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        # Lengths one by one: as a tuple torch takes half as long again to read them.
        return torch.empty(*shape, dtype=_dtype(dtype), device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=_dtype(dtype), device=self.device)

    def swapped(self, array: torch.Tensor) -> torch.Tensor:
        return array.transpose(-1, -2)

    def count_up(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.device)

    def order_of(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.argsort(keys, stable=True)

    def cast(self, array: torch.Tensor, dtype: str) -> torch.Tensor:
        return array.to(_dtype(dtype))

    def raw(self, array: torch.Tensor) -> torch.Tensor:
        return array.view(torch.uint8)

    def plain(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach() if array.requires_grad else array

"""The torch side of braid.moe: tensors, and groups of torch.distributed."""

from typing import Any

import torch
import torch.distributed as dist

from braid.comm import Comm
from braid.moe.meeting import meet
from braid.torch.moe.gpu_calls import GpuCalls
from braid.torch.moe.places import CudaEvent

__all__ = ["CudaEvent", "GpuCalls", "Torch", "comm_of_group", "topk_idx_t"]

topk_idx_t = torch.int64


class Torch:
    """New tensors in the memory of `device`."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)

    def swapped(self, array: torch.Tensor) -> torch.Tensor:
        return array.transpose(-1, -2)

    def count_up(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.device)

    def order_of(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.argsort(keys, stable=True)

    def cast(self, array: torch.Tensor, dtype: str) -> torch.Tensor:
        return array.to(getattr(torch, dtype))

    def raw(self, array: torch.Tensor) -> torch.Tensor:
        return array.view(torch.uint8)

    def plain(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach()


def comm_of_group(group: Any) -> Comm:
    """A comm of the group's ranks. Collective; the group carries a few words at the start only."""
    size = dist.get_world_size(group)

    def gather(told: dict[str, Any]) -> list[dict[str, Any]]:
        cards: list[Any] = [None] * size
        dist.all_gather_object(cards, told, group=group)
        return cards

    return meet(dist.get_rank(group), size, gather)

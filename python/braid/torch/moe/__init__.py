"""The torch side of braid.moe: tensors, and groups of torch.distributed."""

from typing import Any

import torch
import torch.distributed as dist

from braid.comm import Comm
from braid.moe.meeting import meet
from braid.torch.moe.gpu_calls import GpuCalls
from braid.torch.moe.library import Torch
from braid.torch.moe.places import CudaEvent

__all__ = ["CudaEvent", "GpuCalls", "Torch", "comm_of_group", "topk_idx_t"]

topk_idx_t = torch.int64


def comm_of_group(group: Any) -> Comm:
    """A comm of the group's ranks. Collective; the group carries a few words at the start only."""
    size = dist.get_world_size(group)

    def gather(told: dict[str, Any]) -> list[dict[str, Any]]:
        cards: list[Any] = [None] * size
        dist.all_gather_object(cards, told, group=group)
        return cards

    return meet(dist.get_rank(group), size, gather)

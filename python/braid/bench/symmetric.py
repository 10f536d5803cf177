"""torch's symmetric memory: what torch offers for GPUs of one node without multicast.

Operations that need NVLink multicast (multimem_*) are never called, and no multicast object is
made: TORCH_SYMM_MEM_DISABLE_MULTICAST is set before torch comes in. all_to_all and broadcast have
no operation here that needs neither multicast nor NVSHMEM.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from braid.bench.contestant import Contestant, Shelf
from braid.bench.no_multicast import NO_MULTICAST
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase

_TYPES = ("bfloat16", "float32")
_ONE_SHOT_MOST_BYTES = 16 << 20  # every rank reads every whole buffer
_IN_PLACE = "two-shot"
_KINDS = {
    "one-shot": "all_reduce",
    "two-shot": "all_reduce",
    "direct": "reduce_scatter",
    "copies": "all_gather",
    "copies and sum": "reduce_scatter",
}


def symmetric_shelves(device: torch.device) -> tuple[Shelf, Shelf]:
    """Memory that every rank can address: for operands, and for results."""
    if os.environ.get(NO_MULTICAST) != "1":
        raise RuntimeError(f"{NO_MULTICAST} is not 1: torch would make multicast objects")
    import torch.distributed._symmetric_memory as symmetric

    def make(nbytes: int) -> tuple[torch.Tensor, Callable[[], None]]:
        buffer = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        if symmetric.rendezvous(buffer, dist.group.WORLD.group_name) is None:
            raise RuntimeError("torch cannot share symmetric memory between these GPUs")
        return buffer, torch.cuda.synchronize

    return Shelf(make), Shelf(make)


def all_kinds(operands: Shelf, results: Shelf, send: Shelf, out: Shelf) -> list["Symmetric"]:
    """Everything that torch has. `operands` and `results` are symmetric, the others are not. They
    are two, for operands are filled once a case: what two-shot leaves would be one-shot's operand.
    """
    return [
        Symmetric(kind, results if kind == _IN_PLACE else operands, send, out) for kind in _KINDS
    ]


class Symmetric(Contestant):
    """One of torch's operations on symmetric memory."""

    group = "symm"

    def __init__(self, kind: str, memory: Shelf, send: Shelf, out: Shelf) -> None:
        self.name = f"symm {kind}"
        self._kind, self._memory, self._send_shelf, self._out_shelf = kind, memory, send, out
        self.works_in_place = kind == _IN_PLACE
        self._result: torch.Tensor | None = None
        self._call: Any = None

    def is_for(self, op: str) -> bool:
        """Each kind is for one operation."""
        return op == _KINDS[self._kind]

    def why_not(self, case: GpuCase) -> str:
        """Sums are for two types; one-shot reads everything everywhere."""
        if "reduce" in case.op and case.dtype not in _TYPES:
            return f"it adds {' and '.join(_TYPES)}"
        if self._kind == "one-shot" and case.own_bytes > _ONE_SHOT_MOST_BYTES:
            return "one-shot is for messages up to 16 MiB"
        return ""

    def shelves(self, case: GpuCase) -> dict[Shelf, int]:
        """The memory it uses. The copying kinds allocate their results anew in every call; torch
        keeps two of them at most.
        """
        sent, got = case.send_count * case.itemsize, case.out_count * case.itemsize
        own = 3 * max(sent, got) if self._kind.startswith("copies") else 0
        if self.works_in_place:
            return {self._memory: sent, self._send_shelf: sent}
        return {self._memory: sent, self._out_shelf: max(got, own)}

    def prepare(self, case: GpuCase, data: Data, rank: int) -> None:
        """Takes buffers, fills what is sent, makes the call."""
        ops, name = torch.ops.symm_mem, dist.group.WORLD.group_name
        self.send = self._memory.take(case.send_count * case.itemsize, data.dtype)
        if self.works_in_place:
            self.out = self.send
            self.send = self._send_shelf.take(case.send_count * case.itemsize, data.dtype)
        else:
            self.out = self._out_shelf.take(case.out_count * case.itemsize, data.dtype)
        send, out = self.send, self.out
        data.fill(self.send, rank)
        joined = torch.ops._c10d_functional.wait_tensor
        calls: dict[str, Callable[[], torch.Tensor]] = {
            "one-shot": lambda: ops.one_shot_all_reduce_out(send, "sum", name, out),
            "two-shot": lambda: ops.two_shot_all_reduce_(out, "sum", name),
            "direct": lambda: ops.reduce_scatter_out(send, name, False, out),
            "copies": lambda: joined(ops._low_contention_all_gather(send, name)),
            "copies and sum": lambda: joined(ops._low_contention_reduce_scatter(send, "sum", name)),
        }
        self._call = calls[self._kind]

    def soil(self, case: GpuCase, data: Data, rank: int) -> None:
        """What the last call returned, too: the copying kinds return memory of their own, which in
        a graph is the same in every launch.
        """
        if self._result is not None and self._result is not self.out:
            data.soil(self._result)
        super().soil(case, data, rank)

    def run(self) -> None:
        """Enqueues one call."""
        self._result = self._call()

    def result(self) -> torch.Tensor:
        """What the last call returned."""
        assert self._result is not None
        return self._result

    def let_go(self) -> None:
        """Forgets its buffers."""
        super().let_go()
        self._call = self._result = None

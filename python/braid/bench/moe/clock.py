"""Times of calls on a GPU's current stream, by events, all ranks at once."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

import braid

_FLUSH_BYTES = 256 << 20


class Clock:
    """`sleep_cycles`: the host enqueues all calls of one measurement meanwhile."""

    def __init__(self, comm: braid.Comm, sleep_cycles: int, device: str = "cuda") -> None:
        self._comm, self._sleep_cycles = comm, sleep_cycles
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
        self._begun = torch.zeros(4, device=device)
        self.num_late = 0
        """Measurements that the GPU began before the host had enqueued all of it."""

    def time_us(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Of each call. All ranks begin together, with other memory in the L2: a small sum on the
        GPUs comes first, since hosts leave a barrier some 20 us apart, which the earliest rank
        would wait for within its own call.
        """
        marks = _marks(len(calls) + 1)
        torch.cuda.synchronize()
        self._comm.barrier()
        self._flush.fill_(1)
        torch.cuda._sleep(self._sleep_cycles)
        self._comm.all_reduce(self._begun, out=self._begun)
        return self._between(marks, calls)

    def time_met_us(self, call: Callable[[], Any]) -> float:
        """The same of one call that nobody is waited for in: all that any GPU was given is done
        before. The L2 stays as that has left it, and ranks may begin apart.
        """
        marks = _marks(2)
        torch.cuda.synchronize()
        self._comm.barrier()
        torch.cuda._sleep(self._sleep_cycles)
        return self._between(marks, [call])[0]

    def _between(
        self, marks: Sequence[torch.cuda.Event], calls: Sequence[Callable[[], Any]]
    ) -> list[float]:
        marks[0].record()
        for call, mark in zip(calls, marks[1:], strict=True):
            call()
            mark.record()
        self.num_late += bool(marks[0].query())
        marks[-1].synchronize()
        return [float(a.elapsed_time(b)) * 1e3 for a, b in pairwise(marks)]


def _marks(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]

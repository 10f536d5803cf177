"""Lanes over braid's links between two processes of this machine: what its lanes carry alone.

Each lane has a comm of its own, held to one link. Rank 0 decides and times; rank 1 serves: it
waits for an order, which comes as a broadcast, and makes the same calls.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter_ns

import numpy as np

import braid
from braid.probe.lane import Lane, Running
from braid.probe.memory_lane import pattern

_RESIZE, _CHECK, _COPY, _QUIT = range(4)
_STALE = 0xA5


class _End:
    """What both ranks do with a lane: `root` sends, the other one receives."""

    def __init__(self, comm: braid.Comm, root: int) -> None:
        self._comm, self._root = comm, root
        self._is_source = comm.rank == root
        self._buffer = np.zeros(1, dtype=np.uint8)

    def obey(self, order: int, number: int) -> int:
        """Carries out an order; what came of it, on both ranks the same."""
        if order == _RESIZE:
            self._source = pattern(number, self._root + 1)
            self._buffer = self._source.copy()
            return 0
        if order == _CHECK:
            return self._check()
        self._comm.barrier()
        start = perf_counter_ns()
        for _ in range(number):
            self._comm.broadcast(self._buffer, self._root)
        self._comm.barrier()
        return perf_counter_ns() - start

    def _check(self) -> int:
        if not self._is_source:
            self._buffer.fill(_STALE)
        self._comm.broadcast(self._buffer, self._root)
        wrong = np.array([np.count_nonzero(self._buffer != self._source)], dtype=np.int64)
        return int(self._comm.all_reduce(wrong)[0])


class _Copying(Running):
    def __init__(self, made: "Future[int]", copies: int) -> None:
        self._made, self._copies = made, copies

    def took_us(self) -> float:
        """Waits for the last one; the mean time of one. Raises what the calls raised."""
        return self._made.result() / self._copies / 1e3

    def is_over(self) -> bool:
        """Whether the last one is done."""
        return self._made.done()


class LinkLane(Lane):
    """Rank 0's end."""

    def __init__(self, name: str, ends: tuple[str, str], comm: braid.Comm, root: int) -> None:
        self.name = name
        self.start_name, self.end_name = ends if root == 0 else ends[::-1]
        self._comm, self._end = comm, _End(comm, root)
        self._thread = ThreadPoolExecutor(1)

    def tell(self, order: int, number: int = 0) -> int:
        """Has both ranks do something."""
        self._comm.broadcast(np.array([order, number], dtype=np.int64), 0)
        return 0 if order == _QUIT else self._end.obey(order, number)

    def resize(self, nbytes: int, slots: int = 1) -> None:
        """Takes buffers of this size; links have no pieces."""
        if slots != 1:
            raise ValueError(f"{self.name}: a link copies one buffer, not {slots} pieces")
        self.tell(_RESIZE, nbytes)

    def wrong_bytes(self) -> int:
        """One checked copy."""
        return self.tell(_CHECK)

    def start(self, copies: int) -> Running:
        """Begins so many copies."""
        return _Copying(self._thread.submit(self.tell, _COPY, copies), copies)

    def close(self) -> None:
        """Ends both ranks' part."""
        self.tell(_QUIT)
        self._comm.close()


def serve(comm: braid.Comm, root: int) -> None:
    """Rank 1's end, until it is told to quit."""
    end = _End(comm, root)
    while True:
        order = np.zeros(2, dtype=np.int64)
        comm.broadcast(order, 0)
        if order[0] == _QUIT:
            comm.close()
            return
        end.obey(int(order[0]), int(order[1]))

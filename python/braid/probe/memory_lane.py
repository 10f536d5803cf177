"""Lanes between buffers of host memory: a thread copies. What a machine without a GPU has, and
what no lane through shared memory can pass.
"""

import threading
from itertools import cycle, islice
from time import perf_counter_ns

import numpy as np

from braid.probe.lane import Lane, Running, places

_STALE = 0xA5
PERIOD = 1048573  # prime: no page or block divides it
_AT_ONCE = 1 << 18
"""Bytes that are compared in one go: what that writes down about them stays in a cache."""
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def pattern(nbytes: int, seed: int) -> Bytes:
    """Bytes that depend on their place and on the lane."""
    index = np.arange(min(nbytes, PERIOD), dtype=np.uint64)
    mixed = (index + np.uint64(seed * 7919 + 1)) * np.uint64(2654435761)
    return np.resize((mixed >> np.uint64(13)).astype(np.uint8), nbytes)


class Copying(Running):
    """A thread that copies."""

    def __init__(self, lane: "MemoryLane", copies: int) -> None:
        self._lane, self._copies = lane, copies
        self._ns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pieces = list(islice(cycle(self._lane.pieces), self._copies))
        start = perf_counter_ns()
        for target, source in pieces:
            np.copyto(target, source)  # without the GIL
        self._ns = perf_counter_ns() - start
        self._over.set()

    def took_us(self) -> float:
        """Waits for the last one; the mean time of one."""
        self._thread.join()
        return self._ns / self._copies / 1e3

    def is_over(self) -> bool:
        """Whether the last one is done."""
        return self._over.is_set()


class MemoryLane(Lane):
    """memcpy, by a thread of its own."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self._seed = name, seed
        self._source = np.empty((0, 0), np.uint8)
        self.resize(1)

    def resize(self, nbytes: int, slots: int = 1) -> None:
        """Takes buffers of this size; those of the last case stay where they have it already."""
        if self._source.shape == (slots, nbytes):
            return
        self._source = pattern(nbytes * slots, self._seed).reshape(slots, nbytes)
        self._target = np.full_like(self._source, _STALE)
        self._order = places(slots)
        self.pieces = [(self._target[i], self._source[k]) for i, k in enumerate(self._order)]

    def wrong_bytes(self) -> int:
        """Every piece once."""
        self._target.fill(_STALE)
        self.start(len(self.pieces)).took_us()
        slots, nbytes = self._source.shape
        rows, wrong = max(1, _AT_ONCE // nbytes), 0
        for first in range(0, slots, rows):
            some = slice(first, first + rows)
            for start in range(0, nbytes, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                sent = self._source[self._order[some], part]
                wrong += int(np.count_nonzero(self._target[some, part] != sent))
        return wrong

    def start(self, copies: int) -> Copying:
        """Begins so many copies."""
        return Copying(self, copies)

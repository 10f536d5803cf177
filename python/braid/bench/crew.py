"""What ranks tell each other between calls on GPUs: over braid's own host links.

All ranks must decide alike, so whatever depends on a clock or on a free byte goes through here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

import braid

_WORDS_BYTES = 240


class Crew(ABC):
    """The ranks of a run. Every method is collective."""

    rank: int
    size: int

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def agree(self, *numbers: int) -> list[int]:
        """Rank 0's numbers."""

    @abstractmethod
    def total(self, number: int) -> int:
        """The sum over ranks."""

    @abstractmethod
    def slowest(self, times: Sequence[float]) -> list[float]:
        """Element by element, the largest over ranks."""

    @abstractmethod
    def every(self, number: float) -> list[float]:
        """Each rank's, in rank order."""

    @abstractmethod
    def rows(self, times: Sequence[float]) -> list[list[float]]:
        """Each rank's times, in rank order. All have as many."""

    @abstractmethod
    def least(self, number: int) -> int:
        """The smallest over ranks."""

    @abstractmethod
    def first_words(self, words: str) -> str:
        """The lowest rank's words that are not empty, shortened to a line; "" when all are."""


class CommCrew(Crew):
    """The ranks of a comm."""

    def __init__(self, comm: braid.Comm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm = comm

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._comm.barrier()

    def agree(self, *numbers: int) -> list[int]:
        """Rank 0's numbers."""
        values = np.array(numbers, dtype=np.int64)
        self._comm.broadcast(values, 0)
        return [int(value) for value in values]

    def total(self, number: int) -> int:
        """The sum over ranks."""
        return int(self._comm.all_reduce(np.array([number], dtype=np.int64))[0])

    def slowest(self, times: Sequence[float]) -> list[float]:
        """Element by element, the largest over ranks."""
        values = self._comm.all_reduce(np.array(times, dtype=np.float64), "max")
        return [float(value) for value in values]

    def every(self, number: float) -> list[float]:
        """Each rank's, in rank order."""
        return [float(x) for x in self._comm.all_gather(np.array([number], dtype=np.float64))]

    def rows(self, times: Sequence[float]) -> list[list[float]]:
        """Each rank's times, in rank order."""
        every = self._comm.all_gather(np.array(times, dtype=np.float64))
        return [[float(x) for x in row] for row in every.reshape(self.size, len(times))]

    def least(self, number: int) -> int:
        """The smallest over ranks."""
        return int(self._comm.all_reduce(np.array([number], dtype=np.int64), "min")[0])

    def first_words(self, words: str) -> str:
        """The lowest rank's words that are not empty."""
        mine = np.zeros(_WORDS_BYTES, dtype=np.uint8)
        text = " ".join(words.split()).encode()[:_WORDS_BYTES]
        mine[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        for row in self._comm.all_gather(mine).reshape(self.size, _WORDS_BYTES):
            if row.any():
                return bytes(row).rstrip(b"\0").decode(errors="replace")
        return ""

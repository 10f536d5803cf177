"""Lanes: ways from one memory to another that copy on their own once they are told to."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import gcd

_MOST_DOUBLINGS = 8


class Running(ABC):
    """Copies on their way."""

    @abstractmethod
    def took_us(self) -> float:
        """Waits for the last one; the mean time of one."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the last one is done. Does not wait."""


class Lane(ABC):
    """One way. Lanes of a run may copy at the same time."""

    name: str
    start_name: str = ""
    end_name: str = ""
    note: str = ""

    @abstractmethod
    def resize(self, nbytes: int, slots: int = 1) -> None:
        """Takes buffers of so many pieces of this size, and fills the source with bytes that depend
        on place. Copies go round the pieces: see places().
        """

    @abstractmethod
    def wrong_bytes(self) -> int:
        """Soils the target, copies every piece once and compares every byte."""

    @abstractmethod
    def start(self, copies: int) -> Running:
        """Begins so many copies, one after the other, and returns."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Gives memory back."""


def places(slots: int) -> list[int]:
    """Which piece of the source goes to pieces 0, 1, 2 ... of the target: scattered ones, as pages
    are, each once.
    """
    stride = next(step for step in (7919, 104729, 1) if gcd(step, slots) == 1)
    return [i * stride % slots for i in range(slots)]


def together_us(lanes: Sequence[Lane], copies: int) -> list[float]:
    """All lanes at once: each one's mean time of a copy."""
    running = [lane.start(copies) for lane in lanes]
    return [each.took_us() for each in running]


class Busy:
    """Keeps other lanes busy for as long as one is timed."""

    def __init__(self, others: Sequence[Lane]) -> None:
        self._others = others
        self._factor = 2

    def sample_us(self, lane: Lane, copies: int) -> float:
        """The lane's mean time of a copy while the others copy too. When one of the others was
        over first, it is asked for more and the sample is taken again; RuntimeError when that
        does not help.
        """
        for _ in range(_MOST_DOUBLINGS):
            running = [other.start(copies * self._factor) for other in self._others]
            took_us = lane.start(copies).took_us()
            lasted = not any(each.is_over() for each in running)
            for each in running:
                each.took_us()
            if lasted:
                return took_us
            self._factor *= 2
        raise RuntimeError(f"{lane.name}: the other lanes are over before it, however much they do")

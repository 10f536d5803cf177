"""Several calls under way at a time, and how fast they end."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Generic, TypeVar

Call = TypeVar("Call")


class Window(Generic[Call]):
    """`size` calls at most, waited for in the order in which they began. Its clock begins when it
    is made.
    """

    def __init__(self, size: int, wait: Callable[[Call], object]) -> None:
        self._size, self._wait = size, wait
        self._under_way: deque[Call] = deque()
        self._ended = 0
        self._marks_ns = [perf_counter_ns()]

    def make_room(self) -> None:
        """Waits for the oldest, if there is no room for another one."""
        if len(self._under_way) == self._size:
            self._end_one()

    def add(self, call: Call) -> None:
        """One that has begun."""
        self._under_way.append(call)

    def end(self) -> list[float]:
        """Waits for all: us for one, the mean of each `size` that ended one behind the other. Of
        the first ones' time some went by before as many were under way, and of the last ones' some
        when fewer were.
        """
        while self._under_way:
            self._end_one()
        marks = self._marks_ns
        return [(b - a) / 1e3 / self._size for a, b in pairwise(marks)]

    def _end_one(self) -> None:
        self._wait(self._under_way.popleft())
        self._ended += 1
        if self._ended % self._size == 0:
            self._marks_ns.append(perf_counter_ns())

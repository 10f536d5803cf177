"""Times of calls on a GPU: CUDA events around a burst of calls, eager or replayed from a graph.

The ranks meet at a barrier and inside one untimed call; then a burst of calls runs back to back
between two events. What one call of a burst costs is what a program sees that keeps its stream
busy; nobody waits for the host between calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.cases.gpu import GpuCase


class Timer(ABC):
    """How samples are taken in one mode."""

    launches: int | None = None
    """Of a graph in a sample; None where there is no graph."""

    @abstractmethod
    def make_ready(self, contestant: Contestant, calls: int) -> None:
        """Called before the samples of a contestant. Collective."""

    @abstractmethod
    def sample_us(self, contestant: Contestant, case: GpuCase, calls: int) -> float:
        """Mean time of a call on this rank. Collective."""

    def forget(self) -> None:  # noqa: B027 - most hold nothing
        """The case is over."""


def _between_events(crew: Crew, burst: Callable[[], None], meet: Callable[[], None]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    crew.barrier()
    meet()
    begin.record()
    burst()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


class Eager(Timer):
    """Every call is made by the host."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def make_ready(self, contestant: Contestant, calls: int) -> None:
        """A few calls that are not counted."""
        contestant.enter()
        for _ in range(min(calls, 3)):
            contestant.run()
        torch.cuda.synchronize()

    def sample_us(self, contestant: Contestant, case: GpuCase, calls: int) -> float:
        """Mean time of a call on this rank."""

        def burst() -> None:
            for _ in range(calls):
                contestant.run()

        contestant.enter()
        contestant.load(case)
        return _between_events(self._crew, burst, contestant.run) / calls


class Graphed(Timer):
    """`calls` calls are captured once and replayed."""

    launches: int

    def __init__(self, crew: Crew, launches: int) -> None:
        self._crew, self.launches = crew, launches
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def make_ready(self, contestant: Contestant, calls: int) -> None:
        """Captures."""
        contestant.enter()
        for _ in range(3):
            contestant.run()
        torch.cuda.synchronize()
        self._crew.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            for _ in range(calls):
                contestant.run()
        graph.replay()
        torch.cuda.synchronize()
        self._graphs[contestant.name] = graph

    def sample_us(self, contestant: Contestant, case: GpuCase, calls: int) -> float:
        """Mean time of a call on this rank."""
        graph, launches = self._graphs[contestant.name], self.launches

        def burst() -> None:
            for _ in range(launches):
                graph.replay()

        contestant.load(case)
        return _between_events(self._crew, burst, graph.replay) / (calls * launches)

    def forget(self) -> None:
        """Graphs hold memory, and pointers into buffers that may go."""
        torch.cuda.synchronize()
        self._graphs.clear()

"""Times of calls on a GPU: CUDA events around a burst of calls, eager or replayed from a graph.

The ranks meet at a barrier and inside one untimed call; then a burst of calls runs back to back
between two events. What one call of a burst costs is what a program sees that keeps its stream
busy; nobody waits for the host between calls.

What is timed is compared, too: once a burst whose result was soiled behind the call in which the
ranks meet, so that calls that do nothing show, and then what the last timed burst left.
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

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    @abstractmethod
    def make_ready(self, contestant: Contestant, calls: int) -> None:
        """Called before the samples of a contestant. Collective."""

    @abstractmethod
    def enter(self, contestant: Contestant) -> None:
        """Called before every burst."""

    @abstractmethod
    def meet(self, contestant: Contestant) -> None:
        """The call, or the calls, in which the ranks meet: not timed."""

    @abstractmethod
    def burst(self, contestant: Contestant, calls: int) -> None:
        """What is timed."""

    @abstractmethod
    def counts(self, calls: int) -> tuple[int, int]:
        """Calls of meet() and of burst()."""

    def sample_us(self, contestant: Contestant, case: GpuCase, calls: int) -> float:
        """Mean time of a call on this rank. Collective."""
        self.enter(contestant)
        contestant.load(case)
        took_us = _between_events(
            self._crew, lambda: self.burst(contestant, calls), lambda: self.meet(contestant)
        )
        return took_us / self.counts(calls)[1]

    def on_soiled(self, contestant: Contestant, calls: int, soil: Callable[[], None]) -> None:
        """The same burst on a result that `soil` made none, behind the calls of meet(). Nobody's
        burst writes to a rank that is not in it yet, so none of it is soiled. Collective.
        """
        self.enter(contestant)
        soil()
        torch.cuda.synchronize()
        self._crew.barrier()
        self.meet(contestant)
        soil()
        self.burst(contestant, calls)
        torch.cuda.synchronize()

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

    def make_ready(self, contestant: Contestant, calls: int) -> None:
        """A few calls that are not counted."""
        contestant.enter()
        for _ in range(min(calls, 3)):
            contestant.run()
        torch.cuda.synchronize()

    def enter(self, contestant: Contestant) -> None:
        """As the contestant wants it."""
        contestant.enter()

    def meet(self, contestant: Contestant) -> None:
        """One call."""
        contestant.run()

    def burst(self, contestant: Contestant, calls: int) -> None:
        """Back to back."""
        for _ in range(calls):
            contestant.run()

    def counts(self, calls: int) -> tuple[int, int]:
        """Calls of meet() and of burst()."""
        return 1, calls


class Graphed(Timer):
    """`calls` calls are captured once and replayed."""

    launches: int

    def __init__(self, crew: Crew, launches: int) -> None:
        super().__init__(crew)
        self.launches = launches
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

    def enter(self, contestant: Contestant) -> None:
        """What the contestant wants was captured."""

    def meet(self, contestant: Contestant) -> None:
        """One launch."""
        self._graphs[contestant.name].replay()

    def burst(self, contestant: Contestant, calls: int) -> None:  # noqa: ARG002 - captured
        """Launch after launch."""
        graph = self._graphs[contestant.name]
        for _ in range(self.launches):
            graph.replay()

    def counts(self, calls: int) -> tuple[int, int]:
        """Calls of meet() and of burst()."""
        return calls, calls * self.launches

    def forget(self) -> None:
        """Graphs hold memory, and pointers into buffers that may go."""
        torch.cuda.synchronize()
        self._graphs.clear()

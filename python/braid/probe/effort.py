"""How long a case is measured: samples within a share of the time, fewer when asked to stop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

LEAST_SAMPLES = 3
SAMPLE_US = 2000.0
"""A sample lasts about so long, so that starting and looking at the clock do not count."""
_MOST_CALLS = 50


def calls_for(call_us: float, most: int = _MOST_CALLS) -> int:
    """Copies or calls of one sample."""
    return int(min(max(SAMPLE_US / max(call_us, 1e-3), 1), most))


@dataclass
class Effort:
    """What is left of a run's time, shared among the cases that are left."""

    samples: int
    """Of one case, at most."""
    budget_s: float
    cases: int
    stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = monotonic
    _end_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._end_s = self.clock() + self.budget_s

    def share_s(self) -> float:
        """For the case at hand."""
        return max(self._end_s - self.clock(), 0.0) / max(self.cases, 1)

    def case_done(self) -> None:
        """One case less to share with."""
        self.cases -= 1

    def repeat(self, sample: Callable[[], float], tick: Callable[[int], None]) -> list[float]:
        """Samples until there are enough, the share is used up, or somebody asks to stop; a few
        when there is time, none when asked to stop before the first.
        """
        end_s = self.clock() + self.share_s()
        found: list[float] = []
        while len(found) < self.samples and not self.stop():
            if len(found) >= min(LEAST_SAMPLES, self.samples) and self.clock() >= end_s:
                break
            found.append(sample())
            tick(len(found))
        return found

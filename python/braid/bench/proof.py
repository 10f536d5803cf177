"""What a case's contestants left in memory, compared byte by byte: after a call, and after bursts
like the timed ones, and after the last timed one.
"""

from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.bench.deadline import Deadlines
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase, growth


class Proof:
    """Of one case. `step_timeout_s`: of every comparison."""

    def __init__(
        self, case: GpuCase, crew: Crew, data: Data, deadlines: Deadlines, step_timeout_s: float
    ) -> None:
        self._case, self._crew, self._data = case, crew, data
        self._deadlines, self._step_timeout_s = deadlines, step_timeout_s
        self.wrong: dict[str, int] = {}
        """Bytes of all ranks, by contestant."""
        self.bursts: dict[str, int] = {}
        """How many were compared, by contestant."""

    def soil(self, contestant: Contestant) -> None:
        """Makes its result none."""
        contestant.soil(self._case, self._data, self._crew.rank)

    def call(self, contestant: Contestant) -> None:
        """What one call left. Collective."""
        self.wrong[contestant.name] = self._compare(contestant, 1)
        self.bursts[contestant.name] = 0

    def burst(self, contestant: Contestant, calls: int) -> None:
        """What so many calls left. Sums in place grow with every call: they are compared up to what
        their type can tell. Collective.
        """
        grows = contestant.works_in_place and self._case.op == "all_reduce"
        factor = growth(self._case, calls) if grows else 1
        if factor is not None:
            self.wrong[contestant.name] += self._compare(contestant, factor)
            self.bursts[contestant.name] += 1

    def _compare(self, contestant: Contestant, factor: int) -> int:
        words = f"{self._case.name}, {contestant.name}: comparing"
        with self._deadlines.step(words, self._step_timeout_s):
            found = self._data.wrong_bytes(self._case, contestant.result(), factor)
            return self._crew.total(found)

"""How it is measured: check every byte, then time the contestants in turn, sample by sample.

Nothing is timed before its result was compared, and what is timed is compared too: a sample on a
soiled result before the first, and what the last one left. All ranks must decide alike, so every
decision that depends on a clock is rank 0's and is broadcast. A sample is `calls` calls between two
looks at the clock, after a barrier; its time is the slowest rank's.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

import braid
from braid.bench.host.contestants import Contestant, Gloo
from braid.cases.host import Buffers
from braid.noise import variation
from braid.record.bench import LinkUse, Samples
from braid.record.parts import RankTimes
from braid.record.ranks import of_samples

# A sample lasts about this long, so that the clock and the barrier's skew do not count.
_SAMPLE_NS = 2_000_000
_MAX_CALLS = 200
_MIN_SAMPLES = 5

Tick = Callable[[str], None]
"""Told of every step, with words for people."""


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    samples: int
    warm_up_calls: int
    checks: int
    calls: int = 0
    """Per sample; 0: as many as make it last long enough."""


@dataclass
class LinkTotals:
    """Sums over braid's samples on this rank."""

    share: dict[str, float] = field(default_factory=dict)
    moved_bytes: dict[str, int] = field(default_factory=dict)
    duration_ns: int = 0
    calls: int = 0

    def add(self, call: dict[str, Any]) -> None:
        """Adds one call's report."""
        self.duration_ns += int(call["duration_ns"])
        self.calls += 1
        for link in call["links"]:
            moved = max(link["sent_bytes"], link["received_bytes"])
            self.moved_bytes[link["name"]] = self.moved_bytes.get(link["name"], 0) + moved
            self.share[link["name"]] = link["share"]

    def wire_gbps(self, time_us: float) -> float | None:
        """All links' bytes of one call by its time; None where there is no link."""
        if not self.moved_bytes or not self.calls:
            return None
        return sum(self.moved_bytes.values()) / self.calls / time_us / 1e3

    def uses(self) -> list[LinkUse]:
        """Per link: the last share, and bytes by the time of whole calls."""
        time_ns = max(self.duration_ns, 1)
        return [
            LinkUse(name, self.share[name], moved / time_ns)
            for name, moved in self.moved_bytes.items()
        ]


def agree(comm: braid.Comm, *numbers: int) -> list[int]:
    """Rank 0's numbers on every rank."""
    values = np.array(numbers, dtype=np.int64)
    comm.broadcast(values, 0)
    return [int(value) for value in values]


def total(comm: braid.Comm, number: int) -> int:
    """The sum over ranks."""
    return int(comm.all_reduce(np.array([number], dtype=np.int64))[0])


def slowest(comm: braid.Comm, times: Sequence[float]) -> NDArray[np.float64]:
    """Element by element, the largest over ranks."""
    return comm.all_reduce(np.array(times, dtype=np.float64), "max")


def summarise(samples_us: NDArray[np.float64], by_rank: Sequence[RankTimes] = ()) -> Samples:
    """Median and percentiles, every sample kept."""

    def rounded(values: Iterable[float]) -> list[float]:
        return [round(float(value), 3) for value in values]

    p5, median, p95, p99 = rounded(np.percentile(samples_us, [5, 50, 95, 99]))
    medians = [one.p50_us for one in by_rank]
    part = variation(samples_us.tolist())
    return Samples(rounded(samples_us), median, p5, p95, p99, medians, list(by_rank), part)


def of_all(comm: braid.Comm, times: Sequence[float]) -> Samples:
    """The slowest rank's times, and what each rank's own were."""
    mine = np.array(times, dtype=np.float64)
    rows = np.asarray(comm.all_gather(mine)).reshape(comm.size, len(mine))
    return summarise(rows.max(axis=0), of_samples(rows.tolist()))


def check(comm: braid.Comm, contestant: Contestant, buffers: Buffers) -> tuple[int, float]:
    """One call on soiled buffers.

    Returns wrong bytes of all ranks, and the slowest rank's time in ns.
    """
    soil(contestant, buffers)
    contestant.enter()
    try:
        comm.barrier()
        start = perf_counter_ns()
        contestant.run()
        elapsed = perf_counter_ns() - start
    finally:
        contestant.leave()
    return total(comm, buffers.wrong_bytes()), float(slowest(comm, [elapsed])[0])


def soil(contestant: Contestant, buffers: Buffers) -> None:
    """Makes the result none; an operand that lives there is put there again."""
    buffers.soil()
    if isinstance(contestant, Gloo):
        contestant.load_operand()


def wrong_after(comm: braid.Comm, contestant: Contestant, buffers: Buffers) -> int:
    """Bytes of all ranks that the last sample left wrong. Of Gloo's sums in place nothing is said:
    they grow with every call, beyond what their type holds.
    """
    if isinstance(contestant, Gloo) and buffers.case.op == "all_reduce":
        return 0
    return total(comm, buffers.wrong_bytes())


def sample(comm: braid.Comm, contestant: Contestant, calls: int) -> float:
    """Mean time of one call on this rank, in us."""
    contestant.enter()
    try:
        comm.barrier()
        start = perf_counter_ns()
        for _ in range(calls):
            contestant.run()
        return (perf_counter_ns() - start) / calls / 1e3
    finally:
        contestant.leave()


def calls_for(call_ns: float) -> int:
    """Calls per sample for calls of this length."""
    return int(min(max(_SAMPLE_NS / max(call_ns, 1.0), 1), _MAX_CALLS))


def samples_for(budget_ns: float, round_ns: float, wanted: int) -> int:
    """As many samples as the budget pays for, at least a few."""
    return int(min(max(budget_ns / max(round_ns, 1.0), min(_MIN_SAMPLES, wanted)), wanted))


def race(
    comm: braid.Comm,
    contestants: Sequence[Contestant],
    samples: int,
    calls: int,
    tick: Tick,
    look: Callable[[Contestant], None] = lambda _: None,
) -> tuple[list[Samples], LinkTotals]:
    """Times the contestants in turn; each round starts with another one. In the last one `look` is
    called behind every sample, while its result is there.

    The first one's link use is kept too.
    """
    times: list[list[float]] = [[] for _ in contestants]
    totals = LinkTotals()
    for i in range(samples):
        for k in range(len(contestants)):
            who = (i + k) % len(contestants)
            times[who].append(sample(comm, contestants[who], calls))
            if who == 0:
                totals.add(comm.last_call())
            if i == samples - 1:
                look(contestants[who])
        tick(f"sample {i + 1} of {samples}")
    return [of_all(comm, row) for row in times], totals

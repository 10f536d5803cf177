"""How often a case is timed, and in which order: contestants in turn, sample by sample."""

from collections.abc import Callable, Sequence

from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.cases.gpu import GpuCase

_BURST_US = 2000.0  # a sample lasts about so long, so that the ranks' skew does not count
_LEAST_CALLS = 5
_LONG_US, _FEW_CALLS = 5000.0, 3
_MOST_CALLS = 20  # in place, sums grow with every call: more would leave the range of a float
_LEAST_SAMPLES = 3

Sample = Callable[[Contestant, GpuCase, int], float]


def calls_for(call_us: float) -> int:
    """Calls per sample for calls of this length."""
    least = _FEW_CALLS if call_us > _LONG_US else _LEAST_CALLS
    return int(min(max(_BURST_US / max(call_us, 1e-3), least), _MOST_CALLS))


def samples_for(left_s: float, round_s: float, wanted: int) -> int:
    """As many rounds as the time left pays for, at least a few."""
    affordable = int(left_s / max(round_s, 1e-9))
    return min(max(affordable, _LEAST_SAMPLES), wanted)


def race(
    crew: Crew,
    contestants: Sequence[Contestant],
    sample: Sample,
    case: GpuCase,
    calls: int,
    samples: int,
    must_stop: Callable[[], bool],
    tick: Callable[[int], None],
    look: Callable[[Contestant], None] = lambda _: None,
) -> list[list[float]]:
    """This rank's times of every contestant, in us. The first round warms up and does not count;
    each round starts with another contestant. Rank 0's must_stop ends it early. In the last round
    `look` is called behind every sample, while its result is there.
    """
    times: list[list[float]] = [[] for _ in contestants]
    for i in range(samples + 1):
        for k in range(len(contestants)):
            who = (i + k) % len(contestants)
            took_us = sample(contestants[who], case, calls)
            if i:
                times[who].append(took_us)
            if i == samples:
                look(contestants[who])
        if crew.agree(int(must_stop()))[0]:
            break
        if i:
            tick(i)
    return times

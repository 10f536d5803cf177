"""`braid bench p2p`: every pair, one way, both ways and latency, each in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

from braid.probe import child
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick, lanes_together
from braid.probe.lane import Lane
from braid.probe.record import Series

ONE_WAY, BOTH_WAYS, LATENCY = "one way", "both ways", "latency"
LATENCY_BYTES = 16
Probe = Callable[[int, int, "Settings", float], list[Series]]


@dataclass(frozen=True)
class Settings:
    """How a pair is measured."""

    bytes: int
    samples: int
    timeout_s: float


def jobs(
    count: int, settings: Settings, probe: Probe, end: str = "gpu", way: str = ""
) -> list[Job]:
    """A case per pair; a probe that hangs, crashes or lies is a verdict of both directions. `end`
    is what is joined, `way` what joins it where there are several.
    """
    return [_job(a, b, settings, probe, end, way) for a, b in combinations(range(count), 2)]


def _job(a: int, b: int, settings: Settings, probe: Probe, end: str, way: str) -> Job:
    def run(effort: Effort, tick: Tick) -> list[Series]:
        if effort.stop():
            return []
        outcome = child.run(probe, (a, b, settings, effort.share_s()), settings.timeout_s)
        for i in range(settings.samples):
            tick(i + 1)
        if outcome.verdict == "ok":
            found: list[Series] = outcome.value
            return found
        return [
            Series(
                f"{way} {ONE_WAY}".strip(), f"{x}>{y}", settings.bytes, None, None,
                verdict=outcome.verdict, note=outcome.why, start=x, end=y,
            )
            for x, y in ((f"{end}{a}", f"{end}{b}"), (f"{end}{b}", f"{end}{a}"))
        ]  # fmt: skip

    return Job(f"{way} {end}{a}, {end}{b}:".strip(), settings.bytes, run)


def measure(there: Lane, back: Lane, settings: Settings, budget_s: float) -> list[Series]:
    """What a child does with its two lanes."""
    names = f"{there.start_name}<>{there.end_name}"
    parts = [
        *(lanes_together(ONE_WAY, lane.name, [lane], settings.bytes) for lane in (there, back)),
        lanes_together(BOTH_WAYS, names, [there, back], settings.bytes),
        *(lanes_together(LATENCY, lane.name, [lane], LATENCY_BYTES) for lane in (there, back)),
    ]
    effort = Effort(settings.samples, budget_s, len(parts))
    found: list[Series] = []
    for part in parts:
        found += part.run(effort, lambda _: None)
        effort.case_done()
    return [_placed(one, there) for one in found]


def _placed(one: Series, there: Lane) -> Series:
    """A pair that goes both ways has its place in the matrix too; a latency has no bandwidth."""
    if one.group == BOTH_WAYS:
        return replace(one, start=there.start_name, end=there.end_name)
    return replace(one, gbps=None) if one.group == LATENCY else one


def gpu_pair(a: int, b: int, settings: Settings, budget_s: float) -> list[Series]:
    """Two GPUs."""
    from braid.probe import gpu_lane

    return measure(gpu_lane.peer(a, b), gpu_lane.peer(b, a), settings, budget_s)

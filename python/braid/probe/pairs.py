"""`braid bench p2p`: every pair, one way, both ways and latency, each in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from braid.probe import child
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick, lanes_together
from braid.probe.lane import Lane
from braid.record.probe import Series

ONE_WAY, BOTH_WAYS, LATENCY = "one way", "both ways", "latency"
LATENCY_BYTES = 16
AT_ONCE = 4
"""Pairs that open their GPUs at the same time. One after the other six took 15 s on four H200, and
28 on eight GPUs would take more than a minute.
"""
Probe = Callable[[int, int, "Settings", float], list[Series]]


@dataclass(frozen=True)
class Settings:
    """How a pair is measured."""

    bytes: int
    samples: int
    timeout_s: float


def jobs(
    count: int,
    settings: Settings,
    probe: Probe,
    end: str = "gpu",
    way: str = "",
    prepare: Callable[[int, int], None] | None = None,
) -> list[Job]:
    """A case per pair; a probe that hangs, crashes or lies is a verdict of both directions. `end`
    is what is joined, `way` what joins it where there are several. Where there is something to
    prepare, a few pairs do it at the same time, before any of them is measured.
    """
    every = list(combinations(range(count), 2))
    make = [partial(child.Child, probe, partial(prepare or _nothing, a, b)) for a, b in every]
    children = child.Children(make, AT_ONCE if prepare else 1, settings.timeout_s)
    return [_job(i, a, b, settings, children, end, way) for i, (a, b) in enumerate(every)]


def _nothing(a: int, b: int) -> None:
    """What a pair needs beforehand, if nothing else is said."""


def _job(
    case: int, a: int, b: int, settings: Settings, children: child.Children, end: str, way: str
) -> Job:
    def run(effort: Effort, tick: Tick) -> list[Series]:
        if effort.stop():
            children.close()
            return []
        asked = (a, b, settings, effort.share_s())
        outcome = children.take(case).run(asked, settings.timeout_s)
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


def open_gpus(a: int, b: int) -> None:
    """What lasts before two GPUs can be measured: the driver, a context on each, and peer access
    both ways.
    """
    import torch

    ends = [torch.ones(1, device=torch.device("cuda", gpu)) for gpu in (a, b)]
    ends[0].copy_(ends[1])
    ends[1].copy_(ends[0])
    for gpu in (a, b):
        torch.cuda.synchronize(gpu)

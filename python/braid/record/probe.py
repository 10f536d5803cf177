"""Records of `braid bench KIND`: the form braid.probe/1.

As braid.record.bench: the classes are the format, docs/probe_record.schema.json is made from them
(`python -m braid.record.probe`). Units are in the names: _us microseconds, _gbps 1e9 bytes per
second in one direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from braid import json_file
from braid.noise import variation
from braid.record.form import Form
from braid.record.parts import Host, RankTimes, check_by_rank

SCHEMA = "braid.probe/1"
_MOST = 1e15
"""Of us, and of GB/s: more is a mistake."""

Verdict = Literal["ok", "slow", "fast", "wrong data", "hang", "unsupported", "failed"]
BAD: tuple[Verdict, ...] = ("wrong data", "hang", "failed")
"""What makes a run fail."""


@dataclass(frozen=True)
class Times:
    """Times of one copy or call: each sample is the slowest lane's or rank's."""

    samples_us: list[float]
    p5_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    variation: float | None = None
    """Standard deviation by mean of the samples: above 0.05 they are noisy. None: one sample, or a
    record from before it was kept."""


@dataclass(frozen=True)
class Series:
    """One case: everything that was measured in the same way."""

    group: str
    """Cases of one group are comparable: "one way", "both ways", "latency", "h2d"."""
    case: str
    """Which one: "gpu0>gpu1", "nvlink gpu0>gpu1 while all others". With the group, its key."""
    bytes: int
    """What one copy or call moves, of one lane."""
    times: Times | None
    gbps: float | None
    """All bytes of the case (every lane's) by the median time."""
    wire_gbps: float | None = None
    """What the links carried at the least, for collectives: see docs/bench.md."""
    verdict: Verdict = "ok"
    wrong_bytes: int = 0
    note: str = ""
    start: str = ""
    """For matrices: where the bytes are from."""
    end: str = ""
    by_rank_us: dict[str, float] = field(default_factory=dict)
    """Median of every rank, or lane: who holds the others up."""
    by_rank: dict[str, RankTimes] = field(default_factory=dict)
    """The same with more about each; none in records from before it was kept."""


@dataclass(frozen=True)
class ProbeRecord:
    """One run of one kind."""

    schema: str
    kind: str
    command: str
    date: str
    """UTC, ISO 8601."""
    commit: str
    dirty: bool
    device: str
    """GPUs by name; "" between CPUs."""
    ranks: int
    """Processes that called; 0 where nobody did."""
    host: Host
    versions: dict[str, str]
    settings: dict[str, str]
    options: dict[str, str]
    """BRAID_, NCCL_ and CUDA_ variables in force."""
    series: list[Series]
    figures: dict[str, float] = field(default_factory=dict)
    """What follows from the series: ratios and parts, by name."""
    stopped: str = ""
    """Why the run ended before its last case; "" when it did not."""

    def save(self, path: Path) -> None:
        """Writes JSON, to standard output if the path is "-"."""
        json_file.save(self, path)

    @property
    def is_bad(self) -> bool:
        """Whether a byte was wrong, or a case did not come back."""
        return any(one.verdict in BAD or one.wrong_bytes for one in self.series)


def _check_numbers(one: Series, where: str) -> None:
    """ValueError for a rate or a time that nobody can have measured."""
    if one.bytes < 0:
        raise ValueError(f"{where}.bytes: asked for 0 or more, found {one.bytes}")
    found = [("gbps", one.gbps), ("wire_gbps", one.wire_gbps)]
    if one.times:
        found += [("times.samples_us", us) for us in one.times.samples_us]
        for name in ("p5_us", "p50_us", "p95_us", "p99_us"):
            found.append((f"times.{name}", getattr(one.times, name)))
    for name, value in found:
        if value is not None and not value > 0:
            raise ValueError(f"{where}.{name}: asked for a number above 0, found {value:g}")
        if value is not None and value > _MOST:
            raise ValueError(f"{where}.{name}: asked for {_MOST:g} at most, found {value:g}")


def _check(record: ProbeRecord) -> None:
    for i, one in enumerate(record.series):
        where = f"record.series[{i}]"
        _check_numbers(one, where)
        samples = len(one.times.samples_us) if one.times else 0
        check_by_rank(one.by_rank_us, one.by_rank, record.ranks, samples, where)


FORM = Form(ProbeRecord, SCHEMA, _check)
from_json, load = FORM.from_json, FORM.load


def times_of(samples_us: Sequence[float]) -> Times:
    """With percentiles; at least one sample is needed."""
    ordered = sorted(samples_us)

    def at(percent: float) -> float:
        place = percent / 100 * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below), 3)

    return Times(
        [round(x, 3) for x in samples_us], at(5), at(50), at(95), at(99), variation(samples_us)
    )


def gbps_of(nbytes: float, us: float) -> float:
    """Bandwidth, four digits after the point."""
    return round(nbytes / max(us, 1e-6) / 1e3, 4)


if __name__ == "__main__":
    FORM.print_schema()

"""Records of collectives between CPUs: the form braid.bench/1.

The classes below are the format; docs/record.schema.json is generated from them
(`python -m braid.record.bench`), and from_json() checks against them, so the three cannot differ.
Units are in the names: _us microseconds, _gbps 1e9 bytes per second.
"""

from dataclasses import dataclass, field
from pathlib import Path

from braid import json_file
from braid.record.form import Form
from braid.record.parts import Host, RankTimes, check_by_rank

SCHEMA = "braid.bench/1"


@dataclass(frozen=True)
class Versions:
    """What was running. None: not installed, or not used."""

    braid: str
    python: str
    numpy: str
    torch: str | None
    build_type: str
    reduce_isa: str


@dataclass(frozen=True)
class FabricLink:
    """A link as the run knew it at its start."""

    name: str
    kind: str
    rate_gbps: float
    latency_ns: int
    source: str


@dataclass(frozen=True)
class LinkUse:
    """What one link carried of one result, as rank 0 saw it."""

    name: str
    share: float
    """Of the bytes, by the plan: 0 to 1."""
    rate_gbps: float
    """Bytes through this link (the larger direction) by the whole call's time."""


@dataclass(frozen=True)
class Samples:
    """Times of one contestant.

    A sample is the slowest rank's time for one call, or the mean of calls_per_sample.
    """

    samples_us: list[float]
    median_us: float
    p5_us: float
    p95_us: float
    p99_us: float | None = None
    """None in records from before it was kept."""
    by_rank_us: list[float] = field(default_factory=list)
    """Median of every rank's own times, in rank order: who holds the others up."""
    by_rank: list[RankTimes] = field(default_factory=list)
    """The same with more about each; none in records from before it was kept."""
    variation: float | None = None
    """Standard deviation by mean of the samples: above 0.05 they are noisy. None: one sample, or a
    record from before it was kept."""


@dataclass(frozen=True)
class Baseline:
    """What braid was compared with, measured in the same processes, sample by sample in turn with
    braid.
    """

    name: str
    times: Samples
    wrong_bytes: int


@dataclass(frozen=True)
class Result:
    """One operation at one size."""

    op: str
    bytes: int
    """As nccl-tests counts: the buffer for all_reduce and broadcast, the sum over ranks for the
    others.
    """
    dtype: str
    redop: str
    calls_per_sample: int
    warm_up_calls: int
    times: Samples
    algbw_gbps: float
    busbw_gbps: float
    checked_bytes: int
    """Bytes compared, all ranks together: in calls before timing, after a sample on a soiled result
    and after the last one.
    """
    wrong_bytes: int
    links: list[LinkUse]
    baseline: Baseline | None
    ratio: float | None
    """Median time of the baseline by the median time of braid: above 1, braid is faster."""
    wire_gbps: float | None = None
    """What rank 0's links carried in the busier direction, by the median time: counted, not made
    of a formula. None: no link, or a record from before it was kept.
    """
    root: int | None = None
    """Broadcast's. None: another operation, or a record from before it was kept: the last rank."""


@dataclass(frozen=True)
class Record:
    """One run of `braid bench`."""

    schema: str
    command: str
    date: str
    """UTC, ISO 8601."""
    commit: str
    """Of the checkout that the command ran in; "unknown" outside of one."""
    dirty: bool
    ranks: int
    paced: bool
    """True when links were slowed down on purpose; every rate is then the experiment's, not the
    machine's.
    """
    fabric_hash: str
    """Of the links and devices; the key of the tuning cache."""
    fabric: list[FabricLink]
    options: dict[str, str]
    """BRAID_ options that differ from their defaults, the job token left out."""
    host: Host
    versions: Versions
    results: list[Result]
    balance_log: list[str] = field(default_factory=list)
    stopped: str = ""
    """Why the run ended before its last case; "" when it did not."""

    def save(self, path: Path) -> None:
        """Writes JSON, to standard output if the path is "-"."""
        json_file.save(self, path)


def _check(record: Record) -> None:
    for i, result in enumerate(record.results):
        where = f"record.results[{i}]"
        _check_times(result.times, record.ranks, f"{where}.times")
        if result.baseline:
            _check_times(result.baseline.times, record.ranks, f"{where}.baseline.times")


def _check_times(times: Samples, ranks: int, where: str) -> None:
    check_by_rank(dict(enumerate(times.by_rank_us)), dict(enumerate(times.by_rank)), ranks,
                  len(times.samples_us), where)  # fmt: skip


FORM = Form(Record, SCHEMA, _check)
from_json, load = FORM.from_json, FORM.load


if __name__ == "__main__":
    FORM.print_schema()

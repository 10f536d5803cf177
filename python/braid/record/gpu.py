"""Records of GPU runs: the form braid.gpu/2.

As braid.record.bench: the classes are the format, docs/gpu_record.schema.json is made from them
(`python -m braid.record.gpu`). Units are in the names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from braid import json_file
from braid.noise import variation
from braid.record.form import Form
from braid.record.parts import Host, RankTimes, check_by_rank

SCHEMA = "braid.gpu/2"


@dataclass(frozen=True)
class Run:
    """One contestant in one case."""

    who: str
    family: str
    """braid, nccl (torch's defaults), nccl-best (other settings), symm (torch's symmetric memory)
    or mscclpp."""
    samples_us: list[float]
    """The slowest rank's mean time of a call, one for every sample."""
    median_us: float
    p5_us: float
    p95_us: float
    busbw_gbps: float
    wrong: int
    """Bytes of all ranks that differed: in a checked call before timing, and in bursts."""
    p99_us: float | None = None
    by_rank_us: list[float] = field(default_factory=list)
    """Median of every rank's own times, in rank order: who holds the others up."""
    by_rank: list[RankTimes] = field(default_factory=list)
    """The same with more about each; none in records from before it was kept."""
    algbw_gbps: float | None = None
    """total_bytes by the median; None in records from before it was kept, as the next."""
    wire_gbps: float | None = None
    """What a GPU's links carried in one direction, at the least; below busbw_gbps where NVSwitch
    may have added."""
    variation: float | None = None
    """Standard deviation by mean of the samples: above 0.05 they are noisy. None: one sample, or a
    record from before it was kept."""
    bursts: int | None = None
    """How many bursts of calls were compared as well: one like the timed ones, on a soiled result,
    and the last timed one. Fewer where sums in place outgrow their type. None: a record from before
    any was."""


@dataclass(frozen=True)
class GpuResult:
    """One operation at one size."""

    op: str
    bytes: int
    """Of the rank's own part: see GpuRecord.sizes."""
    total_bytes: int
    """As nccl-tests counts."""
    dtype: str
    mode: str
    """eager or graph."""
    calls_per_sample: int
    host_share: float | None
    """The part of it that braid sent over the host link; None: not known."""
    runs: list[Run]
    absent: dict[str, str]
    """Who did not take part, and why."""
    path: str = ""
    """How braid moved it: packets, lines, direct (one kernel's stores), copy engines; "" if not
    known, as in records from before it was kept."""
    rdma_share: float | None = None
    """The part of it that went through a NIC; None: not known, as in records from before."""
    root: int | None = None
    """Broadcast's. None: another operation, or a record from before it was kept: the last rank."""
    launches: int | None = None
    """Of the graph in a sample, each of calls_per_sample calls. None: eager, or a record from
    before it was kept: 2."""

    def run_of(self, who: str) -> Run | None:
        """A contestant's run."""
        return next((run for run in self.runs if run.who == who), None)


@dataclass(frozen=True)
class Repeats:
    """Calls of one sum whose bits were compared with the first one's."""

    what: str
    calls: int
    different: int


@dataclass(frozen=True)
class GpuRecord:
    """One run on the GPUs of one machine."""

    schema: str
    command: str
    date: str
    """UTC, ISO 8601."""
    commit: str
    dirty: bool
    gpu: str
    driver: str
    cuda: str
    torch: str
    nccl: str
    braid: str
    host: Host
    ranks: int
    sizes: str
    """What `bytes` means."""
    settings: dict[str, str]
    """How NCCL's other settings were made: contestant and words."""
    options: dict[str, str]
    """BRAID_, NCCL_ and TORCH_SYMM_MEM variables in force."""
    results: list[GpuResult]
    repeats: list[Repeats] = field(default_factory=list)
    blocks: dict[str, int] = field(default_factory=dict)
    """Most thread blocks on a GPU at once, by operation: as many SMs are busy at the most. Of the
    largest case, as torch's profiler saw it.
    """
    stopped: str = ""
    """Why the run ended before its last case; "" when it did not."""

    def save(self, path: Path) -> None:
        """Writes JSON, to standard output if the path is "-"."""
        json_file.save(self, path)


def _check(record: GpuRecord) -> None:
    for i, result in enumerate(record.results):
        for k, run in enumerate(result.runs):
            check_by_rank(
                dict(enumerate(run.by_rank_us)), dict(enumerate(run.by_rank)), record.ranks,
                len(run.samples_us), f"record.results[{i}].runs[{k}]",
            )  # fmt: skip


FORM = Form(GpuRecord, SCHEMA, _check)
from_json, load = FORM.from_json, FORM.load


def make_run(
    who: str,
    family: str,
    samples_us: list[float],
    busbw_at: Callable[[float], float],
    wrong: int,
    by_rank: Sequence[RankTimes] = (),
    bursts: int | None = None,
) -> Run:
    """A run with its statistics; busbw_at makes GB/s of a time."""
    p5, middle, p95, p99 = (round(float(x), 3) for x in np.percentile(samples_us, [5, 50, 95, 99]))
    return Run(
        who=who,
        family=family,
        samples_us=[round(x, 3) for x in samples_us],
        median_us=middle,
        p5_us=p5,
        p95_us=p95,
        busbw_gbps=round(busbw_at(middle), 3),
        wrong=wrong,
        p99_us=p99,
        by_rank_us=[one.p50_us for one in by_rank],
        by_rank=list(by_rank),
        variation=variation(samples_us),
        bursts=bursts,
    )


if __name__ == "__main__":
    FORM.print_schema()

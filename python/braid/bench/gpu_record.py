"""Records of GPU runs: the form braid.gpu/2, and what is read of braid.gpu/1.

As braid.record: the classes are the format. Units are in the names.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from braid.record import Host
from braid.typed_json import build

SCHEMA = "braid.gpu/2"
OLD_SCHEMA = "braid.gpu/1"


@dataclass(frozen=True)
class Run:
    """One contestant in one case."""

    who: str
    family: str
    """braid, nccl (torch's defaults), nccl-best (other settings) or symm (torch's symmetric
    memory)."""
    samples_us: list[float]
    """The slowest rank's mean time of a call, one for every sample."""
    median_us: float
    p5_us: float
    p95_us: float
    busbw_gbps: float
    wrong: int
    """Bytes of all ranks that differed, in a checked call before timing."""


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
    """Of a block: what tuning gave to the host link. None: too small for it, or not known."""
    runs: list[Run]
    absent: dict[str, str]
    """Who did not take part, and why."""

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
        """Writes JSON; a reader never sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(path.suffix + ".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def from_json(document: Any) -> GpuRecord:  # noqa: ANN401 - what json.loads gives
    """Checks a parsed document. ValueError names the place that does not fit."""
    record: GpuRecord = build(GpuRecord, document, "record")
    if record.schema != SCHEMA:
        raise ValueError(f"record.schema: asked for {SCHEMA}, found {record.schema}")
    return record


def load(path: Path) -> GpuRecord:
    """Reads and checks a record."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))


def make_run(who: str, family: str, samples_us: list[float], busbw_at: Any, wrong: int) -> Run:  # noqa: ANN401
    """A run with its statistics; busbw_at makes GB/s of a time."""
    p5, middle, p95 = (float(x) for x in np.percentile(samples_us, [5, 50, 95]))
    rounded = [round(x, 3) for x in samples_us]
    return Run(
        who, family, rounded, round(middle, 3), round(p5, 3), round(p95, 3),
        round(float(busbw_at(middle)), 3), wrong,
    )  # fmt: skip


Key = tuple[str, int, str]
"""op, bytes, mode."""


def medians(document: Any) -> dict[Key, dict[str, float]]:  # noqa: ANN401
    """Median times by case and contestant, of records of both forms. The old form does not say
    which calls were captured; its command does.
    """
    found: dict[Key, dict[str, float]] = {}
    if document["schema"] == OLD_SCHEMA:
        mode = "graph" if "--graph" in document["command"] else "eager"
        for row in document["results"]:
            case = found.setdefault((row["op"], row["bytes"], mode), {})
            case[row["who"]] = median(row["samples_us"])
        return found
    for result in from_json(document).results:
        key = (result.op, result.bytes, result.mode)
        found[key] = {run.who: run.median_us for run in _right(result.runs)}
    return found


def _right(runs: Iterable[Run]) -> list[Run]:
    """Runs without a wrong byte: others have no time worth a word."""
    return [run for run in runs if not run.wrong]

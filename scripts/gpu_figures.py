"""What the records of GPUs hold: by rank count, with NCCL's windows, as rows of the figures.

Used by make_figures.py, gpu_tables.py and make_nccl_docs.py. For every rank count the suite's
record, records/flexlink_N.json, where it is there; else gpu_large_N.json and gpu_small_N.json.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import record_notes
from record_notes import RECORDS, load

from braid.bench import curves
from braid.bench.figure import NOT_MEASURED, Row
from braid.bench.flexlink_rows import rows
from braid.bench.verdict import judge
from braid.ratio import ratio_words
from braid.record import old_gpu as old_gpu_record
from braid.record.gpu import GpuRecord, GpuResult, Run
from braid.sizes import format_size
from braid.topo.tables import model_known

SHOWN_OPS = ("all_gather", "all_reduce")
"""On the plot of the first screen."""


OTHERS = ("h100_2",)
"""Runs of the suite on other machines than those of the tables: records flexlink_NAME.json."""


def load_gpu(name: str) -> GpuRecord:
    """One file."""
    document: Any = json.loads((RECORDS / name).read_text(encoding="utf-8"))
    return old_gpu_record.read(document)


def names_of(ranks: int) -> list[str]:
    """The files that hold the measurements of so many GPUs."""
    if (RECORDS / f"flexlink_{ranks}.json").exists():
        return [f"flexlink_{ranks}.json"]
    pair = [f"gpu_large_{ranks}.json", f"gpu_small_{ranks}.json"]
    return pair if all((RECORDS / name).exists() for name in pair) else []


def record_of(ranks: int) -> GpuRecord:
    """One record of all of them."""
    first, *more = [load_gpu(name) for name in names_of(ranks)]
    return replace(first, results=[*first.results, *(r for other in more for r in other.results)])


def _held(ranks: int) -> GpuRecord | None:
    name = f"flexlink_{ranks}_held.json"
    return load_gpu(name) if (RECORDS / name).exists() else None


def all_ranks() -> list[int]:
    """The rank counts that have records."""
    return [ranks for ranks in range(2, 9) if names_of(ranks)]


def plot_path(ranks: int) -> str:
    """Where the picture is, from README.md."""
    return f"docs/results/gpu_{ranks}.svg"


def windows_of(ranks: int) -> str:
    """The record of nccl-tests in NCCL's symmetric windows; "" where there is none."""
    name = f"nccl_tests_windows_{ranks}.json"
    return name if (RECORDS / name).exists() else ""


def beside_windows(record: GpuRecord) -> GpuRecord:
    """With NCCL's all_to_all in its symmetric windows, which the suite's records leave out: by
    nccl-tests, in a run of its own.
    """
    name = windows_of(record.ranks)
    if not name:
        return record
    found = {
        one["bytes"]: one["nccl_us"]
        for one in load(name)["ratios"]
        if (one["program"], one["place"], one["is_graph"]) == ("alltoall", "nccl", False)
    }
    results = [
        replace(one, runs=[*one.runs, _in_windows(found[one.total_bytes], one)])
        if (one.op, one.mode) == ("all_to_all", "eager") and one.total_bytes in found
        else one
        for one in record.results
    ]
    return replace(record, results=results)


def _in_windows(us: float, result: GpuResult) -> Run:
    busbw = result.total_bytes / us / 1e3
    return Run("nccl in windows", "nccl-best", [us], us, us, us, busbw, 0)


def _unregistered(result: GpuResult) -> GpuResult:
    """The same case with braid's results in memory that nobody registered."""
    runs = [run for run in result.runs if run.who != "braid"]
    return replace(
        result,
        runs=[
            replace(run, who="braid") if run.who == "braid unregistered" else run for run in runs
        ],
    )


def unregistered(record: GpuRecord) -> GpuRecord:
    """Of the cases where such results were measured, those."""
    there = [one for one in record.results if one.run_of("braid unregistered")]
    return replace(record, results=[_unregistered(one) for one in there])


def _has_suite(ranks: int) -> bool:
    return names_of(ranks) == [f"flexlink_{ranks}.json"]


def suites() -> list[int]:
    """The rank counts that have the suite's."""
    return [ranks for ranks in all_ranks() if _has_suite(ranks)] or all_ranks()


def since(text: str) -> str:
    """That the code changed since these records, or ""; `text` is the page as it is."""
    return record_notes.since_line(
        {f"{ranks} GPUs": record_of(ranks).commit for ranks in suites()}, text
    )


COUNTED = ("faster", "equal", "slower", "unclear")


def _counted(cases: list[tuple[float, str, str]]) -> str:
    """How many were what, and the least."""
    words = [word for _, word, _ in cases]
    counts = ", ".join(f"{words.count(each)} {each}" for each in COUNTED)
    least, _, case = min(cases)
    return f"{counts}; {ratio_words(least)} at the least ({case})"


def _cases(record: GpuRecord, name: str) -> list[tuple[float, str, str]]:
    """Ratios of that name, what they are called, and of which cases."""
    found = [(judge(one), one) for one in record.results]
    return [
        (ratio, judged.words(name), f"{one.op} {format_size(one.bytes)}")
        for judged, one in found
        if (ratio := judged.ratio(name)) is not None
    ]


def short_rows() -> Iterator[tuple[str, str, str]]:
    """Of every rank count a few: work, measured, record."""
    for ranks in suites():
        record = record_of(ranks)
        name = ", ".join(names_of(ranks))
        who = f"{ranks} GPUs"
        cases = _cases(record, "to_nccl")
        low, high = (format_size(f(one.bytes for one in record.results)) for f in (min, max))
        what = f"{who}, {len(cases)} cases of five operations from {low} to {high}, registered"
        yield f"{what}, against NCCL's default", _counted(cases), name
        windows = windows_of(ranks)
        beside = ", all_to_all in its windows too" if windows else ""
        yield (
            f"{who}, the same against the fastest of NCCL's settings that ran{beside}",
            _counted(_cases(beside_windows(record), "to_nccl_best")),
            ", ".join(filter(None, (name, windows))),
        )
        yield (
            f"{who}, the same against those and torch's symmetric memory",
            _counted(_cases(beside_windows(record), "to_others")),
            ", ".join(filter(None, (name, windows))),
        )
        if others := _cases(unregistered(record), "to_nccl"):
            what = f"{who}, {len(others)} cases of 256 MiB, not registered, against NCCL's default"
            yield what, _counted(others), name


def figure_rows() -> Iterator[tuple[Row, str]]:
    """The suite's figures, with where they were measured in `work`, and the record."""
    for ranks in all_ranks():
        more = "" if _has_suite(ranks) else f", braid of commit {record_of(ranks).commit[:7]}"
        held = f"flexlink_{ranks}_held.json"
        yield from _placed(record_of(ranks), _held(ranks), more, ", ".join(names_of(ranks)), held)
    for name in OTHERS:
        whole, held = f"flexlink_{name}.json", f"flexlink_{name}_held.json"
        yield from _placed(load_gpu(whole), load_gpu(held), "", whole, held)


def _placed(
    record: GpuRecord, capped: GpuRecord | None, more: str, whole: str, held: str
) -> Iterator[tuple[Row, str]]:
    """What was measured of a record and of its held run, by their files' names."""
    where = f"{record.ranks} x {record.gpu.removeprefix('NVIDIA ')}, NCCL {record.nccl}{more}"
    for row in rows(record, capped):
        if not row.reached.startswith(NOT_MEASURED):
            of = held if "HELD" in row.work else whole
            yield replace(row, work=f"{row.work}; {where}"), of


def draw() -> None:
    """The plot that README.md shows."""
    ranks = suites()[-1]
    record = record_of(ranks)
    spec = model_known(record.gpu)
    total = spec.gbps_each * spec.links if spec else 0.0
    level = (f"{spec.name}, specified: {total:g}", total) if spec else None
    curves.save(record, RECORDS.parent / plot_path(ranks), SHOWN_OPS, level)

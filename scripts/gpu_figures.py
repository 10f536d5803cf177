"""The GPU part of README.md: a table and a plot for its first screen, and rows of the figures.

Used by make_figures.py. For every rank count the suite's record, records/flexlink_N.json, where it
is there; else records/gpu_large_N.json and gpu_small_N.json.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from braid.bench import curves, flexlink, old_gpu_record
from braid.bench.figure import NOT_MEASURED, find
from braid.bench.flexlink_rows import rows
from braid.bench.gpu_record import GpuRecord
from braid.bench.verdict import judge
from braid.cli.cases import OPS

RECORDS = Path(__file__).resolve().parent.parent / "records"
SMALL = 8 << 10


def _load(name: str) -> GpuRecord:
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
    first, *more = [_load(name) for name in names_of(ranks)]
    return replace(first, results=[*first.results, *(r for other in more for r in other.results)])


def _held(ranks: int) -> GpuRecord | None:
    name = f"flexlink_{ranks}_held.json"
    return _load(name) if (RECORDS / name).exists() else None


def all_ranks() -> list[int]:
    """The rank counts that have records."""
    return [ranks for ranks in range(2, 9) if names_of(ranks)]


def plot_path(ranks: int) -> str:
    """Where the picture is, from README.md."""
    return f"docs/results/gpu_{ranks}.svg"


def _cell(record: GpuRecord, op: str, nbytes: int, mode: str) -> str:
    result = find(record, op, nbytes, mode)
    if result is None:
        return "-"
    verdict = judge(result)
    if verdict.to_nccl is None:
        return "-"
    others = {run.family for run in result.runs} - {"braid", "nccl"}
    best = f" ({verdict.to_others:.2f}x)" if others and verdict.to_others else ""
    return f"{verdict.to_nccl:.2f}x{best}"


def _has_suite(ranks: int) -> bool:
    return names_of(ranks) == [f"flexlink_{ranks}.json"]


def _ratios(record: GpuRecord, nbytes: int, mode: str) -> list[float]:
    found = (find(record, op, nbytes, mode) for op in OPS)
    ratios = (judge(result).to_nccl for result in found if result is not None)
    return [ratio for ratio in ratios if ratio is not None]


def _earlier(ranks: int) -> str:
    """What an earlier version gave where the present one was not measured."""
    record = record_of(ranks)
    large, small = _ratios(record, flexlink.LARGE, "eager"), _ratios(record, SMALL, "graph")
    links = " and ".join(f"[{name}](records/{name})" for name in names_of(ranks))
    return (
        f"On {ranks} GPUs the present version has not been measured. That of commit"
        f" {record.commit[:7]} had {min(large):.2f}x to {max(large):.2f}x at 256 MiB, and"
        f" {min(small):.2f}x to {max(small):.2f}x at 8 KiB in CUDA graphs: {links}."
    )


def first_screen() -> str:
    """Table and plot as Markdown."""
    counts = [ranks for ranks in all_ranks() if _has_suite(ranks)] or all_ranks()
    records = {ranks: record_of(ranks) for ranks in counts}
    last = records[counts[-1]]
    has_others = any(
        run.family not in ("braid", "nccl")
        for record in records.values()
        for result in record.results
        for run in result.runs
    )
    multicast = " NVLink multicast off," if last.options.get("NCCL_NVLS_ENABLE") == "0" else ""
    links = ", ".join(
        f"[{name}](records/{name}) of commit {_load(name).commit[:7]}"
        for ranks in counts
        for name in names_of(ranks)
    )
    best = (
        " In brackets against the fastest of NCCL's settings and torch's symmetric memory."
        if has_others
        else ""
    )
    lines = [
        f"On {', '.join(f'{ranks} x {records[ranks].gpu}' for ranks in counts)} of one virtual"
        f" machine,{multicast} {last.results[0].dtype}: the time of NCCL {last.nccl} as torch"
        f" {last.torch} sets it up by braid's, measured in turn in one run; above 1 braid is"
        f" faster. Sizes are bytes per rank.{best} Records: {links}.",
        "",
        "| | " + " | ".join(f"{ranks} GPUs" for ranks in counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    work = [(f"{op} 256 MiB", op, flexlink.LARGE, "eager") for op in OPS]
    work += [(f"{op} 8 KiB, CUDA graph", op, SMALL, "graph") for op in flexlink.SMALL_OPS]
    for words, op, nbytes, mode in work:
        cells = [_cell(records[ranks], op, nbytes, mode) for ranks in counts]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    for ranks in set(all_ranks()) - set(counts):
        lines += ["", _earlier(ranks)]
    lines += ["", f"![Bus bandwidth by size, braid and NCCL]({plot_path(counts[-1])})"]
    return "\n".join(lines)


def figure_rows() -> Iterator[tuple[str, str, str, str]]:
    """The suite's figures: work, must reach, measured, record."""
    for ranks in all_ranks():
        record = record_of(ranks)
        where = f"{ranks} x {record.gpu.removeprefix('NVIDIA ')}, NCCL {record.nccl}"
        if not _has_suite(ranks):
            where += f", braid of commit {record.commit[:7]}"
        for row in rows(record, _held(ranks)):
            if not row.reached.startswith(NOT_MEASURED):
                yield f"{row.work}; {where}", row.required, row.reached, ", ".join(names_of(ranks))


def draw() -> None:
    """The plots of all rank counts."""
    for ranks in all_ranks():
        curves.save(record_of(ranks), RECORDS.parent / plot_path(ranks))

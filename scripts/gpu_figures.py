"""The GPU part of README.md: a table and a plot for its first screen, and rows of the figures.

Used by make_figures.py. For every rank count the suite's record, records/flexlink_N.json, where it
is there; else records/gpu_large_N.json and gpu_small_N.json.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import record_notes
from record_notes import RECORDS, link

from braid.bench import curves, flexlink
from braid.bench.figure import NOT_MEASURED, Row, find
from braid.bench.flexlink_rows import rows
from braid.bench.verdict import judge
from braid.cases.operations import OPS
from braid.ratio import ratio_words, verdict
from braid.record import old_gpu as old_gpu_record
from braid.record.gpu import GpuRecord, GpuResult
from braid.sizes import format_size

SMALL = 8 << 10
WITHOUT_NVLS = (
    "**NCCL ran with `NCCL_NVLS_ENABLE=0`**, without NVLink SHARP. With it NCCL's all-reduce among"
    " four GPUs or more is faster than what is compared here; braid was never measured beside it."
)


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
    judged = judge(result)
    if judged.to_nccl is None:
        return "-"
    others = {run.family for run in result.runs} - {"braid", "nccl"}
    best = f" ({ratio_words(judged.to_others)})" if others and judged.to_others else ""
    return f"{ratio_words(judged.to_nccl)}{best}"


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


def _ratios(record: GpuRecord, nbytes: int, mode: str) -> list[float]:
    found = (find(record, op, nbytes, mode) for op in OPS)
    ratios = (judge(result).to_nccl for result in found if result is not None)
    return [ratio for ratio in ratios if ratio is not None]


def _earlier(ranks: int) -> str:
    """What an earlier version gave where the present one was not measured."""
    record = record_of(ranks)
    large, small = _ratios(record, flexlink.LARGE, "eager"), _ratios(record, SMALL, "graph")
    links = " and ".join(map(link, names_of(ranks)))
    return (
        f"On {ranks} GPUs the present version has not been measured. That of commit"
        f" {record.commit[:7]} had {ratio_words(min(large))} to {ratio_words(max(large))} at"
        f" 256 MiB, and {ratio_words(min(small))} to {ratio_words(max(small))} at 8 KiB in CUDA"
        f" graphs: {links}."
    )


def _suites() -> list[int]:
    return [ranks for ranks in all_ranks() if _has_suite(ranks)] or all_ranks()


def since(text: str) -> str:
    """That the code changed since these records, or ""; `text` is the page as it is."""
    return record_notes.since_line(
        {f"{ranks} GPUs": record_of(ranks).commit for ranks in _suites()}, text
    )


def _introduction(records: dict[int, GpuRecord]) -> Iterator[str]:
    last = records[max(records)]
    has_others = any(
        run.family not in ("braid", "nccl")
        for record in records.values()
        for result in record.results
        for run in result.runs
    )
    links = ", ".join(
        f"{link(name)} of commit {_load(name).commit[:7]}"
        for ranks in records
        for name in names_of(ranks)
    )
    yield (
        "NCCL's time by braid's: **above 1 braid is faster, below 1 it is slower.** NCCL"
        f" {last.nccl} as torch {last.torch} sets it up, both measured in turn in one run,"
        f" {', '.join(str(ranks) for ranks in records)} x {last.gpu} of one virtual machine,"
        f" {last.results[0].dtype}, sizes in bytes per rank."
        + (
            " In brackets: against the fastest of NCCL's settings and torch's symmetric memory."
            if has_others
            else ""
        )
    )
    yield ""
    yield (
        "- *Registered*: the result lies in memory that was given to `comm.register()`, or in a"
        " symmetric window of NCCL's. *Not registered*: it lies anywhere, as in a program that was"
        " not changed for it."
    )
    if all(one.options.get("NCCL_NVLS_ENABLE") == "0" for one in records.values()):
        yield f"- {WITHOUT_NVLS}"
    yield f"- Records: {links}."


def first_screen(text: str) -> str:
    """Table and plot as Markdown; `text` is the page as it is."""
    counts = _suites()
    records = {ranks: record_of(ranks) for ranks in counts}
    lines = [
        *_introduction(records),
        "",
        "| | " + " | ".join(f"{ranks} GPUs" for ranks in counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    there = {ranks: unregistered(record) for ranks, record in records.items()}
    work = []
    for op in OPS:
        work.append((f"{op} 256 MiB, registered", records, op, flexlink.LARGE, "eager"))
        if any(find(one, op, flexlink.LARGE, "eager") for one in there.values()):
            work.append((f"{op} 256 MiB, not registered", there, op, flexlink.LARGE, "eager"))
    work += [(f"{op} 8 KiB, CUDA graph", records, op, SMALL, "graph") for op in flexlink.SMALL_OPS]
    for words, of, op, nbytes, mode in work:
        cells = [_cell(of[ranks], op, nbytes, mode) for ranks in counts]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    if said := since(text):
        lines += ["", said]
    lines += [
        "",
        f"No gain at 256 MiB (equal within 2 %, or slower): {'; '.join(_no_gain(records))}.",
    ]
    for ranks in set(all_ranks()) - set(counts):
        lines += ["", _earlier(ranks)]
    lines += ["", f"![Bus bandwidth by size, braid and NCCL]({plot_path(counts[-1])})"]
    return "\n".join(lines)


def _no_gain(records: dict[int, GpuRecord]) -> Iterator[str]:
    """Of every rank count the operations that are no faster than NCCL's default."""
    for ranks, record in records.items():
        for how, of in (("registered", record), ("not registered", unregistered(record))):
            found = {op: find(of, op, flexlink.LARGE, "eager") for op in OPS}
            ratios = {op: judge(one).to_nccl for op, one in found.items() if one}
            named = [op for op, ratio in ratios.items() if ratio and verdict(ratio) != "faster"]
            if named:
                yield f"on {ranks} GPUs {how}: {', '.join(named)}"


def _counted(ratios: list[tuple[float, str]]) -> str:
    """How many were faster, equal and slower, and the least."""
    verdicts = [verdict(ratio) for ratio, _ in ratios]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in ("faster", "equal", "slower"))
    least, case = min(ratios)
    return f"{counts}; {ratio_words(least)} at the least ({case})"


def _cases(record: GpuRecord, *, best: bool) -> list[tuple[float, str]]:
    found = [(judge(one), one) for one in record.results]
    return [
        (ratio, f"{one.op} {format_size(one.bytes)}")
        for judged, one in found
        if (ratio := judged.to_nccl_best if best else judged.to_nccl) is not None
    ]


def short_rows() -> Iterator[tuple[str, str, str]]:
    """Of every rank count a few: work, measured, record."""
    for ranks in _suites():
        record = record_of(ranks)
        name = ", ".join(names_of(ranks))
        who = f"{ranks} GPUs"
        cases = _cases(record, best=False)
        low, high = (format_size(f(one.bytes for one in record.results)) for f in (min, max))
        what = f"{who}, {len(cases)} cases of five operations from {low} to {high}, registered"
        yield f"{what}, against NCCL's default", _counted(cases), name
        yield (
            f"{who}, the same against NCCL's best setting",
            _counted(_cases(record, best=True)),
            name,
        )
        if others := _cases(unregistered(record), best=False):
            what = f"{who}, {len(others)} cases of 256 MiB, not registered, against NCCL's default"
            yield what, _counted(others), name


def figure_rows() -> Iterator[tuple[Row, str]]:
    """The suite's figures, with where they were measured in `work`, and the record."""
    for ranks in all_ranks():
        record = record_of(ranks)
        where = f"{ranks} x {record.gpu.removeprefix('NVIDIA ')}, NCCL {record.nccl}"
        if not _has_suite(ranks):
            where += f", braid of commit {record.commit[:7]}"
        for row in rows(record, _held(ranks)):
            if not row.reached.startswith(NOT_MEASURED):
                yield replace(row, work=f"{row.work}; {where}"), _of(ranks, row)


def _of(ranks: int, row: Row) -> str:
    is_held = "HELD" in row.work
    return f"flexlink_{ranks}_held.json" if is_held else ", ".join(names_of(ranks))


def draw() -> None:
    """The plots of all rank counts."""
    for ranks in all_ranks():
        curves.save(record_of(ranks), RECORDS.parent / plot_path(ranks))

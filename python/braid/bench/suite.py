"""`braid bench --suite flexlink`: a launch for every rank count, then the figures as a table."""

import os
import sys
from pathlib import Path

from rich.table import Table

from braid import json_file
from braid.bench import flexlink, gpu_table
from braid.bench.command import Asked, Refused, library_of, start
from braid.bench.figure import Row
from braid.bench.flexlink_rows import rows
from braid.bench.request import Request, parse_groups
from braid.bench.verdict import wrong_bytes
from braid.record import gpu as gpu_record
from braid.record.gpu import GpuRecord
from braid.terminal.console import console

SUITES = ("flexlink",)
LINK_CAP = "BRAID_LINK_CAP"
_BUDGET_S = 150.0
_CAPPED_BUDGET_S = 10.0
_FOLDER = Path("build/bench")


def check_suite(name: str) -> None:
    """One that there is."""
    if name not in SUITES:
        raise Refused(f"--suite: '{name}' is no suite; braid has {', '.join(SUITES)}")


def request_of(asked: Asked) -> Request:
    """What the ranks of one launch measure."""
    check_suite(asked.suite)
    if asked.calls or asked.launches is not None or asked.root is not None:
        raise Refused("--suite: its figures are for its own calls; leave -m, -G and -r out")
    try:
        baselines = parse_groups(asked.baselines, "none", has_mscclpp=asked.mscclpp is not None)
    except ValueError as error:
        raise Refused(str(error)) from None
    is_capped = bool(os.environ.get(LINK_CAP))
    return Request(
        tasks=flexlink.capped_tasks() if is_capped else flexlink.tasks(baselines),
        dtype=asked.dtype or "bfloat16",
        samples=asked.samples,
        time_budget_s=asked.time_budget_s or _BUDGET_S,
        repeats=0 if is_capped else flexlink.REPEATS,
        blocks_of=() if is_capped else flexlink.SMS_OPS,
        blocks_bytes=flexlink.LARGE,
        options={"links": "shm", **asked.options},
        json_path=asked.json_path,
        svg_path=None if asked.quiet else asked.svg_path,
        commit=asked.commit,
        mscclpp="" if is_capped else library_of(asked),
        quiet=asked.quiet,
    )


def rank_counts(asked_ranks: int, count: int) -> list[int]:
    """How many GPUs each launch uses."""
    if asked_ranks:
        return [asked_ranks]
    return [n for n in flexlink.RANK_COUNTS if n <= count]


def beside(path: Path, ranks: int, suffix: str = "") -> Path:
    """records/flexlink.json: records/flexlink_4.json."""
    return path.with_name(f"{path.stem}_{ranks}{suffix}{path.suffix}")


def run(asked: Asked, count: int) -> int:
    """Launches, tables, the figures. 0 unless a byte was wrong or a launch failed."""
    request_of(asked)  # wrong arguments are found before anything starts
    if asked.json_path == json_file.STDOUT:
        raise Refused("--json -: a suite writes several records; name a file")
    base = asked.json_path or _FOLDER / f"{asked.suite}.json"
    counts = rank_counts(asked.ranks, count)
    budget_s = (asked.time_budget_s or _BUDGET_S) / len(counts)
    code = 0
    figures: list[Row] = []
    for ranks in counts:
        path = beside(base, ranks)
        code = code or _launch(ranks, path, budget_s, "")
        record = _load(path)
        if record is None:
            continue
        capped = None
        if not code and _knows_cap():
            held = beside(base, ranks, "_held")
            code = _launch(ranks, held, _CAPPED_BUDGET_S, flexlink.CAP)
            capped = _load(held)
        gpu_table.show(record, by_rank=asked.by_rank)
        if asked.svg_path:
            from braid.bench import curves

            curves.save(record, beside(asked.svg_path, ranks))
        figures += rows(record, capped)
        code = code or int(bool(wrong_bytes(record.results)))
        if code > 128:  # Ctrl-C
            break
    show(figures)
    console().print(f"records {', '.join(str(beside(base, n)) for n in counts)}", soft_wrap=True)
    return code


def _launch(ranks: int, path: Path, budget_s: float, cap: str) -> int:
    path.unlink(missing_ok=True)
    words = f"{ranks} GPUs" + (f", NVLink HELD: {LINK_CAP}={cap}" if cap else "")
    print(f"=== {words}", file=sys.stderr, flush=True)  # noqa: T201
    before = os.environ.get(LINK_CAP)
    try:
        if cap:
            os.environ[LINK_CAP] = cap
        more = ["--ranks", str(ranks), "--json", str(path), "--quiet"]
        return start(ranks, [*more, "--time-budget", f"{budget_s:g}"])
    finally:
        if cap:
            os.environ.pop(LINK_CAP)
            if before is not None:
                os.environ[LINK_CAP] = before


def _load(path: Path) -> GpuRecord | None:
    return gpu_record.load(path) if path.exists() else None


def _knows_cap() -> bool:
    """Whether this build can hold a link to a rate, and the user does not do so already."""
    from braid import _braid

    return any(name == LINK_CAP for name, *_ in _braid.options()) and LINK_CAP not in os.environ


def show(figures: list[Row]) -> None:
    """Prints the figures."""
    table = Table(title="FlexLink's figures", title_justify="left")
    for name in ("figure", "GPUs", "required", "reached", ""):
        table.add_column(name, overflow="fold")
    words = {True: "reached", False: "NOT reached", None: "-"}
    styles = {True: "green", False: "red", None: "dim"}
    for row in figures:
        table.add_row(
            row.work, str(row.ranks), row.required, row.reached, words[row.is_reached],
            style=styles[row.is_reached],
        )  # fmt: skip
    out = console()
    out.print(table)
    reached = [row for row in figures if row.is_reached]
    measured = [row for row in figures if row.is_reached is not None]
    out.print(f"{len(reached)} of {len(measured)} measured figures reached, {len(figures)} in all")

#!/usr/bin/env python3
"""Writes what records say of the drop-in into docs/nccl.md and docs/measured/nccl.md, or says with
--check that they are stale.

    PYTHONPATH=python python3 scripts/make_nccl_docs.py [--check]

Records: nccl-tests' (nccl_tests_*.json), the suite's (flexlink_*.json), PyTorch's own tests
(torch_tests_*.json).
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gpu_figures
from record_notes import RECORDS, ROOT, commit_words, link, load, since_line
from torch_tests import BAD, BRAID, GOOD, NCCL, NOT_RUN

from braid.bench.verdict import judge
from braid.cases.operations import OPS
from braid.ratio import ratio_words
from braid.record.gpu import GpuResult
from braid.sizes import format_size

MARK = "<!-- {}: written by scripts/make_nccl_docs.py -->\n"
END = "<!-- end of {} -->\n"
MIB = 1 << 20
SIZES = tuple(MIB << shift for shift in (0, 2, 4, 6, 8, 10))
FEW_SIZES = tuple((16 << 10) << shift for shift in (0, 6, 10, 14))
WORSE = 0.99
"""Below it a call that is taken over counts as slower here."""
PROGRAMS = {"all_to_all": "alltoall"}
CHECKS = {
    2: ("nccl_tests_check_2.json", "nccl_tests_windows_2.json"),
    4: ("nccl_tests_4.json", "nccl_tests_large_4.json", "nccl_tests_windows_4.json"),
    8: ("nccl_tests_check_8.json",),
}
TIMED = (2, 4, 8)
"""GPUs of which nccl_tests_time_N.json is there; nccl_tests_windows_N.json need not be."""


def is_left_to_nccl(op: str, nbytes: int, ranks: int) -> bool:
    """As is_faster_by_nccl of bindings/nccl/calls.cc; bytes of all ranks' blocks together."""
    if op == "broadcast":
        return ranks > 2 and nbytes > 16 * MIB
    if op == "all_reduce":
        return (ranks > 4 and nbytes > 32 * MIB) or (ranks > 2 and nbytes > 256 * MIB)
    return op == "all_to_all" and ranks > 4 and nbytes > 64 * MIB


@dataclass(frozen=True)
class Slower:
    """A call that is taken over though NCCL is faster."""

    ranks: int
    op: str
    nbytes: int
    how: str
    ratio: float
    name: str

    def row(self, folder: str) -> str:
        return (
            f"| {self.ranks} | {self.op} | {format_size(self.nbytes)} | {self.how} |"
            f" {ratio_words(self.ratio)} | {link(self.name, folder)} |\n"
        )


def _of_suite(ranks: int) -> Iterator[Slower]:
    record, name = gpu_figures.record_of(ranks), f"flexlink_{ranks}.json"
    kinds: list[tuple[str, list[GpuResult]]] = [
        ("registered", record.results),
        ("not registered", gpu_figures.unregistered(record).results),
    ]
    for how, results in kinds:
        for one in results:
            ratio = judge(one).to_nccl
            if ratio and ratio < WORSE and not is_left_to_nccl(one.op, one.total_bytes, ranks):
                yield Slower(ranks, one.op, one.total_bytes, how, ratio, name)


def _timed_names(ranks: int) -> list[str]:
    return [*filter(None, (f"nccl_tests_time_{ranks}.json", gpu_figures.windows_of(ranks)))]


def _of_nccl_tests(ranks: int) -> Iterator[Slower]:
    names = {program: op for op, program in PROGRAMS.items()}
    for name, how in zip(_timed_names(ranks), ("not registered", "windows"), strict=False):
        for one in load(name)["ratios"]:
            op = names.get(one["program"], one["program"])
            place = ", in place" if "in place" in one["place"] else ""
            place += ", in a graph" if one["is_graph"] else ""
            if one["ratio"] < WORSE and not is_left_to_nccl(op, one["bytes"], ranks):
                yield Slower(ranks, op, one["bytes"], how + place, one["ratio"], name)


def slower(folder: str) -> str:
    """What is taken over though the records have NCCL faster; `folder` is the records', from the
    page, here and below."""
    found = [each for ranks in gpu_figures.all_ranks() for each in _of_suite(ranks)]
    found += [each for ranks in TIMED for each in _of_nccl_tests(ranks)]
    head = "| GPUs | call | bytes | results | speed-up | record |\n|--:|---|--:|---|--:|---|\n"
    order = sorted(found, key=lambda each: (-each.ranks, each.op, each.nbytes, each.how))
    return head + "".join(each.row(folder) for each in order)


OUT_OF_PLACE, IN_PLACE = "nccl", "nccl in place"


def _row_of(
    ratios: list[dict[str, Any]], op: str, nbytes: int, place: str
) -> dict[str, Any] | None:
    program = PROGRAMS.get(op, op)
    for size in (nbytes, 2 * nbytes):  # programs of several blocks go in steps of their own
        for one in ratios:
            is_it = (one["program"], one["bytes"], one["place"]) == (program, size, place)
            if is_it and not one["is_graph"]:
                return one
    return None


def _cell(
    ratios: list[dict[str, Any]],
    op: str,
    nbytes: int,
    place: str,
    plain: list[dict[str, Any]] | None,
) -> str:
    """`plain`: NCCL's times without windows. Where these are shorter, the ratio to them in brackets
    behind the one in windows.
    """
    found = _row_of(ratios, op, nbytes, place)
    if found is None:
        return "-"
    other = _row_of(plain, op, nbytes, place) if plain else None
    words = ratio_words(found["ratio"])
    if other and other["bytes"] == found["bytes"] and other["nccl_us"] < found["nccl_us"]:
        words += f" ({ratio_words(other['nccl_us'] / found['braid_us'])})"
    return words


def times(folder: str, page_now: str) -> str:
    """nccl-tests' times by size, what else there is of them, and that the code changed since."""
    text = ""
    for ranks in TIMED:
        names = _timed_names(ranks)
        heads = " | ".join(format_size(size) for size in SIZES)
        text += f"| {ranks} GPUs, all ranks' bytes | {heads} |\n|---|" + "--:|" * len(SIZES) + "\n"
        for op in OPS:
            plain, *windows = (load(name)["ratios"] for name in names)
            kinds = [("", plain, OUT_OF_PLACE, None)]
            for ratios in windows:
                kinds.append((" in windows", ratios, OUT_OF_PLACE, plain))
                kinds.append((" in windows, in place", ratios, IN_PLACE, plain))
            for how, ratios, place, beside in kinds:
                cells = (_cell(ratios, op, size, place, beside) for size in SIZES)
                text += f"| {op}{how} | {' | '.join(cells)} |\n"
        text += "\n" + "".join(f"{_of_all(name, folder)} " for name in names).rstrip() + "\n\n"
    return text + _since(page_now)


def _since(page_now: str) -> str:
    commits = {f"{ranks} GPUs": load(f"nccl_tests_time_{ranks}.json")["commit"] for ranks in TIMED}
    said = since_line(commits, page_now)
    return f"{said}\n\n" if said else ""


def few_times(folder: str, page_now: str) -> str:
    """The same for the manual: eager, not registered, a row a call, and each record's extremes."""
    heads = " | ".join(format_size(size) for size in FEW_SIZES)
    text = f"| GPUs | call | {heads} |\n|--:|---|" + "--:|" * len(FEW_SIZES) + "\n"
    for ranks in TIMED:
        ratios = load(f"nccl_tests_time_{ranks}.json")["ratios"]
        for op in OPS:
            cells = (_cell(ratios, op, size, OUT_OF_PLACE, None) for size in FEW_SIZES)
            text += f"| {ranks} | {op} | {' | '.join(cells)} |\n"
    names = [name for ranks in TIMED for name in _timed_names(ranks)]
    return (
        f"{text}\n"
        + "".join(f"- {_of_all(name, folder)}\n" for name in names)
        + "\n"
        + _since(page_now)
    )


def _of_all(name: str, folder: str) -> str:
    ratios = [one["ratio"] for one in load(name)["ratios"]]
    below = sum(ratio < WORSE for ratio in ratios)
    return (
        f"Of all {len(ratios)} in {link(name, folder)} ({commit_words(name)}):"
        f" {ratio_words(min(ratios))} to {ratio_words(max(ratios))}, {below} below {WORSE}."
    )


def gain() -> str:
    """The first screen's line."""
    said: list[str] = []
    sizes: list[int] = []
    for ranks in TIMED:
        sizes += [one["bytes"] for one in load(f"nccl_tests_time_{ranks}.json")["ratios"]]
        ratios = [one["ratio"] for one in load(f"nccl_tests_time_{ranks}.json")["ratios"]]
        said.append(
            f"on {ranks} GPUs {ratio_words(min(ratios))} to {ratio_words(max(ratios))}, half of"
            f" {len(ratios)} times {ratio_words(median(ratios))} or more"
        )
    return (
        "- **What you gain**, as a speed-up (NCCL's time / braid's time) in nccl-tests, results"
        f" not registered, all sizes from {format_size(min(sizes))}: {'; '.join(said)}"
        " ([below](#what-it-gives)). On 8 GPUs calls of more than 64 MiB gain little or nothing,"
        " and all_to_alls of less than 1 MiB were slower than NCCL's. Each machine"
        " [races](#who-gets-a-call) and keeps NCCL where braid does not win by 3 %. NCCL ran with"
        " `NCCL_NVLS_ENABLE=0`: with NVLink SHARP its all-reduce on four GPUs or more is faster"
        " than what is compared here, and braid was never measured beside it.\n"
    )


def checks(folder: str) -> str:
    """How many results of nccl-tests were right."""
    text = ""
    for ranks, names in CHECKS.items():
        for name in names:
            parts: dict[str, list[dict[str, Any]]] = {}
            for one in load(name)["outcomes"]:
                if one["step"]["who"] == BRAID and one["step"]["part"] != "time":
                    parts.setdefault(one["step"]["part"], []).append(one)
            told = [one for found in parts.values() for one in found]
            programs = {one["step"]["program"] for one in told}
            first = told[0]
            unread = [one["step"]["program"] for one in told if one["stopped"]]
            not_read = f"; the table of {', '.join(unread)} was not understood" if unread else ""
            text += (
                f"| {ranks} | {', '.join(parts)} | {len(programs)} |"
                f" {sum(one['num_checked'] for one in told):,} |"
                f" {sum(one['wrong'] for one in told)} | {first['nccl']}, {first['nccl_tests']} |"
                f" {link(name, folder)}, {commit_words(name)}{not_read} |\n"
            )
    head = "| GPUs | parts | programs | results | wrong | NCCL, nccl-tests | record |\n"
    return head + "|--:|---|--:|--:|--:|---|---|\n" + text


Run = tuple[str, dict[str, str]]
"""A record's name, and a test's outcomes in it."""


def torch_runs(records: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, list[Run]]:
    """By test, in the order of the records' dates."""
    found: dict[str, list[Run]] = {}
    for name, record in sorted(records, key=lambda each: str(each[1]["date"])):
        for one in record["tests"]:
            found.setdefault(one["test"], []).append((name, one["outcomes"]))
    return found


def kind_of(runs: list[Run]) -> str:
    """What came of a test: by its last run with braid, and where that is bad, NCCL's last."""
    ours = [one for _, one in runs if one.get(BRAID, NOT_RUN) != NOT_RUN]
    if not ours:
        return "not come to"
    if ours[-1][BRAID] in GOOD:
        return "good"
    theirs = [one[NCCL] for one in ours if one.get(NCCL, NOT_RUN) != NOT_RUN]
    return "bad with NCCL too" if theirs and theirs[-1] in BAD else "open"


def torch(folder: str) -> str:
    """PyTorch's tests, split by what came of them."""
    paths = sorted(RECORDS.glob("torch_tests_*.json"))
    runs = torch_runs((path.name, load(path.name)) for path in paths)
    kinds = {test: kind_of(one) for test, one in runs.items()}
    count = {kind: list(kinds.values()).count(kind) for kind in sorted(set(kinds.values()))}
    files = {test.partition("::")[0] for test in runs}
    still = [test for test, kind in kinds.items() if kind == "open"]
    text = (
        f"Of {len(runs)} tests of {len(files)} files, each by its last run with braid:"
        f" {count['good']} pass or are skipped (they want more GPUs, or other ones),"
        f" {count['bad with NCCL too']} fail, hang or crash with NCCL alone, too,"
        f" {count['not come to']} were not come to, {count['open']} are open.\n\n"
        "| open | with braid | with NCCL alone | record |\n|---|---|---|---|\n"
    )
    for test in still:
        name, outcomes = next(
            each for each in reversed(runs[test]) if each[1].get(BRAID, NOT_RUN) != NOT_RUN
        )
        asked = outcomes.get(NCCL, NOT_RUN)
        theirs = asked if asked != NOT_RUN else "not asked"
        words = test.rpartition("::")[2]
        text += f"| `{words}` | {outcomes[BRAID]} | {theirs} | {link(name, folder)} |\n"
    return text + "\nRecords: " + ", ".join(link(path.name, folder) for path in paths) + ".\n"


Write = Callable[[str, str], str]
"""A block by where the records are, from the page, and by the page as it is."""
BLOCKS: dict[Path, dict[str, Write]] = {
    ROOT / "docs/nccl.md": {"gain": lambda *_: gain(), "times in short": few_times},
    ROOT / "docs/measured/nccl.md": {
        "nccl-tests' times": times,
        "slower calls": lambda folder, _: slower(folder),
        "nccl-tests' checks": lambda folder, _: checks(folder),
        "torch tests": lambda folder, _: torch(folder),
    },
}
"""Of each page by what the marks say."""


def page(path: Path, text: str) -> str:
    """The page with today's blocks."""
    folder = os.path.relpath(RECORDS, path.parent)
    for name, write in BLOCKS[path].items():
        before, mark, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(END.format(name))
        if not (mark and end):
            raise SystemExit(f"{path.relative_to(ROOT)}: the marks of '{name}' are not there")
        text = before + mark + write(folder, text) + end + after
    return text


def main() -> int:
    """Writes, or with --check compares."""
    is_stale = False
    for path in BLOCKS:
        text = path.read_text(encoding="utf-8")
        now = page(path, text)
        is_stale |= now != text
        if "--check" not in sys.argv:
            path.write_text(now, encoding="utf-8")
        elif now != text:
            print(f"{path.relative_to(ROOT)} is stale; run scripts/make_nccl_docs.py")
    return int("--check" in sys.argv and is_stale)


if __name__ == "__main__":
    sys.exit(main())

"""Writes the tables of figures in README.md, docs/results.md, docs/overlap.md, docs/engine.md and
docs/measured from the records, and the plot that README.md shows; --check says whether the tables
are current.

.venv/bin/python scripts/make_figures.py [--check]
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import app_figures
import engine_figures
import gpu_figures
import gpu_tables
import overlap_figures
from record_notes import ROOT, links, load, with_changes

from braid import noise
from braid.bench.figure import Row as GpuRow
from braid.ratio import interval, ratio_words, verdict

BEGIN = "<!-- {}: written by scripts/make_figures.py from records/ -->"
END = "<!-- end of {} -->"

Row = tuple[str, str, str, str, str]
"""Work, aim, measured, whether braid was faster than what it was compared with, record."""
PACED_OPS = "64 MiB, 4 ranks, three links paced 4:2:1, against the fastest alone"


def paced(name: str) -> Iterator[Row]:
    """All operations over three paced links against the fastest one."""
    for result in load(name)["results"]:
        yield (
            f"{result['op']} {PACED_OPS}",
            ">= 1.66x (theory 1.75x)",
            ratio_words(result["ratio"]),
            _judged(result),
            name,
        )


def _judged(result: dict[str, Any]) -> str:
    """Of a case between CPUs beside its baseline."""
    ours, theirs = result["times"]["samples_us"], result["baseline"]["times"]["samples_us"]
    return verdict(result["ratio"], interval(theirs, ours))


def h800(ranks: int, scale: int) -> Row:
    """FlexLink's node at a smaller scale."""
    name = f"h800_scaled_{ranks}.json"
    result = load(name)["results"][0]
    work = f"all_gather 64 MiB, {ranks} ranks, H800's links paced at 1:{scale}, against NVLink's"
    return work, ">= 1.20x (theory 1.23x)", ratio_words(result["ratio"]), _judged(result), name


def hosts() -> Iterator[Row]:
    """Two hosts over three rails."""
    name = "two_hosts.json"
    record = load(name)
    found = record["verdict"]
    before, lost, back = found["share_of_cut_rail_before_after_back"]
    of_nominal = f"{100 * found['together_of_nominal']:.1f} % of the nominal 1400 Mbit/s"
    yield (
        "two hosts, rails held to 800, 400 and 200 Mbit/s, all_reduce 64 MiB: of the rails' sum",
        ">= 95 %",
        f"{100 * found['together_of_sum_alone']:.1f} % ({of_nominal})",
        "",
        name,
    )
    yield (
        "the same (held), one rail slowed to 100 Mbit/s while running: after 10 windows, of it",
        ">= 90 %, no wrong byte",
        f"{100 * found['slowed_of_new_nominal']:.1f} %, {record['wrong']} wrong",
        "",
        name,
    )
    yield (
        "the same (held), one rail cut and mended while running: its share before, after, back",
        "no error, share back",
        f"{100 * before:.1f} %, {100 * lost:.1f} %, {100 * back:.1f} %, {record['wrong']} wrong",
        "",
        name,
    )


def gloo(ranks: int) -> Iterator[Row]:
    """Unpaced shared memory against Gloo: the smallest ratio below and from 1 MiB."""
    name = f"gloo_{ranks}.json"
    record = load(name)
    for op in ("all_reduce", "all_gather"):
        found = sorted(
            (r["ratio"], r["bytes"], _judged(r)) for r in record["results"] if r["op"] == op
        )
        small = next(ratio for ratio, size, _ in found if size < 1 << 20)
        large = next(ratio for ratio, size, _ in found if size >= 1 << 20)
        yield (
            f"{op} over shm, {ranks} ranks, 1 KiB to 64 MiB, against Gloo (torch"
            f" {record['versions']['torch']})",
            "> 1x, >= 2x from 1 MiB",
            f"{small:.1f}x at the least below 1 MiB, {ratio_words(large)} from it",
            found[0][2],
            name,
        )


def tuning() -> Row:
    """Stage 1."""
    record = load("tuning.json")
    tuned, cached = max(record["tuned_s"]), max(record["cached_s"])
    measured = f"{tuned:.1f} s, from the cache {cached:.1f} s (longest of {len(record['tuned_s'])})"
    work = "stage 1 tuning, 4 ranks, three links, paced"
    return work, "<= 10 s, then cached", measured, "", "tuning.json"


def steady() -> Iterator[Row]:
    """Balancing on against shares held fixed."""
    for result in load("steady.json")["results"]:
        yield (
            f"{result['op']} 16 MiB, three links paced 4:2:1, balancing on against fixed shares,"
            " steady state",
            "<= 1 % slower",
            f"{100 / result['ratio'] - 100:+.1f} %",
            _judged(result),
            "steady.json",
        )


def gpus(row: GpuRow, name: str) -> Row:
    """A figure of the suite."""
    judged = verdict(row.ratio, row.span) if row.ratio is not None else ""
    return row.work, f"{row.required}", f"{row.reached}{_missed(row)}", judged, name


def _missed(row: GpuRow) -> str:
    return "" if row.is_reached or row.required == "no figure" else ", missed"


def rows() -> list[Row]:
    """Every figure."""
    return [
        *paced("paced_421.json"),
        *(h800(ranks, scale) for ranks, scale in ((2, 200), (4, 400), (8, 800))),
        *hosts(),
        *gloo(2),
        *gloo(4),
        tuning(),
        *steady(),
        *(gpus(*each) for each in gpu_figures.figure_rows()),
    ]


def how() -> str:
    """What holds for all of them."""
    host = load("paced_421.json")["host"]
    return (
        f"CPUs: {host['cores']} cores of {host['cpu']} (a virtual machine). GPUs: H200 of virtual"
        " machines (32, 64 and 128 cores for 2, 4 and 8 GPUs), H100 where a row says so,"
        " NVLink multicast off, NCCL with"
        " `NCCL_NVLS_ENABLE=0`. Medians of the slowest rank, baseline and braid in turn in one run."
        " *Paced*, *held*: links held to a rate on purpose, so that the algorithm is measured and"
        " not the machine. *+changes*: made from a tree with changes that no commit holds."
        " *Faster*, *slower*: by more than 2 % and with 95 % confidence (bootstrap of the medians);"
        " *equal*: within 2 %; *unclear*: the interval holds 1 or is wide."
    )


def every(text: str) -> str:
    """All figures as Markdown; `text` is the page as it is."""
    lines = [
        "Verdicts are braid's against what the row names, in the worst case where there are"
        " several. *Missed*: the aim was not reached.",
        "",
    ]
    if said := gpu_figures.since(text):
        lines += [said, ""]
    lines += ["| work | aim | measured | verdict | record |", "|---|---|---|---|---|"]
    for work, aim, measured, judged, name in rows():
        lines.append(f"| {work} | {aim} | {measured} | {judged} | {links(name, '../records')} |")
    listed = links(", ".join(with_changes()), "../records").replace(" (+changes)", "")
    return "\n".join([*lines, "", f"Records made from a tree with changes: {listed}."])


def short() -> str:
    """A few figures as Markdown, counts of all cases among them."""
    ratios = [one["ratio"] for one in load("paced_421.json")["results"]]
    scaled = [h800(ranks, scale)[2] for ranks, scale in ((2, 200), (4, 400), (8, 800))]
    least = min(one["ratio"] for ranks in (2, 4) for one in load(f"gloo_{ranks}.json")["results"])
    (together, *_) = hosts()
    few = [
        *gpu_figures.short_rows(),
        (
            f"five operations {PACED_OPS}",
            f"{ratio_words(min(ratios))} to {ratio_words(max(ratios))} of 1.75x",
            "paced_421.json",
        ),
        (
            "all_gather 64 MiB, 2, 4 and 8 ranks, H800's links paced, against NVLink's alone",
            f"{', '.join(scaled)} of 1.23x",
            ", ".join(f"h800_scaled_{ranks}.json" for ranks in (2, 4, 8)),
        ),
        (together[0], together[2], together[4]),
        (
            "all_reduce, all_gather over shared memory, 2 and 4 ranks, 1 KiB to 64 MiB, against"
            " Gloo",
            f"{ratio_words(least)} at the least",
            "gloo_2.json, gloo_4.json",
        ),
    ]
    lines = [how(), "", "| work | measured | record |", "|---|---|---|"]
    lines += [f"| {work} | {what} | {links(names, '../records')} |" for work, what, names in few]
    return "\n".join(lines)


def programs() -> str:
    """Whole programs as Markdown."""
    lines = [
        "Speed-up of a step (its time with NCCL / with braid), and where that lies with 95 %"
        f" confidence. *n*: samples of each; `{noise.MARK}`: they vary by more than"
        f" {noise.MOST:.0%}; *one after the other*: one pair of processes, NCCL's always first, so"
        " that what changed on the machine between them is in the ratio and in no interval.",
        "",
        "| program | GPUs | speed-up | samples | record |",
        "|---|--:|---|---|---|",
        *app_figures.program_rows(),
        "",
        *filter(None, [app_figures.unrecorded()]),
    ]
    return "\n".join(lines)


BLOCKS: dict[str, dict[str, Callable[[str], str]]] = {
    "README.md": {"gpu figures": gpu_tables.first_screen},
    "docs/results.md": {
        "gpu figures": gpu_tables.table,
        "counts": lambda _: short(),
        "programs": lambda _: programs(),
        "costs": lambda _: "\n".join(app_figures.costs()),
        "figures": every,
    },
    "docs/engine.md": {"engine figures": lambda _: engine_figures.tables()},
    "docs/measured/engine.md": {"engine figures with BBR": lambda _: engine_figures.with_bbr()},
    "docs/overlap.md": {"figures in short": lambda _: overlap_figures.in_short()},
    "docs/measured/overlap.md": {
        "figures between GPUs": lambda _: overlap_figures.between_gpus(),
        "stand figures": lambda _: overlap_figures.tables(),
    },
}
"""Of each page, by what the marks say; of the page as it is."""


def between(text: str, what: str, new: str) -> str:
    """The text with what stands between two marks written anew."""
    begin, end = BEGIN.format(what), END.format(what)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{new}\n{end}{rest.split(end)[1]}"


def pages() -> list[tuple[str, str, str]]:
    """Name, text and what the text should be of every page."""
    found = []
    for name, blocks in BLOCKS.items():
        text = wanted = (ROOT / name).read_text(encoding="utf-8")
        for what, write in blocks.items():
            wanted = between(wanted, what, write(text))
        found.append((name, text, wanted))
    return found


def main() -> int:
    """Writes, or with --check compares."""
    stale = [(name, wanted) for name, text, wanted in pages() if wanted != text]
    if "--check" in sys.argv:
        for name, _ in stale:
            print(f"{name}: the figures are not those of records/; run scripts/make_figures.py")
        return int(bool(stale))
    for name, wanted in stale:
        (ROOT / name).write_text(wanted, encoding="utf-8")
    gpu_figures.draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())

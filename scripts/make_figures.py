"""Writes the tables of figures in README.md from the records, and the plots of GPU records; --check
says whether the tables are current.

.venv/bin/python scripts/make_figures.py [--check]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_figures

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
README = ROOT / "README.md"
BEGIN = "<!-- figures: written by scripts/make_figures.py from records/ -->"
END = "<!-- end of figures -->"
GPU_BEGIN = "<!-- gpu figures: written by scripts/make_figures.py from records/ -->"
GPU_END = "<!-- end of gpu figures -->"

Row = tuple[str, str, str, str]  # work, must reach, measured, record


def load(name: str) -> dict[str, Any]:
    """A record by its file name."""
    record: dict[str, Any] = json.loads((RECORDS / name).read_text(encoding="utf-8"))
    return record


def paced(name: str) -> Iterator[Row]:
    """All operations over three paced links against the fastest one."""
    for result in load(name)["results"]:
        yield (
            f"{result['op']} 64 MiB, 4 ranks, three links paced 4:2:1, against the fastest alone",
            ">= 1.66x (theory 1.75x)",
            f"{result['ratio']:.2f}x",
            name,
        )


def h800(ranks: int, scale: int) -> Row:
    """FlexLink's node at a smaller scale."""
    name = f"h800_scaled_{ranks}.json"
    ratio = load(name)["results"][0]["ratio"]
    work = f"all_gather 64 MiB, {ranks} ranks, H800's links paced at 1:{scale}, against NVLink's"
    return work, ">= 1.20x (theory 1.23x)", f"{ratio:.2f}x", name


def hosts() -> Iterator[Row]:
    """Two hosts over three rails."""
    name = "two_hosts.json"
    record = load(name)
    verdict = record["verdict"]
    before, lost, back = verdict["share_of_cut_rail_before_after_back"]
    of_nominal = f"{100 * verdict['together_of_nominal']:.1f} % of the nominal 1400 Mbit/s"
    yield (
        "two hosts, rails of 800, 400 and 200 Mbit/s, all_reduce 64 MiB: part of the rails' sum",
        ">= 95 %",
        f"{100 * verdict['together_of_sum_alone']:.1f} % ({of_nominal})",
        name,
    )
    yield (
        "the same, one rail slowed to 100 Mbit/s while running: after 10 windows, of the new sum",
        ">= 90 %, no wrong byte",
        f"{100 * verdict['slowed_of_new_nominal']:.1f} %, {record['wrong']} wrong",
        name,
    )
    yield (
        "the same, one rail cut and mended while running: its share before, after, back",
        "no error, share back",
        f"{100 * before:.1f} %, {100 * lost:.1f} %, {100 * back:.1f} %, {record['wrong']} wrong",
        name,
    )


def gloo(ranks: int) -> Iterator[Row]:
    """Unpaced shared memory against Gloo: the smallest ratio below and from 1 MiB."""
    name = f"gloo_{ranks}.json"
    record = load(name)
    for op in ("all_reduce", "all_gather"):
        ratios = [(r["bytes"], r["ratio"]) for r in record["results"] if r["op"] == op]
        small = min(ratio for size, ratio in ratios if size < 1 << 20)
        large = min(ratio for size, ratio in ratios if size >= 1 << 20)
        yield (
            f"{op} over shm, {ranks} ranks, 1 KiB to 64 MiB, against Gloo (torch"
            f" {record['versions']['torch']})",
            "> 1x, >= 2x from 1 MiB",
            f"{small:.1f}x at the least below 1 MiB, {large:.2f}x from it",
            name,
        )


def tuning() -> Row:
    """Stage 1."""
    record = load("tuning.json")
    tuned, cached = max(record["tuned_s"]), max(record["cached_s"])
    measured = f"{tuned:.1f} s, from the cache {cached:.1f} s (longest of {len(record['tuned_s'])})"
    return "stage 1 tuning, 4 ranks, three links", "<= 10 s, then cached", measured, "tuning.json"


def steady() -> Iterator[Row]:
    """Balancing on against shares held fixed."""
    for result in load("steady.json")["results"]:
        yield (
            f"{result['op']} 16 MiB, balancing on against fixed shares, steady state",
            "<= 1 % slower",
            f"{100 / result['ratio'] - 100:+.1f} %",
            "steady.json",
        )


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
        *gpu_figures.figure_rows(),
    ]


def table() -> str:
    """The figures as Markdown."""
    host = load("paced_421.json")["host"]
    lines = [
        f"On {host['cores']} cores of {host['cpu']} (a virtual machine), medians of the slowest"
        " rank, baseline and braid in turn in one run. *Paced* links are held to a rate on"
        " purpose. GPUs are those of one virtual machine, NVLink multicast off.",
        "",
        "| work | aim | measured | record |",
        "|---|---|---|---|",
    ]
    for work, aim, measured, name in rows():
        links = ", ".join(f"[{part}](records/{part})" for part in name.split(", "))
        lines.append(f"| {work} | {aim} | {measured} | {links} |")
    return "\n".join(lines)


def between(text: str, begin: str, end: str, new: str) -> str:
    """The text with what stands between two marks written anew."""
    head, rest = text.split(begin)
    return f"{head}{begin}\n{new}\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Writes, or with --check compares."""
    text = README.read_text(encoding="utf-8")
    wanted = between(text, BEGIN, END, table())
    wanted = between(wanted, GPU_BEGIN, GPU_END, gpu_figures.first_screen())
    if "--check" in sys.argv:
        if wanted != text:
            print("README.md: the figures are not those of records/; run scripts/make_figures.py")
            return 1
        return 0
    README.write_text(wanted, encoding="utf-8")
    gpu_figures.draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())

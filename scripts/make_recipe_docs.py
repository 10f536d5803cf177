#!/usr/bin/env python3
"""Writes what the recipes' records say into docs/recipes.md, or with --check says that it is stale.

Records are those of examples/recipes (kinds fsdp2-step, ddp-step and tp-inference) and of
tests/gpu/apps (kind apps) under records/.
Needs no compiled module:

    PYTHONPATH=python python3 scripts/make_recipe_docs.py [--check]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from app_figures import Pair, mark, pairs
from record_notes import ROOT

from braid import noise
from braid.record.probe import ProbeRecord, Series, from_json

PAGE = ROOT / "docs/recipes.md"
BEGIN, END = "<!-- records: written by scripts/make_recipe_docs.py -->\n", "<!-- end -->\n"
JAX_BEGIN, JAX_END = (
    "<!-- psum: written by scripts/make_recipe_docs.py -->\n",
    "<!-- end of psum -->\n",
)
JAX, PSUM = "apps_threads_2.json", "JAX: psum "
KINDS = {
    "fsdp2-step": "FSDP2, ",
    "ddp-step": "DDP, ",
    "tp-inference": "tensor parallel, ",
    "apps": "",
}
"""What a row begins with; those of others' programs name themselves."""
NONE = "No record from GPUs yet: nothing here says how fast the recipes are.\n"


def found(folder: Path) -> Iterator[tuple[str, ProbeRecord]]:
    """The recipes' records from GPUs, by file name."""
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("kind") in KINDS and document.get("device"):
            yield path.name, from_json(document)


def _ms(us: float) -> str:
    """To the microsecond where it is short."""
    return f"{us / 1e3:.2f}" if us >= 1e3 else f"{us / 1e3:.3f}"


def _link(name: str, record: ProbeRecord) -> str:
    mark_of_tree = " (+changes)" if record.dirty else ""
    return f"[{name}](../records/{name}){mark_of_tree}"


def _commit(record: ProbeRecord) -> str:
    return f"commit {record.commit[:7]}{', with changes' if record.dirty else ''}"


def _time(series: Series) -> str:
    return f"{_ms(series.times.p50_us)}{mark(series)}" if series.times else "-"


def rows(name: str, record: ProbeRecord) -> Iterator[str]:
    """A line for everything that was timed."""
    for what, pair in pairs(record):
        yield (
            f"| {KINDS[record.kind]}{record.device}: {what} | {_time(pair.ours)}"
            f" | {_time(pair.theirs)} ({pair.theirs.case})"
            f" | {pair.judged}"
            f" | {pair.marks} | {_link(name, record)} |\n"
        )


def psum(record: ProbeRecord) -> str:
    """What JAX's sums take, size by size, where braid stands in NCCL's place."""
    found = {what.removeprefix(PSUM): pair for what, pair in pairs(record) if what.startswith(PSUM)}
    told = {
        word: [_of_psum(*each) for each in found.items() if each[1].verdict == word]
        for word in ("slower", "unclear", "equal", "faster")
    }
    said = (f"**{word}** at {', '.join(sizes)}" for word, sizes in told.items() if sizes)
    return (
        f"A jitted psum by braid beside NCCL's is {'; '.join(said)} ({_link(JAX, record)},"
        f" {next(iter(found.values())).marks}; {noise.MARK}: noisy).\n"
    )


def _of_psum(size: str, pair: Pair) -> str:
    change = 100 / pair.ratio - 100
    words = f"{abs(change):.0f} % {'longer' if change > 0 else 'shorter'}"
    return f"{size} ({words}, {pair.ratio_words})"


def of_programs(name: str, record: ProbeRecord) -> Iterator[str]:
    """What was checked of each of others' programs, in a sentence."""
    titles = dict.fromkeys(key.rpartition(": ")[0] for key in record.figures if ": wrong" in key)
    for title in (t for t in titles if f"{t}: wrong" in record.figures):
        one = {k.removeprefix(f"{title}: "): v for k, v in record.figures.items()}
        said = [record.settings.get(f"{title}: wrong", "nothing wrong")]
        if "steps" in one:
            equal = one["steps with losses equal to the bit on all ranks"]
            said.append(f"losses equal to the bit in {equal:.0f} of {one['steps']:.0f} steps")
        if "results" in one:
            said.append(f"{one['wrong results']:.0f} of {one['results']:.0f} results wrong")
        calls = [record.settings.get(f"{title}: {what}") for what in ("taken over", "handed on")]
        said.append(f"taken over by rank 0: {calls[0] or 'nothing'}")
        if calls[1]:
            said.append(f"handed on: {calls[1]}")
        yield (
            f"[{name}](../records/{name}) of {_commit(record)}, "
            f"{record.settings.get(title, title)}: {'; '.join(said)}.\n"
        )


def remarks(name: str, record: ProbeRecord) -> Iterator[str]:
    """What was checked, in a sentence."""
    if record.kind == "apps":
        yield from of_programs(name, record)
        return
    figures = record.figures
    wrong = sum(one.wrong_bytes for one in record.series)
    said = [f"{wrong} wrong bytes of collectives"]
    if record.kind != "tp-inference":
        equal = "steps with losses equal to the bit on all ranks"
        said += [
            f"{figures['parameters'] / 1e9:.2f}e9 parameters",
            f"loss {figures['first loss']:.3f} to {figures['braid: last loss']:.3f}",
            f"largest gap of a loss {figures['largest gap of a loss']:.2g}",
            f"equal to the bit in {figures[equal]:.0f} of {figures['steps']:.0f} steps",
        ]
    else:
        claims = {k: v for k, v in figures.items() if "gap" not in k and " / " not in k}
        said.append(f"{sum(claims.values()):.0f} of {len(claims)} claims about equal bits hold")
    yield f"[{name}](../records/{name}) of {_commit(record)}: {', '.join(said)}.\n"


def table(records: list[tuple[str, ProbeRecord]]) -> str:
    """Everything, or that there is nothing."""
    if not records:
        return NONE
    are_without = all(one.options.get("NCCL_NVLS_ENABLE") == "0" for _, one in records)
    without = " NCCL ran with `NCCL_NVLS_ENABLE=0`." if are_without else ""
    head = (
        "*n*: samples of each, of which the medians are; they were taken in turn where it does not"
        " say *one after the other*. In brackets where the ratio lies with 95 % confidence:"
        f" *unclear* where that holds 1. `{noise.MARK}`: they vary by more than {noise.MOST:.0%}"
        " (standard deviation by mean), and the median or ratio says less than its digits."
        f" *+changes*: made from a tree with changes that no commit holds.{without}\n\n"
        "| what | braid, ms | the other, ms | speed-up (the other / braid) | samples | record |\n"
        "|---|--:|--:|--:|---|---|\n"
    )
    lines = "".join(line for each in records for line in rows(*each))
    return head + lines + "\n" + "\n".join(line for each in records for line in remarks(*each))


def _between(text: str, begin: str, end: str, new: str) -> str:
    before, _, rest = text.partition(begin)
    return before + begin + new + end + rest.partition(end)[2]


def page(text: str, folder: Path) -> str:
    """The page with today's table."""
    records = list(found(folder))
    text = _between(text, BEGIN, END, table(records))
    jax = dict(records).get(JAX)
    return _between(text, JAX_BEGIN, JAX_END, psum(jax)) if jax and JAX_BEGIN in text else text


def main() -> int:
    """Writes, or with --check compares."""
    text = PAGE.read_text(encoding="utf-8")
    now = page(text, ROOT / "records")
    if "--check" in sys.argv:
        if now != text:
            print("docs/recipes.md is stale; run scripts/make_recipe_docs.py")
        return int(now != text)
    PAGE.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

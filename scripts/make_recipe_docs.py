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

from braid.probe.record import ProbeRecord, from_json

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/recipes.md"
BEGIN, END = "<!-- records: written by scripts/make_recipe_docs.py -->\n", "<!-- end -->\n"
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


def rows(name: str, record: ProbeRecord) -> Iterator[str]:
    """A line for everything that was timed."""
    for what in dict.fromkeys(one.group for one in record.series):
        times = {
            one.case: one.times.p50_us for one in record.series if one.group == what and one.times
        }
        ours = times.pop("braid", None)
        if ours is None or not times:
            continue  # a program that did not come to its end
        other, theirs = next(iter(times.items()))
        yield (
            f"| {KINDS[record.kind]}{record.device}: {what} | {_ms(ours)}"
            f" | {_ms(theirs)} ({other}) | {theirs / ours:.2f}x"
            f" | [{name}](../records/{name}) |\n"
        )


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
            f"[{name}](../records/{name}) of commit {record.commit[:7]}, "
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
    yield f"[{name}](../records/{name}) of commit {record.commit[:7]}: {', '.join(said)}.\n"


def table(records: list[tuple[str, ProbeRecord]]) -> str:
    """Everything, or that there is nothing."""
    if not records:
        return NONE
    head = "| what | braid, ms | the other, ms | | record |\n|---|--:|--:|--:|---|\n"
    lines = "".join(line for each in records for line in rows(*each))
    return head + lines + "\n" + "\n".join(line for each in records for line in remarks(*each))


def page(text: str, folder: Path) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table(list(found(folder))) + END + rest.partition(END)[2]


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

"""The outline as text, with branches drawn."""

from collections.abc import Iterator

from braid.topo.facts import Machine
from braid.topo.show.outline import Branch, outline


def lines(machine: Machine) -> list[str]:
    """The tree."""
    root = outline(machine)
    return [root.label, *_below(root, "")]


def _below(branch: Branch, indent: str) -> Iterator[str]:
    for i, child in enumerate(branch.below):
        is_last = i == len(branch.below) - 1
        yield f"{indent}{'└─ ' if is_last else '├─ '}{child.label}"
        yield from _below(child, indent + ("   " if is_last else "│  "))

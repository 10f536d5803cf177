"""The outline as text, with branches drawn."""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.topo.facts import Machine
from braid.topo.show.outline import Branch, outline


@dataclass(frozen=True)
class _Pen:
    """What branches are drawn with."""

    fork: str
    last: str
    past: str


_DRAWN = _Pen("├─ ", "└─ ", "│  ")
_ASCII = _Pen("|- ", "`- ", "|  ")


def lines(machine: Machine, encoding: str | None = "utf-8") -> list[str]:
    """The tree, drawn with what the encoding has."""
    root = outline(machine)
    return [root.label, *_below(root, "", _pen(encoding))]


def _pen(encoding: str | None) -> _Pen:
    try:
        (_DRAWN.fork + _DRAWN.last + _DRAWN.past).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _DRAWN


def _below(branch: Branch, indent: str, pen: _Pen) -> Iterator[str]:
    for i, child in enumerate(branch.below):
        is_last = i == len(branch.below) - 1
        yield f"{indent}{pen.last if is_last else pen.fork}{child.label}"
        yield from _below(child, indent + ("   " if is_last else pen.past), pen)

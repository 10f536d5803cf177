"""The view by rank: a table of everybody's own times where one holds the others up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from braid.record.parts import RankTimes
from braid.record.ranks import late
from braid.terminal.columns import Column, tables

_HEADS = ("rank", "p50 us", "p95 us", "slowest", "by us")
_TITLE = "by rank: its own times, in how many samples it was the slowest, and by how much"
_LATE = "yellow"


@dataclass(frozen=True)
class Timed:
    """One contestant in one case."""

    words: str
    """ "all_reduce 64 MiB eager, nccl"."""
    by_rank: Mapping[str, RankTimes]
    samples: int


def show(found: Sequence[Timed], out: Console, *, everybody: bool) -> None:
    """Cases where a rank is slowest more often than chance explains; all of them if asked for."""
    chosen = [one for one in found if one.by_rank and (everybody or late(one.by_rank, one.samples))]
    if not chosen:
        return
    rows = [row for one in chosen for row in _rows(one)]
    cells = [list(column) for column in zip(*(cells for cells, _ in rows), strict=True)]
    columns = [
        Column(name, column, is_number=i > 0)
        for i, (name, column) in enumerate(zip(_HEADS, cells, strict=True))
    ]
    out.print(_TITLE, soft_wrap=True)
    styles = [style for _, style in rows]
    for table in tables(columns[:1], [columns[1:]], out.width, styles=styles, is_framed=False):
        out.print(table)


def _rows(one: Timed) -> Iterator[tuple[list[str], str]]:
    """A head, and a row for each rank."""
    yield [one.words, *[""] * (len(_HEADS) - 1)], "bold"
    held_up_by = late(one.by_rank, one.samples)
    for name, times in one.by_rank.items():
        yield (
            [
                f"  {name}",
                f"{times.p50_us:,.1f}",
                f"{times.p95_us:,.1f}",
                f"{times.slowest} of {one.samples}",
                f"{times.behind_us:,.1f}" if times.slowest else "-",
            ],
            _LATE if name in held_up_by else "",
        )

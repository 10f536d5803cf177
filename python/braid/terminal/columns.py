"""Tables that fit: columns for which a terminal has no room go on in a further table. Where the
keys and one group have none either, words go on in further lines, the group's columns in further
tables, and numbers stay whole. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table

_BORDER = 3  # of a framed column: a line and two blanks
_GAP = 2  # between columns without a frame
_LEAST_WORDS = 6  # characters of a column of words that lacks room


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    cells: list[str]
    is_number: bool = True
    style: str = ""

    @property
    def width(self) -> int:
        """Of its widest cell."""
        return max(cell_len(text) for text in (self.name, *self.cells))

    @property
    def least_width(self) -> int:
        """Numbers are never cut; words can go on in further lines."""
        return self.width if self.is_number else min(self.width, _LEAST_WORDS)


Group = Sequence[Column]
"""Columns that stay beside each other: a time and its bandwidth."""


def tables(
    keys: Group,
    groups: Sequence[Group],
    width: int,
    *,
    title: str = "",
    styles: Sequence[str] = (),
    is_framed: bool = True,
) -> Iterator[Table]:
    """As many as it takes for `width` characters; every one begins with the keys. `styles` are
    those of the rows.
    """
    for i, columns in enumerate(_packed(keys, groups, width, _BORDER if is_framed else _GAP)):
        yield _table(columns, title if i == 0 else "", styles, is_framed)


def _packed(keys: Group, groups: Sequence[Group], width: int, gap: int) -> list[list[Column]]:
    """The columns of each table."""
    found = [list(keys)]
    for group in _parts(keys, groups, width, gap):
        if len(found[-1]) > len(keys) and _width([*found[-1], *group], gap) > width:
            found.append(list(keys))
        found[-1] += group
    return found


def _parts(keys: Group, groups: Sequence[Group], width: int, gap: int) -> Iterator[Group]:
    """The groups; each column of one alone that has no room beside the keys, however narrow."""
    for group in groups:
        least = sum(column.least_width + gap for column in (*keys, *group)) + 1
        yield from [group] if least <= width else [[column] for column in group]


def _width(columns: Group, gap: int) -> int:
    return sum(column.width + gap for column in columns) + 1


def _table(columns: Group, title: str, styles: Sequence[str], is_framed: bool) -> Table:
    table = Table(title=title or None, title_justify="left")
    if not is_framed:
        table.box = None
        table.padding = (0, _GAP, 0, 0)
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
            min_width=column.least_width,
            style=column.style,
        )
    for i, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*row, style=styles[i] if styles else None)
    return table

"""Tables that fit: columns for which a terminal has no room go on in a further table. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table

_BORDER = 3  # of a framed column: a line and two blanks
_GAP = 2  # between columns without a frame


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
    for group in groups:
        if len(found[-1]) > len(keys) and _width([*found[-1], *group], gap) > width:
            found.append(list(keys))
        found[-1] += group
    return found


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
            no_wrap=True,
            style=column.style,
        )
    for i, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*row, style=styles[i] if styles else None)
    return table

"""An answer's numbers as tables that fit the terminal; names and numbers are never shortened.

What a number rests on stands beside it where there is room, and below the table where there is not.
Columns for which there is no room go on in a further table.
"""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from braid.plan.amounts import amount, is_binary
from braid.plan.basis import Basis, Quantity
from braid.plan.report import Line, Row
from braid.terminal import columns
from braid.terminal.columns import Column

_GAP = 2
_STYLES = {
    Basis.EXACT: "",
    Basis.MEASURED: "green",
    Basis.SPECIFIED: "cyan",
    Basis.ASSUMED: "yellow",
}


def of_lines(lines: Sequence[Line], width: int) -> Iterator[Table | Text]:
    """A row per number: what it is, its value, its basis, and where it comes from."""
    if not lines:
        return
    binary = is_binary(line.quantity for line in lines)
    origins = [line.quantity.origin for line in lines]
    head = [
        Column("what", [line.label for line in lines], is_number=False),
        Column("value", [amount(line.quantity, binary) for line in lines]),
    ]
    beside = Column("from", origins, is_number=False)
    basis = Column("basis", [line.quantity.basis.value for line in lines], is_number=False)
    if _width([*head, basis, beside]) <= width:
        yield _lines(lines, [*head, basis, beside])
        return
    notes = list(dict.fromkeys(filter(None, origins)))
    numbers = [str(notes.index(each) + 1) if each else "" for each in origins]
    yield _lines(lines, [*head, basis, Column("from", numbers, is_number=False)])
    for number, note in enumerate(notes, 1):
        yield Text(f"{number}  {note}", style="dim")


def _width(parts: Sequence[Column]) -> int:
    return sum(part.width + _GAP for part in parts) - _GAP


def _lines(lines: Sequence[Line], parts: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    table.add_column("from", style="dim")
    for line, (label, value, basis, origin) in zip(
        lines, zip(*(part.cells for part in parts), strict=True), strict=True
    ):
        style = _STYLES[line.quantity.basis]
        table.add_row(Text(label), value, Text(basis, style=style), Text(origin))
    return table


def of_rows(rows: Sequence[Row], width: int) -> Iterator[Table | Text]:
    """A row per thing that is compared, and as many tables as its columns need."""
    if not rows:
        return
    names = Column("", [row.name for row in rows], is_number=False)
    numbers = _numbers(rows)
    notes = Column("", [row.note for row in rows], is_number=False, style="dim")
    beside = [notes] if any(notes.cells) else []
    has_room = _width([names, *numbers, *beside]) <= width
    groups = [[column] for column in [*numbers, *(beside if has_room else [])]]
    for table in columns.tables([names], groups, max(width, _GAP), is_framed=False):
        table.columns[0].overflow, table.columns[0].no_wrap = "fold", False
        yield table
    if beside and not has_room:
        yield from _below(rows)


def _numbers(rows: Sequence[Row]) -> list[Column]:
    binary = is_binary(cell for row in rows for cell in row.cells.values())
    return [
        Column(
            name,
            [_marked(row.cells[name], binary) if name in row.cells else "-" for row in rows],
        )
        for name in dict.fromkeys(name for row in rows for name in row.cells)
    ]


def _below(rows: Sequence[Row]) -> Iterator[Text]:
    """Each note once, after the names of its rows."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            names.setdefault(row.note, []).append(row.name)
    for note, whose in names.items():
        is_all = len(whose) == len(rows)
        known = "" if is_all or not any(whose) else f"{', '.join(filter(None, whose))}: "
        yield Text(f"{known}{note}", style="dim")


def _marked(quantity: Quantity, binary: bool) -> str:
    """With the basis' first letter; exact numbers have none."""
    mark = "" if quantity.basis is Basis.EXACT else f" {quantity.basis[0]}"
    return f"{amount(quantity, binary)}{mark}"

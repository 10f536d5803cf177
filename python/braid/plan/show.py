"""Answers on the terminal: numbers with units and what they rest on, or JSON."""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from braid.plan.basis import Basis, Quantity
from braid.plan.report import Report
from braid.terminal.console import console

if TYPE_CHECKING:  # loaded when a table is drawn: help and --json start without
    from rich.console import Console
    from rich.table import Table

Units = tuple[tuple[str, int], ...]
_BINARY: Units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL: Units = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_STYLES = {
    Basis.EXACT: "",
    Basis.MEASURED: "green",
    Basis.SPECIFIED: "cyan",
    Basis.ASSUMED: "yellow",
}


def show(report: Report, as_json: bool) -> None:
    """Prints an answer. With --json, standard output is JSON and nothing else."""
    if as_json:
        show_document(report.document())
        return
    out = console()
    out.print(report.title, style="bold")
    if report.lines:
        out.print(_lines(report))
    if report.rows:
        out.print(_rows(report))
    _remarks(report, out)


def show_document(document: dict[str, Any]) -> None:
    """Prints JSON."""
    json.dump(document, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def _lines(report: Report) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("basis")
    table.add_column("from", style="dim")
    binary = _is_binary(line.quantity for line in report.lines)
    for line in report.lines:
        each = line.quantity
        basis = Text(each.basis.value, style=_STYLES[each.basis])
        table.add_row(line.label, amount(each, binary), basis, each.origin)
    return table


def _rows(report: Report) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    columns = list(dict.fromkeys(name for row in report.rows for name in row.cells))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    has_notes = any(row.note for row in report.rows)
    if has_notes:
        table.add_column("", style="dim")
    binary = _is_binary(cell for row in report.rows for cell in row.cells.values())
    for row in report.rows:
        cells = [_marked(row.cells[name], binary) if name in row.cells else "-" for name in columns]
        table.add_row(row.name, *cells, *([row.note] if has_notes else []))
    return table


def _marked(quantity: Quantity, binary: bool) -> str:
    """With the basis' first letter; exact numbers have none."""
    mark = "" if quantity.basis is Basis.EXACT else f" {quantity.basis[0]}"
    return f"{amount(quantity, binary)}{mark}"


def _remarks(report: Report, out: "Console") -> None:
    if any(cell.basis is not Basis.EXACT for row in report.rows for cell in row.cells.values()):
        out.print("m measured, s specified, a assumed", style="dim")
    for warning in report.warnings:
        out.print(f"warning: {warning}", style="bold yellow")
    for note in report.notes:
        out.print(f"note: {note}", style="dim")


def _is_binary(quantities: Iterable[Quantity]) -> bool:
    """Whether some bytes of a table are short in powers of 1024: others then are, too."""
    return any(each.unit == "B" and _in_units(each.value, _BINARY) for each in quantities)


def amount(quantity: Quantity, binary: bool = False) -> str:
    """A number as people read it, with its unit; `binary`: bytes in powers of 1024, unless powers
    of 1000 are exact and short.
    """
    value, unit = quantity.value, quantity.unit
    if unit == "s":
        return _time(value * 1e6)
    if unit == "us":
        return _time(value)
    if unit == "B":
        return _bytes(value, binary)
    if unit == "part":
        return f"{value:+.2%}" if value < 0 else f"{value:.1%}"
    if not unit and abs(value) < 1e18 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g} {unit}".rstrip()


def _time(us: float) -> str:
    if us == 0:
        return "0 s"
    if us < 1e3:
        return f"{us:.4g} us"
    if us < 1e4 * 1e3:
        return f"{us / 1e3:.2f} ms"
    return f"{us / 1e6:.4g} s"


def _bytes(nbytes: float, binary: bool) -> str:
    """In powers of 1024 where that is exact and short (1.5 GiB), else in powers of 1000."""
    short = _in_units(nbytes, _BINARY) or _in_units(nbytes, _DECIMAL)
    units = _BINARY if binary else _DECIMAL
    return short or _in_units(nbytes, units, is_exact=False) or f"{nbytes:.4g} B"


def _in_units(nbytes: float, units: Units, is_exact: bool = True) -> str:
    """In four digits; "" where these are not all of it, or it is less than every unit."""
    for unit, scale in units:
        text = f"{nbytes / scale:.4g}"
        if nbytes >= scale and (not is_exact or text == f"{nbytes / scale:.9g}"):
            return f"{text} {unit}"
    return ""

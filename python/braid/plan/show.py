"""Answers on the terminal: numbers with units and what they rest on, or JSON."""

import json
from typing import TYPE_CHECKING, Any

from braid.plan.basis import Basis
from braid.plan.report import Report
from braid.terminal.console import console

if TYPE_CHECKING:  # loaded when a table is drawn: help and --json start without
    from rich.console import Console


def show(report: Report, as_json: bool) -> None:
    """Prints an answer. With --json, standard output is JSON and nothing else."""
    if as_json:
        show_document(report.document())
        return
    from braid.plan import tables

    out = console()
    out.print(report.title, style="bold")
    for part in tables.of_lines(report.lines, out.width):
        out.print(part)
    for part in tables.of_rows(report.rows, out.width):
        out.print(part)
    _remarks(report, out)


def show_document(document: dict[str, Any]) -> None:
    """Prints JSON."""
    print(json.dumps(document, indent=1, allow_nan=False))  # noqa: T201


def _remarks(report: Report, out: "Console") -> None:
    if any(cell.basis is not Basis.EXACT for row in report.rows for cell in row.cells.values()):
        out.print("m measured, s specified, a assumed", style="dim")
    for warning in report.warnings:
        out.print(f"warning: {warning}", style="bold yellow")
    for note in report.notes:
        out.print(f"note: {note}", style="dim")

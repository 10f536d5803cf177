"""`braid bench compare`: two records, and whether the newer one is as good."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

    from braid.probe.compare import Row


def parse_tolerance(text: str, option: str = "bench compare: --tolerance") -> float:
    """ "5%" or "0.05"."""
    try:
        part = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 <= part < 1:
        raise InvalidArgument(f"{option}: '{text}' is none; write 5% or 0.05, below 100%")
    return part


def compare(
    old: Annotated[Path, typer.Argument(help="A record of any braid bench command.")],
    new: Annotated[Path, typer.Argument(help="A later one of the same command.")],
    tolerance: Annotated[
        str, typer.Option(help="How much longer a median may take: 5% or 0.05.")
    ] = "5%",
    allow_gone: Annotated[
        bool, typer.Option("--allow-gone", help="Cases that NEW lacks are no failure.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, braid.compare/1, and nothing else.")
    ] = False,
) -> None:
    """What became slower, faster or wrong between two records. Times in us, medians.

    Exit code 0: nothing is slower than the tolerance allows, wrong or gone; 1: something is.
    """
    from braid.probe import compare as comparison
    from braid.terminal.console import console

    allowed = parse_tolerance(tolerance)
    before, now = comparison.load(old), comparison.load(new)
    found = list(comparison.rows(before, now, allowed))
    if allow_gone:
        found = [row for row in found if row.finding != "gone"]
    document = comparison.document(before, now, allowed, found)
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        out = console()
        for table in _tables(found, out.width):
            out.print(table)
        for line in document["differences"]:
            out.print(f"not the same machine or run: {line}", style="yellow", soft_wrap=True)
        counts = {word: sum(row.finding == word for row in found) for word in _ORDER}
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        out.print(f"{'passed' if document['passed'] else 'FAILED'}: {said}, tolerance {tolerance}")
    raise typer.Exit(0 if document["passed"] else 1)


_ORDER = ("wrong", "gone", "slower", "faster", "same", "new")
_STYLES = {"wrong": "red", "gone": "red", "slower": "red", "faster": "green", "new": "cyan"}


def _tables(found: "Sequence[Row]", width: int) -> "Iterator[Table]":
    from braid.terminal.columns import Column, tables

    def times(many: "Iterable[float | None]") -> list[str]:
        return ["-" if us is None else f"{us:,.1f}" for us in many]

    numbers = [
        Column("old us", times(row.old_us for row in found)),
        Column("new us", times(row.new_us for row in found)),
        Column("change", ["-" if row.change is None else f"{row.change:+.1%}" for row in found]),
    ]
    said = [row.finding + (", within the samples' spread" if row.is_noisy else "") for row in found]
    keys = [Column("case", [row.case for row in found], is_number=False)]
    styles = [_STYLES.get(row.finding, "") for row in found]
    return tables(keys, [[*numbers, Column("", said, is_number=False)]], width, styles=styles)

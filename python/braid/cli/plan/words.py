"""`braid plan explain`: the glossary and the formulas on the command line."""

from dataclasses import asdict
from typing import Annotated

import typer

from braid.plan import glossary
from braid.plan.formula import Formula
from braid.plan.show import show_document
from braid.terminal.console import console


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(explain)


def explain(
    term: Annotated[
        str, typer.Argument(help="A word, or a formula: F17, bus_factor; all if not given.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (schema braid.plan.explain/1).")
    ] = False,
) -> None:
    """What a word means, and the formulas that belong to it. With units, source and date.

    Every term of docs/glossary.md, speeds and abbreviations included, and F1 to F21.

    Example: braid plan explain busbw
    """
    found = glossary.meanings(term)
    if as_json:
        show_document(asdict(found))
        return
    out = console()
    for each in found.terms:
        out.print(each.word, style="bold", end=": ")
        out.print(each.meaning)
    for one in found.formulas:
        out.print(_name(one), style="bold", end=": ")
        out.print(one.what)
        out.print(f"  = {one.says}{f'  [{one.unit}]' if one.unit else ''}")
        given = ", ".join(f"{name} [{unit}]" if unit else name for name, unit in one.given.items())
        out.print(f"  from {given}")
        out.print(f"  {one.source}; {one.date}", style="dim")


def _name(one: Formula) -> str:
    return f"{', '.join(one.ids)} {one.name}".strip()

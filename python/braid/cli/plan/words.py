"""`braid plan explain`: the glossary on the command line."""

from dataclasses import asdict
from typing import Annotated

import typer

from braid.cli.plan.show import show_document
from braid.cli.table import console
from braid.plan import glossary


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(explain)


def explain(
    term: Annotated[str, typer.Argument(help="A word; all of them if not given.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (schema braid.plan.explain/1).")
    ] = False,
) -> None:
    """What a word means: every term of docs/glossary.md, speeds and abbreviations included.

    Example: braid plan explain busbw
    """
    found = glossary.find(term) if term else list(glossary.terms())
    if as_json:
        show_document(asdict(glossary.Meanings(glossary.SCHEMA, found)))
        return
    out = console()
    for each in found:
        out.print(f"[bold]{each.word}[/bold]", end=": ")
        out.print(each.meaning, markup=False)

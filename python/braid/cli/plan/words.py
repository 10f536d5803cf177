"""`braid plan explain`: the glossary on the command line."""

from typing import Annotated

import typer

from braid.cli.plan import options
from braid.cli.plan.show import show_document
from braid.cli.table import console
from braid.plan import glossary


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(explain)


def explain(
    term: Annotated[str, typer.Argument(help="A word; all of them if not given.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """What a word means: every term of docs/glossary.md, speeds and abbreviations included.

    Example: braid plan explain busbw
    """
    found = glossary.find(term) if term else list(glossary.terms())
    if as_json:
        show_document(
            {
                "schema": "braid.plan.explain/1",
                "terms": [
                    {"word": each.word, "meaning": each.meaning, "section": each.section}
                    for each in found
                ],
            }
        )
        return
    out = console()
    for each in found:
        out.print(f"[bold]{each.word}[/bold]", end=": ")
        out.print(each.meaning, markup=False)

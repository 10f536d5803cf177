"""The group of commands `braid plan`."""

import typer

from braid.cli.plan import compare, inference, links, proofs, training, words

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What will communication cost? Bytes, times and what they rest on, without a GPU.",
)
for group in (links, training, inference, compare, words, proofs):
    group.register(app)

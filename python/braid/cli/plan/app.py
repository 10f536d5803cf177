"""The group of commands `braid plan`."""

import typer

from braid.cli.plan import inference

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What will communication cost? Bytes, times and what they rest on, without a GPU.",
)
for group in (inference,):
    group.register(app)

"""The group of commands `braid plan`."""

import typer

from braid.cli.plan import compare, inference, links, nodes, proofs, training, words

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="What will communication cost? Bytes, times and what they rest on, without a GPU.",
)
for group in (links, nodes, training, inference, compare, words, proofs):
    group.register(app)

EPILOG = (
    "Sizes: 64MiB in powers of 1024, 8GB in powers of 1000; rates in GB/s = 1e9 bytes per second in"
    " one direction. Exit code 0 fine, 1 a figure is off (check, validate), 2 bad input."
)
for command in app.registered_commands:
    command.epilog = command.epilog or EPILOG

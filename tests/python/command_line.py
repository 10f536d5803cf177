"""Every command of the command line."""

from typer.main import get_command

from braid.cli import app

WITHOUT_JSON = {("run",), ("demo",)}
"""A program's output is its own; a demo writes its record into --out."""


def _leaves(command, path=()):
    """Commands that do something: (words, command)."""
    below = getattr(command, "commands", {})
    if path and path not in {("plan",), ("trace",)}:
        yield path, command
    for name, each in below.items():
        yield from _leaves(each, (*path, name))


app.load_groups([])
COMMANDS = dict(_leaves(get_command(app.app)))
EVERY = list(COMMANDS)

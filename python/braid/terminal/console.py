"""Where tables and words go. rich is loaded when something is said: help and JSON start without."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from braid import json_file
from braid.launch import LOST_READER
from braid.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_PLAIN_WIDTH = 200  # of lines when the output is no terminal, so that no column is cut


def console(json_path: Path | None = None) -> "Console":
    """Standard output, or standard error when a record goes to the former; wide when it is a file
    or a pipe.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Out(Console):
        """`| head` has read enough: no fault, but a code of its own; rich would exit with 1."""

        def on_broken_pipe(self) -> None:
            try:
                super().on_broken_pipe()
            except SystemExit:
                sys.exit(LOST_READER)

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            """Names of records are shown, and do nothing else."""
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    beside = json_path == json_file.STDOUT
    make = partial(Out, highlight=False, markup=False, emoji=False, stderr=beside)
    out = make()
    return out if out.is_terminal else make(width=_PLAIN_WIDTH)

"""Where tables and words go. rich is loaded when something is said: help and JSON start without."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from braid import json_file
from braid.launch import LOST_READER

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 200  # of lines when the output is no terminal, so that no column is cut


def console(json_path: Path | None = None) -> "Console":
    """Standard output, or standard error when a record goes to the former; wide when it is a file
    or a pipe.
    """
    from rich.console import Console

    class Out(Console):
        """`| head` has read enough: no fault, but a code of its own; rich would exit with 1."""

        def on_broken_pipe(self) -> None:
            try:
                super().on_broken_pipe()
            except SystemExit:
                sys.exit(LOST_READER)

    beside = json_path == json_file.STDOUT
    out = Out(highlight=False, stderr=beside)
    return out if out.is_terminal else Out(highlight=False, stderr=beside, width=_PLAIN_WIDTH)

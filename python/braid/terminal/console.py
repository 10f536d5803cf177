"""Where tables and words go. rich is loaded when something is said: help and JSON start without."""

from pathlib import Path
from typing import TYPE_CHECKING

from braid import json_file

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 200  # of lines when the output is no terminal, so that no column is cut


def console(json_path: Path | None = None) -> "Console":
    """Standard output, or standard error when a record goes to the former; wide when it is a file
    or a pipe.
    """
    from rich.console import Console

    beside = json_path == json_file.STDOUT
    out = Console(highlight=False, stderr=beside)
    return out if out.is_terminal else Console(highlight=False, stderr=beside, width=_PLAIN_WIDTH)

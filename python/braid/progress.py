"""The bar that rank 0 shows while braid.init measures the links."""

import sys
from collections.abc import Callable
from typing import Literal

from braid.errors import InvalidArgument

Progress = Callable[[float, str], None]
"""Called with how much is done (0 to 1) and what is being measured."""

_WIDTH = 28


class Bar:
    """One line on standard error, redrawn in place; nothing is left of it at the end."""

    def __call__(self, done: float, what: str) -> None:
        done = min(max(done, 0.0), 1.0)
        filled = round(_WIDTH * done)
        bar = "#" * filled + "." * (_WIDTH - filled)
        end = "\r\x1b[K" if done >= 1.0 else ""
        sys.stderr.write(f"\r\x1b[Kbraid: tuning [{bar}] {done:4.0%} {what}{end}")
        sys.stderr.flush()


def choose(progress: Progress | bool | Literal["auto"]) -> Progress | None:
    """What to call while tuning: "auto" shows a bar when standard error is a terminal."""
    if progress == "auto":
        return Bar() if sys.stderr.isatty() else None
    if progress is True:
        return Bar()
    if progress is None or progress is False:
        return None
    if not callable(progress):
        raise InvalidArgument(
            f"init: argument progress: asked for 'auto', a bool or a function, found {progress!r}"
        )
    return progress

"""Ctrl-C while measuring: the case at hand ends early, and what was measured is kept.

A second one ends the process.
"""

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """Remembers that SIGINT or SIGTERM came."""

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, signal.Handlers | object] = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.came:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.came = True

    def asked(self) -> bool:
        """Whether to stop."""
        return self.came

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

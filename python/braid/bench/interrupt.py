"""Ctrl-C while measuring: the case at hand ends early, and what was measured is kept.

A second one ends the process. While ranks join, the first one does: nothing is measured yet, and
the core may wait there for a rank that it has ended.
"""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

import braid

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def join(**options: Any) -> braid.Comm:  # noqa: ANN401 - those of braid.init
    """braid.init(), in which the system ends the process: Python runs no handler meanwhile."""
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in heeded}
    try:
        return braid.init(**options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        for number in _SIGNALS:
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

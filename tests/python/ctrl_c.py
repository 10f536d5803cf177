"""Ctrl-C at a chosen place of a call, for tests of what it leaves behind."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class _CtrlC:
    """KeyboardInterrupt before the instruction of such a number, of those of braid's Python files
    that a call runs through: what a signal's handler may do, once.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.came: str | None = None
        """Where."""

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if "/braid/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.came is None:
            if self._left == 0:
                self.came = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
            self._left -= 1
        return self._trace

    def interrupts(self, call: Callable[[], object]) -> bool:
        """False: the call was over before."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def at_every_instruction(call: Callable[[], object], behind: Callable[[str], None]) -> int:
    """Calls `call` with Ctrl-C before its first instruction, its second one, and so on, and behind
    each `behind` with where it came. How many there were.
    """
    at = 0
    while (ctrl_c := _CtrlC(at)).interrupts(call):
        behind(str(ctrl_c.came))
        at += 1
    return at

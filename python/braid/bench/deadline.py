"""Steps with a time-out: a rank whose step takes too long says which, and ends.

A kernel that waits for a peer on the GPU has no deadline of its own in some libraries, and nothing
in this process can end it. So the process ends; the launcher ends the others, and what was
measured before is in the record already.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

EXIT_CODE = 3
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class _Step:
    words: str
    seconds: float
    end_s: float
    exit_code: int


def _leave(words: str, exit_code: int) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
    os._exit(exit_code)


class Deadlines:
    """Watches the steps of one rank, from a thread."""

    def __init__(self, rank: int, leave: Callable[[str, int], None] = _leave) -> None:
        self._rank = rank
        self._leave = leave
        self._step: _Step | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            step = self._step
            if step is not None and monotonic() > step.end_s:
                self._leave(
                    f"braid bench: rank {self._rank}: {step.words}: not done after"
                    f" {step.seconds:g} s; giving up\n",
                    step.exit_code,
                )
                return

    @contextmanager
    def step(self, words: str, seconds: float, exit_code: int = EXIT_CODE) -> Iterator[None]:
        """What runs inside has so many seconds. An inner step replaces the outer one until it is
        over; a time-out inside a step that may fail (exit_code 0) is no failure either.
        """
        outer = self._step
        if outer and outer.exit_code == 0:
            exit_code = 0
        self._step = _Step(words, seconds, monotonic() + seconds, exit_code)
        try:
            yield
        finally:
            self._step = outer

    def close(self) -> None:
        """No step is watched any more."""
        self._end.set()
        self._thread.join()

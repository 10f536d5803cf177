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
from time import monotonic

EXIT_CODE = 3
_LOOK_EVERY_S = 0.25


def _leave(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Deadlines:
    """Watches the steps of one rank, from a thread."""

    def __init__(self, rank: int, leave: Callable[[str], None] = _leave) -> None:
        self._rank = rank
        self._leave = leave
        self._step: tuple[str, float, float] | None = None  # words, seconds, when it is over
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            step = self._step
            if step is not None and monotonic() > step[2]:
                words, seconds, _ = step
                self._leave(
                    f"braid bench: rank {self._rank}: {words}: not done after {seconds:g} s;"
                    " giving up\n"
                )
                return

    @contextmanager
    def step(self, words: str, seconds: float) -> Iterator[None]:
        """What runs inside has so many seconds. An inner step replaces the outer one until it is
        over.
        """
        outer = self._step
        self._step = (words, seconds, monotonic() + seconds)
        try:
            yield
        finally:
            self._step = outer

    def close(self) -> None:
        """No step is watched any more."""
        self._end.set()
        self._thread.join()

"""Something of a request's that ends once, well or not, with the times of what happened to it."""

import logging
import threading
import time
from collections.abc import Callable

from braid.engine import values
from braid.errors import Error, Timeout

log = logging.getLogger("braid.kv")


class Ending:
    """Waited for by any thread. `times` has the monotonic seconds at which things happened."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.times: dict[str, float] = {}
        self._ended = threading.Event()
        self._error: Error | None = None
        self._mutex = threading.Lock()
        self._callbacks: list[Callable[[Error | None], object]] = []
        self.stamp("queued")

    def stamp(self, event: str) -> None:
        """Notes when `event` happened first."""
        self.times.setdefault(event, time.monotonic())

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def error(self) -> Error | None:
        """What it ended with; None when it ended well or has not ended."""
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Returns when it ended well and raises what it ended with. Timeout ends only the wait."""
        limit = None if timeout is None else values.seconds(timeout, self.what)
        if not self._ended.wait(limit and min(limit, threading.TIMEOUT_MAX)):
            raise Timeout(f"{self.what}: not over after a wait of {timeout} s")
        if self._error is not None:
            raise self._error

    def then(self, callback: Callable[[Error | None], object]) -> None:
        """Calls callback(error or None) once it has ended: here, or on a thread that must not be
        held up.
        """
        with self._mutex:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self._error)

    def end(self, error: Error | None = None) -> None:
        """The first end counts."""
        with self._mutex:
            if self.done():
                return
            self.stamp("ended")
            self._error = error
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(error)
            except Exception:
                log.exception("%s: a callback failed", self.what)

    def timeline(self) -> str:
        """`0.0 ms queued, 1.3 ms first page, ...`"""
        began = self.times["queued"]
        events = sorted(self.times.items(), key=lambda item: item[1])
        return ", ".join(f"{(when - began) * 1e3:.1f} ms {event}" for event, when in events)

    def __repr__(self) -> str:
        state = "under way" if not self.done() else f"ended: {self._error or 'well'}"
        return f"{type(self).__name__}({self.what}, {state})"

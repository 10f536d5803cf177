"""One receive: what torch waits for, and what waits in the mailbox."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.futures import Future

from braid.torch.callbacks import Callbacks
from braid.torch.errors import as_torch
from braid.torch.work import HostWork, seconds_of


class RecvWork(HostWork):
    """A receive. `deliver` moves what arrived to the user's tensor, in the thread that waits; with
    `is_on_host` also in one that asks whether it is done, and finds so only when the tensor has it.

    The group's time runs from when somebody waits for it, or asks for its future: a receive may be
    posted long before. When that time is over, so is the receive. A time that wait() is given ends
    the waiting alone.
    """

    def __init__(
        self,
        name: str,
        limit_s: float,
        deliver: Callable[[], None],
        callbacks: Callbacks,
        *,
        is_on_host: bool = True,
    ) -> None:
        super().__init__(name, callbacks=callbacks)
        self.name, self.limit_s = name, limit_s
        self.ends_at = math.inf
        self._deliver: Callable[[], None] | None = deliver
        self._delivering = threading.Lock()
        self._is_on_host = is_on_host

    def _begin_time(self) -> None:
        if not self._done.is_set():
            self.ends_at = time.monotonic() + self.limit_s

    @property
    def is_over(self) -> bool:
        """As is_completed(), and moves nothing."""
        return self._done.is_set()

    def _deliver_once(self) -> None:
        """Another thread that does so is waited for."""
        with self._delivering:
            deliver, self._deliver = self._deliver, None
            if deliver is None:
                return
            try:
                deliver()
            except Exception as error:  # whoever asks or waits next must not find it well
                self._error = as_torch(error)

    def is_completed(self) -> bool:
        is_done = self._done.is_set()
        if is_done and self._is_on_host and self._error is None:
            self._deliver_once()
        return is_done

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if seconds_of(timeout) is None:
            self._begin_time()
        super().wait(timeout)
        self._deliver_once()
        return super().wait()

    def get_future(self) -> Future[Any]:
        self._begin_time()
        return super().get_future()

    def _outcome(self, future: Future[Any]) -> list[Any]:
        self.wait()
        return super()._outcome(future)


@dataclass(eq=False)
class Request:
    """Somebody waits for a message. Who writes to the target holds `writing`, for a moment only."""

    source: int | None
    """None: from any rank."""
    tag: int
    target: Any
    """uint8 NumPy array of the length that he expects."""
    work: RecvWork
    writing: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    """Nothing is written to the target any more."""

    def matches(self, source: int, tag: int) -> bool:
        return tag == self.tag and self.source in (None, source)

    def end(self, why: BaseException) -> None:
        """Without a message. When this returns the target is the user's alone."""
        self.is_over = True
        with self.writing:
            pass
        self.work.finish(why)

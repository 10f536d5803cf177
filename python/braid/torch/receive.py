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
from braid.torch.errors import Timeout, as_torch
from braid.torch.work import HostWork, seconds_of


def _nothing(_: bool) -> None: ...


class RecvWork(HostWork):
    """A receive. `deliver` moves what arrived to the user's tensor, in the thread that waits; with
    `is_on_host` also in one that asks whether it is done, and finds so only when the tensor has it.

    The group's time runs from when somebody waits for it, or asks for its future: a receive may be
    posted long before. When that time is over, so is the receive. A time that wait() is given ends
    the waiting alone.

    Where a signal ends wait() (Ctrl-C), nobody may know of the receive any more: recv() is one such
    call. So `waits(False)` sets it aside, unless another thread waits or somebody has its future.
    It keeps its place, and its tensor is the user's until somebody asks for it again (mailbox.py).
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
        self.waits: Callable[[bool], None] = _nothing
        """Tells the mailbox whether somebody waits, or may."""
        self._waiters: set[int] = set()  # threads

    def _begin_time(self) -> None:
        if not self._done.is_set():
            self.ends_at = time.monotonic() + self.limit_s

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        super().finish(error, source)
        self.waits = _nothing

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
        self.waits(True)
        is_done = self._done.is_set()
        if is_done and self._is_on_host and self._error is None:
            self._deliver_once()
        return is_done

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._wait(timeout)
        self._deliver_once()
        return super().wait()

    def _wait(self, timeout: timedelta | None) -> None:
        me = threading.get_ident()
        try:
            self._waiters.add(me)
            self.waits(True)
            if seconds_of(timeout) is None:
                self._begin_time()
            super().wait(timeout)
        except BaseException as error:  # whatever a signal's handler raises
            self._waiters.discard(me)
            is_over = self._done.is_set() or isinstance(error, Timeout)
            if not is_over and not self._waiters and not self._waiting:
                self.ends_at = math.inf
                self.waits(False)
            raise
        self._waiters.discard(me)

    def get_future(self) -> Future[Any]:
        self.waits(True)
        self._begin_time()
        return super().get_future()

    def _outcome(self, future: Future[Any]) -> list[Any]:
        self.wait()
        return super()._outcome(future)


Message = tuple[int, int, Any]
"""Source, tag, bytes."""


@dataclass(eq=False)
class Request:
    """Somebody waits for a message. Who writes to the target holds `writing`, for a moment only.

    The mailbox's lock is held where `is_idle`, `held` and `has_own_target` change.
    """

    source: int | None
    """None: from any rank."""
    tag: int
    target: Any
    """uint8 NumPy array of the length that he expects."""
    work: RecvWork
    writing: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    """Nothing is written to the target any more."""
    fits: bool = True
    """What arrives just now has its size."""
    is_idle: bool = False
    """Its wait was interrupted: nobody waits for it."""
    held: Message | None = None
    """That came meanwhile."""
    has_own_target: bool = False
    """It was interrupted within its message: the target is a copy, and nobody else's."""
    place: Any = None
    """The user's memory, which the target is at first."""

    def __post_init__(self) -> None:
        self.place = self.target

    def matches(self, source: int, tag: int) -> bool:
        return tag == self.tag and self.source in (None, source)

    def may_replace(self, other: "Request") -> bool:
        """Whether a message for one may be for the other."""
        return self.tag == other.tag and (
            self.source is None or other.source is None or self.source == other.source
        )

    def aim_elsewhere(self) -> None:
        """What arrives just now goes to memory of its own, with what is there."""
        with self.writing:
            self.target = self.target.copy()
            self.has_own_target = True

    def end(self, why: BaseException) -> None:
        """Without a message. When this returns the target is the user's alone."""
        self.is_over = True
        with self.writing:
            pass
        self.work.finish(why)

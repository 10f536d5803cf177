"""Handles of asynchronous calls: what async_op=True, isend() and irecv() return."""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Generic, TypeVar

from braid import _braid
from braid.errors import InvalidArgument, Timeout

T = TypeVar("T")

_LONGEST_PAUSE_S = 0.001  # between two looks at a stream: what a wait may be late by


class Work(ABC, Generic[T]):
    """A call that was started. Its buffers are braid's until it is done: do not write to what is
    sent, nor read what is received, and keep neither for another call. Any thread.
    """

    @abstractmethod
    def done(self) -> bool:
        """Whether it is over, well or not. Does not wait."""

    @abstractmethod
    def wait(self, deadline: float | None = None) -> T:
        """Waits until it is over, and returns what the call without async_op would have returned,
        or raises what that would have raised.

        deadline: seconds. Timeout when it is not over by then; the call goes on. None: as long as
        the call may take, which ends by the comm's own deadline at the latest.
        """

    @property
    def result(self) -> T:
        """What wait() returns, of a call that is done. InvalidArgument before."""
        if not self.done():
            raise InvalidArgument(f"{self}: result: the call is not over; wait() for it")
        return self.wait()


def checked_deadline(deadline: float | None) -> float | None:
    """InvalidArgument unless it is a number of seconds, 0 or more, or None; None too where it is
    more than a wait can be told.
    """
    if deadline is None:
        return None
    if not isinstance(deadline, Real) or not deadline >= 0:
        raise InvalidArgument(
            f"wait: deadline: asked for 0 seconds or more, found {deadline!r:.80}"
        )
    return None if deadline >= threading.TIMEOUT_MAX else float(deadline)


class HostWork(Work[T]):
    """A call that a comm's thread makes (calls.py)."""

    def __init__(self, name: str, result: T) -> None:
        self.name = name
        self._process_id = os.getpid()
        self._result = result
        self._error: BaseException | None = None
        self._is_over = threading.Event()

    def done(self) -> bool:
        return self._is_over.is_set()

    def wait(self, deadline: float | None = None) -> T:
        if not self.done() and os.getpid() != self._process_id:
            raise InvalidArgument(
                f"{self.name}: started by process {self._process_id}, cannot be waited for in its"
                f" fork {os.getpid()}"
            )
        limit = checked_deadline(deadline)
        # Not asked once it is over: in a fork the lock of the event may be held for ever.
        if not self.done() and not self._is_over.wait(limit):
            raise Timeout(f"{self.name}: not over within {deadline} s; the call goes on")
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self, error: BaseException | None) -> None:
        """Called by the thread that made the call."""
        self._error = error
        self._is_over.set()

    def __repr__(self) -> str:
        return f"<braid.Work {self.name}{' done' if self.done() else ''}>"


class GpuWork(Work[T]):
    """A call that is enqueued on a CUDA stream: over when the stream has come past it.

    Work that is enqueued on the same stream later needs no wait(): it comes after the call anyhow.
    """

    def __init__(
        self, name: str, result: T, mark: "_braid.StreamMark", check: Callable[[], None]
    ) -> None:
        self._name = name
        self._result = result
        self._mark = mark
        self._check = check

    def done(self) -> bool:
        return self._mark.is_done()

    def wait(self, deadline: float | None = None) -> T:
        limit = checked_deadline(deadline)
        end = None if limit is None else time.monotonic() + limit
        pause = 1e-5
        while not self._mark.is_done():
            if end is not None and time.monotonic() >= end:
                raise Timeout(f"{self._name}: not over within {deadline} s; the call goes on")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._check()
        return self._result

    def __repr__(self) -> str:
        return f"<braid.Work {self._name} on a GPU{' done' if self.done() else ''}>"

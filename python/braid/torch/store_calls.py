"""A group's calls of torch's store, each with a deadline.

A TCPStore waits for an answer without one, and its process may be there and never answer: when it
is stopped, or was killed and a child that it forked holds its connections open. So calls are made
in a thread of their own, which stays behind in one that gets no answer.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Value = TypeVar("Value")

_LOOK_S = 0.05  # between two looks at whether the caller still wants an answer
_IDLE_S = 5.0  # then the thread ends; the next call starts another one


class NoAnswerError(Exception):
    """The store has not answered in time. Whether it did what it was asked nobody knows."""


class StoreCalls:
    """Of one group. Any thread; one call at a time is made, in the order in which they came."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._given_up: Future[Any] | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a call that got no answer in time still has none."""
        return self._given_up is not None and not self._given_up.done()

    def run(self, call: Callable[[], Value], check: Callable[[], None], end: float) -> Value:
        """What `call` returns or raises; NoAnswerError at `end`, by time.monotonic(). `check` is
        called while waiting, and may raise.
        """
        if threading.current_thread() is self._thread:  # part of a call
            return call()
        answer: Future[Value] = Future()
        with self._mutex:
            self._asked.put((answer, call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
        try:
            self._wait(answer, check, end)
        except NoAnswerError:
            if answer.running():
                self._given_up = answer
            raise
        finally:
            answer.cancel()  # it is not begun later, when nobody waits for it any more
        return answer.result()

    def _wait(self, answer: Future[Any], check: Callable[[], None], end: float) -> None:
        while not wait([answer], max(min(_LOOK_S, end - time.monotonic()), 0)).done:
            check()
            if time.monotonic() > end:
                raise NoAnswerError

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            answer, call = asked
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                value = call()
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(value)
            del asked, answer, call  # what they hold is the caller's

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        while True:
            try:
                return self._asked.get(timeout=_IDLE_S)
            except Empty:
                with self._mutex:
                    if self._asked.empty():
                        self._thread = None
                        return None

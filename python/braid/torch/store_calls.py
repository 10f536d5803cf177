"""A group's calls of torch's store, each with a deadline.

A TCPStore waits for an answer without one, and its process may be there and never answer: when it
is stopped, or was killed and a child that it forked holds its connections open. So calls are made
in a thread of their own, which stays behind in one that gets no answer.
"""

import threading
import time
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

_LOOK_S = 0.05  # between two looks at whether the caller still wants an answer
_IDLE_S = 5.0  # then the thread ends; the next call starts another one


_given_up: dict[Hashable, "_Asked[Any]"] = {}  # the last one of each store


class NoAnswerError(Exception):
    """The store has not answered in time. Whether it did what it was asked nobody knows."""


class _Asked(Generic[Value]):
    """A call, and what came of it. A Future takes several times as long."""

    def __init__(self, call: Callable[[], Value]) -> None:
        self._call = call
        self._value: list[Value] = []
        self._error: BaseException | None = None
        self.has_begun = self.is_unwanted = False  # under StoreCalls' mutex
        self.is_answered = threading.Event()

    def make(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        self.is_answered.set()

    def answer(self) -> Value:
        """Asked for once."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else its traceback would keep what its frames hold
        return self._value[0]


class StoreCalls:
    """Of one group. Any thread; one call at a time is made, in the order in which they came."""

    def __init__(self, store: Hashable) -> None:
        """`store`: equal for all groups whose calls one process answers."""
        self._store = store
        self._asked: SimpleQueue[_Asked[Any]] = SimpleQueue()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a call that got no answer in time, this group's or another's, still has none."""
        given_up = _given_up.get(self._store)
        return given_up is not None and not given_up.is_answered.is_set()

    def run(self, call: Callable[[], Value], check: Callable[[], None], end: float) -> Value:
        """What `call` returns or raises; NoAnswerError at `end`, by time.monotonic(). `check` is
        called while waiting, and may raise.
        """
        if threading.current_thread() is self._thread:  # part of a call
            return call()
        asked = _Asked(call)
        with self._mutex:
            self._asked.put(asked)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
        try:
            self._wait(asked, check, end)
        except BaseException:
            with self._mutex:
                asked.is_unwanted = True
            raise
        return asked.answer()

    def _wait(self, asked: _Asked[Any], check: Callable[[], None], end: float) -> None:
        while not asked.is_answered.wait(max(min(_LOOK_S, end - time.monotonic()), 0)):
            check()
            if time.monotonic() > end:
                with self._mutex:
                    if asked.has_begun:
                        _given_up[self._store] = asked
                raise NoAnswerError

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            with self._mutex:
                asked.has_begun = not asked.is_unwanted
            if asked.has_begun:
                asked.make()
            del asked  # what it holds is the caller's

    def _next(self) -> _Asked[Any] | None:
        while True:
            try:
                return self._asked.get(timeout=_IDLE_S)
            except Empty:
                with self._mutex:
                    if self._asked.empty():
                        self._thread = None
                        return None

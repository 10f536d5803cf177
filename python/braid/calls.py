"""Calls of a comm in the order in which they were made: at once in the caller's thread, or by a
thread of the comm, which is there while there is something for it to do.

A call that is waited for while others are under way goes behind them, so that all ranks make the
same calls in the same order whether they wait or not. Messages that follow each other without a
collective between them are under way together: so isend() and irecv() of two ranks to each other
meet. One that is started while others wait joins them.

Threads: start() and run() by one at a time, as the comm's calls; everything else by any.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from braid import _braid
from braid.work import HostWork

T = TypeVar("T")

_LINGER_S = 0.05  # of a thread without calls: to start one costs more than most calls


@dataclass(frozen=True)
class _Message:
    """One end of a message between two ranks."""

    buf: Any
    is_send: bool
    peer: int
    stream: int


@dataclass(frozen=True)
class _Call:
    work: HostWork[Any]
    body: Callable[[], None] | _Message


class Calls:
    """The calls of one comm."""

    def __init__(self, core: "_braid.Comm") -> None:
        self._core = core
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._num_open = 0  # waiting, or under way
        self._has_thread = False
        self._exchange: _braid.Exchange | None = None

    @property
    def are_under_way(self) -> bool:
        """Whether a call was started and is not over."""
        return self._num_open > 0

    def run(self, name: str, body: Callable[[], None]) -> None:
        """Makes a call and waits for it."""
        if self._num_open == 0:
            body()
        else:
            self.start(name, body, None).wait()

    def start(self, name: str, body: Callable[[], None], result: T) -> HostWork[T]:
        """Makes a call by the comm's thread; `result` is what its handle gives."""
        return self._add(HostWork(name, result), body)

    def message(self, name: str, buf: T, *, is_send: bool, peer: int, stream: int) -> HostWork[T]:
        """Starts one end of a message."""
        return self._add(HostWork(name, buf), _Message(buf, is_send, peer, stream))

    def await_all(self) -> None:
        """Returns when no call is under way. What they met is told to those who wait for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_open == 0)

    def _add(self, work: HostWork[T], body: Callable[[], None] | _Message) -> HostWork[T]:
        with self._changed:
            self._waiting.append(_Call(work, body))
            self._num_open += 1
            if self._exchange is not None:
                self._exchange.poke()
            if not self._has_thread:
                # No daemon: an interpreter that ends waits for calls that were started, which end
                # by their deadline.
                threading.Thread(target=self._work, name="braid calls").start()
                self._has_thread = True
            self._changed.notify_all()
        return work

    def _finish(self, work: HostWork[Any], error: BaseException | None) -> None:
        with self._changed:
            self._num_open -= 1
            self._changed.notify_all()
        work.finish(error)

    def _next(self) -> _Call | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, _LINGER_S):
                self._has_thread = False
                return None
            return self._waiting.popleft()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            if isinstance(call.body, _Message):
                self._run_messages(call)
            else:
                self._finish(call.work, _error_of(call.body))

    def _run_messages(self, first: _Call) -> None:
        """All messages from `first` to the next collective that waits."""
        open_works: dict[int, HostWork[Any]] = {}
        call: _Call | None = first
        try:
            exchange = _braid.Exchange(self._core)
        except Exception as error:
            return self._finish(first.work, error)
        with self._changed:
            self._exchange = exchange
        try:
            while True:
                while call is not None:
                    self._post(exchange, call, open_works)
                    call = self._next_message()
                if not open_works:
                    break
                for number, failure in exchange.step():
                    self._finish(open_works.pop(number), failure)
                call = self._next_message()
        except Exception as error:  # the end of all of them, and of the comm
            for work in open_works.values():
                self._finish(work, error)
        finally:
            with self._changed:  # nobody pokes what is closed
                self._exchange = None
                exchange.close()

    def _post(
        self, exchange: "_braid.Exchange", call: _Call, open_works: dict[int, HostWork[Any]]
    ) -> None:
        assert isinstance(call.body, _Message)
        message = call.body
        try:
            number = exchange.post(message.buf, message.is_send, message.peer, message.stream)
        except Exception as error:
            self._finish(call.work, error)
        else:
            open_works[number] = call.work

    def _next_message(self) -> _Call | None:
        """The next call that waits, if it is a message."""
        with self._changed:
            if not self._waiting or not isinstance(self._waiting[0].body, _Message):
                return None
            return self._waiting.popleft()


def _error_of(body: Callable[[], None]) -> BaseException | None:
    try:
        body()
    except BaseException as error:  # whoever waits raises it
        return error
    return None

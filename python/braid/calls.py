"""Calls of a comm in the order in which they were made: at once in the caller's thread, or by a
thread of the comm, which is there while there is something for it to do.

A call that is waited for while others are under way goes behind them, so that all ranks make the
same calls in the same order whether they wait or not. Messages that follow each other without a
collective between them are under way together: so isend() and irecv() of two ranks to each other
meet. One that is started while others wait joins them.

Threads: start() and run() by one at a time, as the comm's calls; everything else by any.

Whose the core is, which takes one thread at a time; all of it is written under one lock:
  A call waits from when its caller has appended it, is taken when the comm's thread has counted it,
  and is over when that thread has taken it from the count and finished its handle.
  Messages are taken together, by an exchange. The thread makes it with the first of them and closes
  it after the last: it has the core for a moment longer than they last.
  While a call waits or is taken, the core is the thread's; so it is while there is an exchange. It
  is the caller's else.
Nobody waits for ever. Who finds an exchange and no call under way, waits until it is closed: its
thread steps no exchange without an open message, and needs nothing but the lock to close it. A call
that waits has a thread: one is started before it is appended, and that leaves only when none waits,
and says so in the same hold of the lock. A call for which no thread can be had was never started.
Where there is no thread (`_thread` is None), nothing is under way, and the lock need not be asked.

A fork has neither the thread nor the peers, and a lock that was held when it was made stays so: all
is decided by the process's number there, without the lock.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from braid import _braid
from braid.errors import Exhausted, InvalidArgument
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
        self._process_id = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._num_taken = 0
        self._thread: threading.Thread | None = None  # who takes what waits
        self._exchange: _braid.Exchange | None = None

    @property
    def are_under_way(self) -> bool:
        """Whether a call was started and is not over. When not, the core is the caller's: waits for
        the moment until an exchange is closed.
        """
        if self._thread is None or self._is_forked:  # as most calls find it, and cheap
            return False
        with self._changed:
            while self._exchange is not None and not self._are_open:
                self._changed.wait()
            return self._are_open

    def run(self, name: str, body: Callable[..., None], *arguments: object) -> None:
        """Makes a call and waits for it. In a fork the core refuses it."""
        if self._thread is not None and self.are_under_way:
            self.start(name, partial(body, *arguments), None).wait()
        else:
            body(*arguments)

    def start(self, name: str, body: Callable[[], None], result: T) -> HostWork[T]:
        """Makes a call by the comm's thread; `result` is what its handle gives."""
        return self._add(HostWork(name, result), body)

    def message(self, name: str, buf: T, *, is_send: bool, peer: int, stream: int) -> HostWork[T]:
        """Starts one end of a message."""
        return self._add(HostWork(name, buf), _Message(buf, is_send, peer, stream))

    def await_all(self) -> None:
        """Returns when no call is under way. What they met is told to those who wait for them."""
        if self._thread is None or self._is_forked:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._exchange is None and not self._are_open)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process_id

    @property
    def _are_open(self) -> bool:
        return self._num_taken > 0 or bool(self._waiting)

    def _add(self, work: HostWork[T], body: Callable[[], None] | _Message) -> HostWork[T]:
        if self._is_forked:
            raise InvalidArgument(
                f"{work.name}: comm of rank {self._core.rank} was made by process"
                f" {self._process_id} and cannot be used in its fork {os.getpid()}"
            )
        with self._changed:
            if self._thread is None:
                self._thread = self._started_thread(work.name)
            self._waiting.append(_Call(work, body))
            if self._exchange is not None:
                self._exchange.poke()
            self._changed.notify_all()
        return work

    def _started_thread(self, name: str) -> threading.Thread:
        """One that waits for the lock. When start() is interrupted (Ctrl-C) there may be one all
        the same; it finds that it is not ours, and ends.
        """
        # No daemon: an interpreter that ends waits for calls that were started, which end by their
        # deadline.
        thread = threading.Thread(target=self._work, name="braid calls")
        try:
            thread.start()
        except RuntimeError as error:
            raise Exhausted(
                f"{name}: no thread: {error}; ulimit -u and the pids limit of a container bound"
                " them"
            ) from None
        return thread

    def _finish(self, work: HostWork[Any], error: BaseException | None) -> None:
        with self._changed:
            self._num_taken -= 1
            work.finish(error)
            self._changed.notify_all()

    def _next(self) -> _Call | None:
        with self._changed:
            if self._thread is not threading.current_thread():
                return None
            if not self._changed.wait_for(lambda: self._waiting, _LINGER_S):
                self._thread = None
                return None
            return self._take()

    def _take(self) -> _Call:
        self._num_taken += 1
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
                self._changed.notify_all()

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
            return self._take()


def _error_of(body: Callable[[], None]) -> BaseException | None:
    try:
        body()
    except BaseException as error:  # whoever waits raises it
        return error
    return None

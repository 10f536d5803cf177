"""Messages that arrived and requests that wait for one, matched in order.

What nobody asked for yet is kept, up to KEPT_BYTES of each sender. A message for which there is no
room is left on the wire, and so its sender waits, until somebody asks for it, or takes others. Only
where a request waits that this sender could fill with a later message are more messages kept: what
it waits for may be behind them. So no order of receives waits for itself.

A receive from any rank ends when all others have left and somebody waits for it: who has not begun
to wait may still send to himself.

A request whose wait a signal ended is idle. It keeps its place, so that no later request gets the
message that is meant for it; that message is held, and its tensor is left alone. Who waits for it
again has it as if nothing had happened. Nobody may: then a new request that the message may be for
takes its place, with the message, and the idle one is Cancelled.

  wanted --signal--> idle --message--> held    both end at: wait again, a new request
  filled --signal--> idle, in front; the rest of its message goes to a copy, and is put() then
"""

import math
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from braid.torch.errors import Cancelled, InvalidArgument, PeerLost, Timeout
from braid.torch.receive import Message, Request

KEPT_BYTES = 256 << 20


class Mailbox:
    """Any thread; each source's messages come from one."""

    def __init__(self, num_others: int) -> None:
        """`num_others`: how many ranks can send besides this one."""
        self._num_others = num_others
        self._changed = threading.Condition(threading.Lock())
        self._arrived: list[Message] = []
        self._kept_bytes: Counter[int] = Counter()  # of what arrived, by source
        self._wanted: list[Request] = []
        self._filled: list[Request] = []  # whose message arrives just now
        self._holding: list[Request] = []  # idle ones that have theirs
        self._lost: dict[int, BaseException] = {}
        self._ended: BaseException | None = None

    def ask(self, request: Request) -> None:
        """The request gets its message now or later."""
        request.work.waits = partial(self.attend, request)
        with self._changed:
            if self._ended is not None:
                return request.work.finish(self._ended)
            found, replaced = self._message_for(request)
            if found is None and request.source is not None and request.source in self._lost:
                return request.work.finish(self._lost[request.source])
            if found is None:
                replaced = self._queue(request)
            self._changed.notify_all()
        if replaced is not None:
            replaced.end(_replaced(replaced))
        return _fill(request, found[0], found[2]) if found is not None else None

    def _message_for(self, request: Request) -> tuple[Message | None, Request | None]:
        """One that is here, and the idle request that held it."""
        for idle in self._holding:
            if idle.held is not None and request.matches(*idle.held[:2]):
                return self._take_held(idle), idle
        found = next((m for m in self._arrived if request.matches(m[0], m[1])), None)
        if found is not None:
            self._arrived.remove(found)
            self._kept_bytes[found[0]] -= len(found[2])
        return found, None

    def _queue(self, request: Request) -> Request | None:
        """Behind the others, or in the place of an idle one, which is returned."""
        for i, other in enumerate(self._wanted):
            if other.is_idle and request.may_replace(other):
                self._wanted[i] = request
                return other
        self._wanted.append(request)
        return None

    def _take_held(self, idle: Request) -> Message | None:
        message, idle.held = idle.held, None
        self._holding.remove(idle)
        if message is not None:
            self._kept_bytes[message[0]] -= len(message[2])
        return message

    def claim(self, source: int, tag: int, count: int) -> Request | None:
        """Who gets the message of `count` bytes that is about to arrive; filled() says when it has,
        fail() that it never will. None when it is to be put() here. Waits for one or the other.
        """
        with self._changed:
            while self._ended is None:
                found = next((r for r in self._wanted if r.matches(source, tag)), None)
                if found is not None and not found.is_idle:
                    self._wanted.remove(found)
                    self._filled.append(found)
                    found.fits = count == found.target.nbytes
                    return found
                if self._may_keep(source, count):
                    return None
                self._changed.wait()
        raise ConnectionError("the group has ended")

    def _may_keep(self, source: int, count: int) -> bool:
        if self._kept_bytes[source] + count <= KEPT_BYTES:
            return True
        return any(r.source in (None, source) and not r.is_idle for r in self._wanted)

    def filled(self, request: Request) -> bool:
        """A claimed request has its message. False where its wait was interrupted meanwhile: then
        the target is a message to be put().
        """
        with self._changed:
            self._filled.remove(request)
            return not request.has_own_target

    def fail(self, request: Request, why: BaseException, source: int = -1) -> None:
        """A claimed request does not get its message."""
        with self._changed:
            self._filled.remove(request)
            self._wanted = [r for r in self._wanted if r is not request]
        request.work.finish(why, source)

    def put(self, source: int, tag: int, data: bytes | bytearray) -> None:
        """A message that is here as a whole."""
        with self._changed:
            found = next((r for r in self._wanted if r.matches(source, tag)), None)
            if found is None or found.is_idle:
                self._keep((source, tag, data), found)
                return
            self._wanted.remove(found)
        _fill(found, source, data)

    def _keep(self, message: Message, idle: Request | None) -> None:
        self._kept_bytes[message[0]] += len(message[2])
        if idle is None:
            self._arrived.append(message)
            return
        self._wanted.remove(idle)
        idle.held = message
        self._holding.append(idle)

    # ---- interrupted waits ----

    def attend(self, request: Request, is_waited_for: bool) -> None:
        """Somebody waits for it again, or nobody does any more as far as one can know."""
        self._resume(request) if is_waited_for else self._set_aside(request)

    def _set_aside(self, request: Request) -> None:
        with self._changed:
            if request in self._wanted:
                request.is_idle = True
            elif request in self._filled and request.fits:
                request.aim_elsewhere()
                request.is_idle = True
                self._wanted.insert(0, request)  # what is behind it is not for this message

    def _resume(self, request: Request) -> None:
        if not request.is_idle:
            return
        with self._changed:
            request.is_idle = False
            held = self._take_held(request) if request in self._holding else None
            self._changed.notify_all()
        if held is not None:
            _fill(request, held[0], held[2])

    # ---- ends ----

    def lose(self, source: int, why: BaseException) -> None:
        """Nothing more comes from `source`."""
        with self._changed:
            self._lost.setdefault(source, why)
            ended = [r for r in self._wanted if r.source == source]
            self._wanted = [r for r in self._wanted if r not in ended]
        for request in ended:
            request.end(why)

    def close(self, why: BaseException) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._ended = why
            ended = self._wanted + self._filled + self._holding
            self._wanted, self._holding = [], []
            self._changed.notify_all()
        for request in ended:
            request.end(why)

    # ---- deadlines ----

    def wait_for_requests(self) -> bool:
        """Until a request waits; False when the mailbox was closed."""
        with self._changed:
            while self._ended is None and not self._wanted and not self._filled:
                self._changed.wait()
            return self._ended is None

    def end_late(self, why: BaseException | None) -> None:
        """Ends the requests whose time is over, and those that no rank is left to fill; all of them
        with `why` when that is given.
        """
        with self._changed:
            waiting = self._wanted + self._filled
            ended = [(r, end) for r in waiting if (end := why or self._why_over(r)) is not None]
            over = [request for request, _ in ended]
            self._wanted = [r for r in self._wanted if r not in over]
        for request, end in ended:
            request.end(end)

    def _why_over(self, request: Request) -> BaseException | None:
        ends_at = request.work.ends_at
        if ends_at < time.monotonic():
            return _timeout(request)
        is_any = request.source is None and ends_at < math.inf
        if is_any and 0 < self._num_others == len(self._lost):
            last = list(self._lost.values())[-1]
            return PeerLost(f"{request.work.name}: every other rank has left, at last this: {last}")
        return None


def _replaced(request: Request) -> Cancelled:
    return Cancelled(
        f"{request.work.name}: its wait was interrupted, and a later receive has its message"
    )


def _timeout(request: Request) -> Timeout:
    work = request.work
    return Timeout(f"{work.name}: timed out after {work.limit_s} s, in which nothing arrived")


def wrong_size(request: Request, source: int, found: int) -> InvalidArgument:
    return InvalidArgument(
        f"recv from rank {source} with tag {request.tag}: asked for {request.target.nbytes} bytes,"
        f" found a message of {found}"
    )


def _fill(request: Request, source: int, data: Any) -> None:
    if len(data) != request.place.nbytes:
        return request.work.finish(wrong_size(request, source, len(data)), source)
    with request.writing:
        if not request.is_over:
            memoryview(request.place)[:] = data
    return request.work.finish(None, source)

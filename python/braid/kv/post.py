"""The thread that takes an engine's messages for a prefiller or a decoder, and looks at the clock.

The engine's mailbox (send and recv) belongs to it alone; notifications stay the user's.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from braid import letters
from braid.engine import Engine, Message, Peer, Ticket, values
from braid.errors import Cancelled, Error, Exhausted, InternalError, InvalidArgument, Timeout
from braid.kv.counters import Counters
from braid.kv.ending import Ending, log

VERSION = 3
"""The version of what prefillers and decoders say; letters have a version of their own."""
_TICK_S = 0.05


def is_of(peer: Peer, incarnation: bytes) -> bool:
    """An address has its engine's incarnation in it."""
    if len(incarnation) != 16:
        raise InternalError(f"kv: an incarnation of {len(incarnation)} bytes")
    return incarnation in peer.data


class Post(ABC):
    """What a prefiller and a decoder have in common. All handlers run with `_lock` held; users'
    callbacks run after it was released.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = values.of_kind(engine, Engine, "kv: engine")
        self.counters = Counters(engine.name)
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._outbox: dict[bytes, tuple[Peer, deque[bytes]]] = {}
        """Frames of letters for which the engine had no room, by the peer's address."""
        self._letters: dict[bytes, deque[Ticket]] = {}
        """Frames on their way, by the peer's address."""
        self._joiner = letters.Joiner()
        self._closing = threading.Event()
        self._is_over = False
        """Whatever begins from now on ends at once."""
        self._later: list[tuple[Ending, Error | None]] = []
        self._thread = threading.Thread(
            target=self._serve, name=f"braid.kv of {engine.name}", daemon=True
        )

    def _start(self) -> None:
        self._thread.start()

    @abstractmethod
    def _handle(self, head: dict[str, Any], body: bytes, message: Message) -> None:
        """One message of a peer, with the lock held."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Looks at beats and leases, some 20 times a second, with the lock held."""

    @abstractmethod
    def _end_each(self) -> None:
        """Ends all that is under way, with the lock held: nothing of it can land any more."""

    @abstractmethod
    def _unheard(self, address: bytes, error: Error) -> None:
        """A letter to that peer was lost. With the lock held."""

    def _send(self, peer: Peer, head: dict[str, Any], body: bytes = b"") -> None:
        """Sends a letter, or puts it behind others that wait for room: none is lost, and none is
        mixed with another. Waits for nothing; the clock finds peers that do not answer.
        """
        frames = letters.frames(head, body)
        with self._sending:
            self._outbox.setdefault(peer.data, (peer, deque()))[1].extend(frames)
            self._post(peer.data)

    def _post(self, address: bytes) -> None:
        """Sends as much of the outbox as there is room for, with `_sending` held."""
        peer, frames = self._outbox[address]
        try:
            while frames:
                ticket = self.engine.send(peer, frames[0])
                frames.popleft()
                self._letters.setdefault(address, deque()).append(ticket)
        except Exhausted:
            return
        except (Cancelled, InvalidArgument):
            frames.clear()
            if not self.engine.closed:
                raise
        if not frames:
            del self._outbox[address]

    def _drop_letters(self, peer: Peer) -> None:
        """Forgets the letters that wait for a peer that is gone."""
        with self._sending:
            self._outbox.pop(peer.data, None)

    def _look_at_letters(self) -> None:
        """Finds letters that were lost: the engine knows at once that a process is gone. Letters to
        one peer end in order.
        """
        lost: list[tuple[bytes, Error]] = []
        with self._sending:
            for address in list(self._outbox):
                self._post(address)
            for address, tickets in list(self._letters.items()):
                while tickets and tickets[0].done():
                    if (error := tickets.popleft().error()) is not None:
                        lost.append((address, error))
                if not tickets:
                    del self._letters[address]
        for address, error in lost:
            self._apart("a letter", partial(self._unheard, address, error))

    def _end_later(self, ending: Ending, error: Error | None) -> None:
        """Ends it once the lock was released, since users' callbacks run then."""
        self._later.append((ending, error))

    def _run_later(self) -> None:
        """Ends what _end_later() was given. Called without the lock."""
        while self._later:
            with self._lock:
                later, self._later = self._later, []
            for ending, error in later:
                ending.end(error)

    def _serve(self) -> None:
        ticked = 0.0
        while not self._closing.is_set() and not self.engine.closed:
            try:
                message = self._next()
                with self._lock:
                    if message is not None:
                        self._on_frame(message)
                    if (now := time.monotonic()) - ticked >= _TICK_S:
                        ticked = now
                        self._apart("letters", self._look_at_letters)
                        self._tick(now)
                self._run_later()
            except Exception:
                log.exception("'%s': a message or the clock", self.engine.name)
        if self.engine.closed:  # by its owner, under us: no answer comes, and no clock goes on
            self.engine.wait_closed()
            self._end_all()

    def _end_all(self) -> None:
        """Nothing can land any more: what is under way ends, and what begins later does at once."""
        with self._lock:
            self._is_over = True
            self._end_each()
        self._run_later()

    def _closed(self, what: str) -> Cancelled:
        return Cancelled(f"{what}: '{self.engine.name}' is closed")

    def _next(self) -> Message | None:
        try:
            return self.engine.recv(_TICK_S)
        except Timeout:
            return None
        except (Cancelled, InvalidArgument):
            return None

    def _on_frame(self, message: Message) -> None:
        try:
            found = self._joiner.add(message.incarnation, message.data)
            if found is not None:
                self._handle(*found, message)
        except Error as error:
            self.counters.add("refused")
            log.warning("'%s': from '%s': %s", self.engine.name, message.sender, error)

    def _apart(
        self, what: str, look: Callable[[], object], fail: Callable[[Error], object] | None = None
    ) -> None:
        """Calls look() for one of several things. An error ends that one, by fail(), alone."""
        try:
            look()
        except Exception as raised:
            if isinstance(raised, Error):
                log.warning("'%s': %s: %s", self.engine.name, what, raised)
                error: Error = raised
            else:
                log.exception("'%s': %s", self.engine.name, what)
                error = InternalError(f"{what}: {type(raised).__name__}: {raised}")
            if fail is None:
                return
            try:
                fail(error)
            except Exception:
                log.exception("'%s': %s: its end", self.engine.name, what)

    def _stop(self) -> None:
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

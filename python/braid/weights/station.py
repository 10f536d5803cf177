"""What senders and receivers have in common: letters, and waiting for them by name."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from braid import letters
from braid.engine import Engine, Message, Peer, Ticket, values
from braid.errors import Error, InvalidArgument, PeerLost, Timeout
from braid.weights.holdings import Holdings, sides_of
from braid.weights.plan import Table, plan

_POLL_S = 0.05
_MOST_EARLY = 4096
_FAREWELL_S = 2.0


class Station:
    """One rank of a job. The engine's messages (send, recv) and notifications belong to it."""

    def __init__(self, engine: Engine, side: str, rank: int) -> None:
        self.engine = values.of_kind(engine, Engine, f"{side}: engine")
        self.side, self.rank = side, values.whole(rank, f"{side}: rank")
        self.table: Table | None = None
        self.trainers: list[Holdings] = []
        self.workers: list[Holdings] = []
        self._joiner = letters.Joiner()
        self._sending = threading.Lock()
        self._said: list[Ticket] = []
        """Tickets of letters on their way."""
        self._names: dict[bytes, tuple[str, int]] = {}
        self._plan_hash = 0
        """A hash of all that was told, addresses and regions with it: a rank that was started anew
        has another one, and so has one that has renewed its regions. Nobody listens to such a rank.
        """
        self._early = deque[tuple[dict[str, Any], bytes]](maxlen=_MOST_EARLY)
        """Letters of other plans, which this rank may join later than their senders did."""

    @property
    def what(self) -> str:
        return f"{self.side} {self.rank}"

    def _plan(self, told: Sequence[bytes]) -> Table:
        """Makes the plan from what all ranks have told. After an error the old plan holds."""
        trainers, workers = sides_of(values.several(told, f"{self.what}: join"))
        self.table = plan(
            [holdings.pieces for holdings in trainers], [holdings.pieces for holdings in workers]
        )
        self.trainers, self.workers = trainers, workers
        self._plan_hash = hash_of(b"".join(h.encode() for h in (*trainers, *workers)))
        return self.table

    def _say(self, to: Holdings, head: dict[str, Any], body: bytes = b"") -> Ticket:
        """The last ticket of a letter to another rank."""
        head = {**head, "side": self.side, "rank": self.rank, "plan": self._plan_name()}
        with self._sending:
            sent = [self.engine.send(to.address, frame) for frame in letters.frames(head, body)][-1]
            self._said = [each for each in self._said if not each.done()] + [sent]
            return sent

    def _hear_out(self) -> None:
        """Waits a while for letters on their way, since closing the engine cancels them, and others
        would wait in vain for the last letter of a rank that ends after its last version.
        """
        until = time.monotonic() + _FAREWELL_S
        with self._sending:
            said, self._said = self._said, []
        for ticket in said:
            with contextlib.suppress(Error):
                ticket.wait(max(0.0, until - time.monotonic()))

    def _plan_name(self) -> str:
        return f"{self._plan_hash:x}"

    def _letter(self, timeout: float) -> tuple[dict[str, Any], bytes] | None:
        """The next letter of a rank of this plan; with a timeout of 0, only one that is here. Those
        that came before this rank had joined come first.
        """
        for early in self._early:
            if early[0].get("plan") == self._plan_name():
                self._early.remove(early)
                return early
        until = time.monotonic() + timeout
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                found = self._opened(self.engine.recv(min(left, _POLL_S)))
            except Timeout:
                found = None
            if found is not None or left == 0:
                return found

    def _opened(self, message: Message) -> tuple[dict[str, Any], bytes] | None:
        try:
            found = self._joiner.add(message.incarnation, message.data)
        except InvalidArgument:
            return None
        if found is not None and found[0].get("plan") != self._plan_name():
            self._early.append(found)
            return None
        return found

    def _peer(self, side: str, rank: int) -> Holdings:
        return (self.trainers if side == "trainer" else self.workers)[rank]


def hash_of(data: bytes) -> int:
    """64 bits of the bytes' SHA-256."""
    import hashlib

    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def words_of(error: BaseException) -> str:
    """What the other ranks are told. Errors of braid say all; others need their type."""
    return str(error) if isinstance(error, Error) else repr(error)


def lost(who: str, error: Error) -> Error:
    """The same error, which names the rank."""
    return (
        PeerLost(f"{who}: {error}")
        if isinstance(error, PeerLost)
        else type(error)(f"{who}: {error}")
    )


def addressed(peers: Sequence[Holdings]) -> list[Peer]:
    return [holdings.address for holdings in peers]

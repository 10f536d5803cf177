"""How the ranks of one torch group find each other: through the c10d store that the group got.

A group's store is its own (torch prefixes it with the group's name), so groups cannot meet each
other's ranks, whoever else is in the job. When the group is made, its ranks agree on a place there
that no group before had, and learn each other's cards: which host a rank is on, and an address
there; and salt that rank 0 makes (lobby.py). What ranks prove to each other never gets to the
store, which others may read: BRAID_JOB_TOKEN, or on one host the user's secret in a file that the
user alone can read. In their place they leave

  offer/<kind>       rank 0, when one is asked for: address and port for a comm of that kind
  here/<job>/<rank>  a rank that is about to join what was offered
  given_up/<kind>    one that could not join: which rank, and why; nobody tries again
  post/<rank>        a rank that takes messages: where (post.py)
  gone/<rank>        a rank that makes no more calls: why; and `gone`, once one has

Ranks that join a comm see each other's connections close. Before that nothing tells one that has
left from one that is late, except that it says so here, or, where it was killed, that its process
has ended, which ranks of its host see: so ranks meet here before they join.

A group is made once every rank has come, so a rank that is missing is known by number before
anything listens. Ranks on one host use loopback, others the address on the way to MASTER_ADDR.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch.distributed import DistError

from braid._braid import user_secret
from braid.errors import Error
from braid.joining import Identity
from braid.this_host import host_id
from braid.torch.errors import PeerLost, Timeout, Unavailable, torch_errors
from braid.torch.lobby import Card, Lobby, Party
from braid.torch.processes import has_ended, own_process
from braid.torch.store_calls import NoAnswerError, StoreCalls
from braid.torch.store_process import has_closed, where_it_listens

Value = TypeVar("Value")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_ANSWER_S = 3.0  # for the store to answer what it was asked just before a deadline
_ENDED_S = 0.5  # between two looks at whether processes have ended
_ELSEWHERE = "192.0.2.1"  # kept for documentation, RFC 5737: no host, but a route leads there
_LAST_PORT = 65_500  # of an offer: braid tries some more behind it
_MADE = "ranks of the group to be made on"
_NOTHING_SHARED = (
    "its ranks are on {hosts} hosts, which have no secret in common: set BRAID_JOB_TOKEN to the"
    " same random text on all of them. torchrun: `BRAID_JOB_TOKEN=TEXT torchrun ...` on every node."
    " Slurm: `export BRAID_JOB_TOKEN=$(openssl rand -hex 32)` before srun, which passes it on."
    " Kubernetes: a Secret, as that variable of every pod (valueFrom: secretKeyRef)"
)


def _own_card() -> Card:
    return Card(host_id(), _own_address(), own_process())


def _own_address() -> str:
    """This host's address on the way to MASTER_ADDR. Where that is loopback, as a host's own name
    often is, the address on the way to everywhere; loopback when there is none.
    """
    for target in (os.environ.get("MASTER_ADDR", ""), _ELSEWHERE):
        with contextlib.suppress(OSError):
            for family, kind, _, _, there in socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM):
                with socket.socket(family, kind) as probe:
                    probe.connect(there)  # sends nothing: it only chooses the interface
                    address = str(probe.getsockname()[0])
                if not ipaddress.ip_address(address).is_loopback:
                    return address
    return "127.0.0.1"


def free_port(address: str) -> int:
    """A port of this host's `address` that nobody listens on now."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    while True:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
            if (port := int(probe.getsockname()[1])) < _LAST_PORT:
                return port


def _nothing() -> None:
    """Of a caller whom nothing interrupts."""


def _ranks(late: Sequence[Any]) -> list[int]:
    return [int(name) for name in late if str(name).isdecimal()]


class Meeting:
    """One group's place in the store. Any thread."""

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout_s: float) -> None:
        self.name = name
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store_where = where_it_listens(store)
        self._calls = StoreCalls(tuple(self._store_where) or self)
        card = _own_card()
        self._lobby = self._ask(lambda: Lobby(store, rank, size, card), "room for a first word")
        self._store: Any = None  # the group's place, once it is made
        self._cards: list[Card] = []
        self._salt = ""  # in the store
        self._token = ""  # not there

    def set(self, key: str, text: str) -> None:
        """Writes for the others to get()."""
        room = f"room for {key}"
        with self._from_store(room):
            self._ask(lambda: self._store.set(key, text), room)

    def get(
        self,
        keys: Sequence[str],
        missing: str,
        check: Callable[[], None],
        timeout_s: float | None = None,
    ) -> list[str]:
        """The texts of all keys, once they are there. `missing` says in an error what they mean;
        `check` is called while waiting, and may raise. The store itself is asked, not waited in:
        other threads use it too.
        """
        keys = list(keys)

        def late() -> list[str]:
            return [keys[place].split("/")[-1] for place in self._absent(keys)]

        with self._from_store(f"{missing} {', '.join(keys)}"):
            self._wait(late, missing, check, timeout_s)
            return self._ask(lambda: self._look(keys), missing, check)

    def look(self, keys: Sequence[str]) -> list[str]:
        """The texts of all keys as they are now; "" of one that is not there."""
        return self._ask(lambda: self._look(keys), ", ".join(keys))

    def _look(self, keys: Sequence[str]) -> list[str]:
        are_there = self._store.check(list(keys))
        return [
            self._store.get(key).decode() if are_there or self._store.check([key]) else ""
            for key in keys
        ]

    def wait(
        self,
        late: Callable[[], Sequence[Any]],
        missing: str,
        check: Callable[[], None],
        timeout_s: float | None = None,
    ) -> None:
        """Waits as get() until late() has nobody more to name; it may look()."""
        with self._from_store(missing):
            self._wait(late, missing, check, timeout_s)

    def _wait(
        self,
        late: Callable[[], Sequence[Any]],
        missing: str,
        check: Callable[[], None],
        timeout_s: float | None,
    ) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        looked, end = began, began + limit_s

        def ask(call: Callable[[], Value]) -> Value:
            return self._ask(call, missing, check, end + _ANSWER_S)

        while names := ask(late):
            check()
            ask(lambda: self._check_gone(late))
            now = time.monotonic()
            if now > looked + _ENDED_S:
                looked = now
                ask(lambda: self._check_ended(late))
            if now > end:
                raise self._too_late(missing, limit_s, names)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def leave(self, why: str) -> None:
        """Tells those who wait for this rank that it makes no more calls."""
        self._tell({f"gone/{self.rank}": why, "gone": "yes"})

    def _tell(self, texts: dict[str, str]) -> None:
        """Writes, in this order, what others may wait for. A store that has gone has told them
        already, and one that has not answered tells nobody. It is asked first, and all goes in one
        send, since torch prints what a second one meets.
        """
        if self._store is None or self.size == 1:
            return
        if self._calls.is_stuck or has_closed(self._store_where):
            return
        end = time.monotonic() + _ANSWER_S
        with contextlib.suppress(DistError, NoAnswerError):
            keys, words = list(texts), list(texts.values())
            self._calls.run(lambda: self._store.multi_set(keys, words), _nothing, end)

    def _ask(
        self,
        call: Callable[[], Value],
        missing: str,
        check: Callable[[], None] = _nothing,
        end: float | None = None,
    ) -> Value:
        """What `call`, which asks the store, returns or raises; Timeout when it never answers."""
        now = time.monotonic()
        end = now + self.timeout_s if end is None else end
        if self._calls.is_stuck:  # somebody has waited long enough
            end = min(end, now + _ANSWER_S)
        try:
            return self._calls.run(call, check, end)
        except NoAnswerError:
            raise Timeout(
                f"group {self.name}, rank {self.rank}: timed out while it waited for"
                f" {missing.removesuffix(' of rank')}: the job's store does not answer: its process"
                " is stopped, or has ended and left a child behind"
            ) from None

    def _check_gone(self, late: Callable[[], Sequence[Any]]) -> None:
        """PeerLost when one of those who are late has gone. They are asked for once more behind
        that: who did what we wait for, and left then, is not late.
        """
        if not self._store.check(["gone"]):
            return
        ranks = _ranks(late())
        for rank, why in zip(ranks, self._look([f"gone/{rank}" for rank in ranks]), strict=True):
            if why:
                raise PeerLost(f"group {self.name}: rank {rank} {why:.200}")

    def _check_ended(self, late: Callable[[], Sequence[Any]]) -> None:
        """The same when the process of one has ended without a word: it was killed."""
        ended = {rank for rank in _ranks(late()) if has_ended(self._cards[rank].process)}
        if not ended:
            return
        self._check_gone(late)  # it may have said something since
        if still_late := sorted(ended.intersection(_ranks(late()))):
            raise PeerLost(f"group {self.name}: rank {still_late[0]} was killed: its process ended")

    @contextlib.contextmanager
    def _from_store(self, missing: str) -> Iterator[None]:
        """What the store says when it has gone becomes PeerLost."""
        try:
            yield
        except Error:  # what is raised while waiting is a DistError, too
            raise
        except DistError as error:
            raise self._no_store(missing, error) from error

    def _no_store(self, missing: str, error: Exception) -> PeerLost:
        return PeerLost(
            f"group {self.name}, rank {self.rank}: the job's store has gone, on which {missing} was"
            f" waited for: {error}"
        )

    def _too_late(self, missing: str, limit_s: float, late: Sequence[Any]) -> Timeout:
        return Timeout(
            f"group {self.name}, rank {self.rank}: timed out after {limit_s:.1f} s, in which it"
            f" waited for {missing} {', '.join(map(str, late))}"
        )

    def gather(self, check: Callable[[], None]) -> None:
        """Waits until every rank has made the group. What is asked for in threads later is read
        now: the store may go with rank 0's process before the last of them does. For that reason
        rank 0 also waits until the others have read.
        """
        try:
            party = self._meet(check)
            late = [] if party is not None else self._ask(self._lobby.missing, _MADE, check)
        except Error:
            raise
        except DistError as error:
            raise self._no_store(_MADE, error) from error
        if party is None:
            raise self._too_late(f"{_MADE}:", self.timeout_s, late)
        self._store = self._lobby.place(party)
        self._cards, self._salt = party.cards, party.salt
        self._token = self._choose_token()

    def _choose_token(self) -> str:
        """What the ranks know and the store does not."""
        if (token := os.environ.get("BRAID_JOB_TOKEN", "")) or self.size == 1:
            return token
        if not self.is_one_host():
            hosts = len({card.host for card in self._cards})
            raise Unavailable(f"group {self.name}: {_NOTHING_SHARED.format(hosts=hosts)}")
        with torch_errors():
            return user_secret()

    def _meet(self, check: Callable[[], None]) -> Party | None:
        """None when not all have come in time."""
        end, pause_s, seen = time.monotonic() + self.timeout_s, _FIRST_PAUSE_S, self._lobby.progress
        while (party := self._ask(self._lobby.poll, _MADE, check, end + _ANSWER_S)) is None:
            check()
            if time.monotonic() > end:
                return None
            if self._lobby.progress != seen:
                seen, pause_s = self._lobby.progress, _FIRST_PAUSE_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return party

    def is_one_host(self) -> bool:
        """Whether all ranks reach each other over loopback."""
        return len({card.host for card in self._cards}) == 1

    def address_of(self, rank: int) -> str:
        """Where the others reach `rank`."""
        return "127.0.0.1" if self.is_one_host() else self._cards[rank].address

    def secret(self, purpose: str) -> str:
        """What all ranks of this group know and nobody else does, one for each purpose."""
        said = f"{purpose} of {self._salt}"
        return hmac.new(self._token.encode(), said.encode(), hashlib.sha256).hexdigest()

    def _absent(self, keys: Sequence[str]) -> list[int]:
        """The places in `keys` of those that nobody has written yet."""
        if self._store.check(list(keys)):
            return []
        return [place for place, key in enumerate(keys) if not self._store.check([key])]

    def give_up(self, kind: str, why: str) -> None:
        """Tells those who are in identity(), or will be, that this rank will not join them."""
        self._tell({f"given_up/{kind}": f"rank {self.rank} {why}"})

    def _check_given_up(self, kind: str) -> None:
        (why,) = self._look([f"given_up/{kind}"])
        if why:
            raise PeerLost(f"group {self.name}: the first call on {kind}: {why:.400}")

    def identity(self, kind: str, check: Callable[[], None], *, waits: bool = True) -> Identity:
        """Who this rank is in the group's comm of that kind; collective. Without `waits` the others
        may still be on their way: whoever joins with another deadline than the group's waits there.
        """
        if self.size == 1:
            return Identity(0, 1)
        host = self._cards[self.rank].host
        neighbours = [rank for rank, card in enumerate(self._cards) if card.host == host]
        key = f"offer/{kind}"
        if self.rank == 0:
            address = self.address_of(0)
            offer = {"address": address, "port": free_port(address), "job": secrets.token_hex(8)}
            self.set(key, json.dumps(offer))
        late = f"the first call on {kind} of rank"

        def absent(keys: Sequence[str]) -> list[int]:
            self._check_given_up(kind)
            return self._absent(keys)

        self.wait(lambda: absent([key]), late, check)  # it is rank 0's
        (offered,) = self._ask(lambda: self._look([key]), late, check)
        agreed = json.loads(offered)
        here = [f"here/{agreed['job']}/{each}" for each in range(self.size)]
        self.set(here[self.rank], "yes")
        if waits:
            self.wait(lambda: absent(here), late, check)
        with self._from_store(late):
            check()
            self._ask(lambda: self._check_given_up(kind), late, check)
        return Identity(
            self.rank,
            self.size,
            local_rank=neighbours.index(self.rank),
            store_address=agreed["address"],
            store_port=agreed["port"],
            job_id=agreed["job"],
        )

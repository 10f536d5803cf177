"""How the ranks of one torch group find each other: through the c10d store that the group got.

A group's store is its own (torch prefixes it with the group's name), so groups cannot meet each
other's ranks, whoever else is in the job. It holds, per group:

  card/<rank>   each rank, when the group is made: which host it is on, and an address there
  secret        rank 0, likewise: random; what is proved depends on BRAID_JOB_TOKEN as well, which
                never gets there
  ready/<rank>  each rank, when it has read all that
  offer/<kind>  rank 0, when all cards are there: address and port for a comm of that kind

A group is made once every rank has shown its card, so a rank that is missing is known by number
before anything listens. Ranks on one host use loopback, others the address on the way to
MASTER_ADDR.

torch keeps a store when a group is destroyed and made anew; keys therefore begin with how many
groups of that name this process has made, which is the same on all ranks.
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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed import DistError, PrefixStore

from braid.comm import Identity
from braid.errors import PeerLost, Timeout

_made: Counter[str] = Counter()  # groups by name, of this process
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_ELSEWHERE = "192.0.2.1"  # kept for documentation, RFC 5737: no host, but a route leads there
_LAST_PORT = 65_500  # of an offer: braid tries some more behind it


@dataclass(frozen=True)
class Card:
    """Where a rank is."""

    host: str
    """Equal for ranks that reach each other over loopback."""
    address: str


def _own_card() -> Card:
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else socket.gethostname()
    try:
        network = os.stat("/proc/self/ns/net").st_ino  # containers of one host have their own
    except OSError:
        network = 0
    return Card(f"{boot_id}:{network}", _own_address())


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


class Meeting:
    """One group's place in the store. Any thread."""

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout_s: float) -> None:
        _made[name] += 1
        self.name = name
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store = PrefixStore(f"braid/{_made[name]}", store)
        self._cards: list[Card] = []
        self._shared = ""  # the secret in the store
        if size > 1:
            self._store.set(f"card/{rank}", json.dumps(asdict(_own_card())))
            if rank == 0:
                self._store.set("secret", secrets.token_hex(32))

    def set(self, key: str, text: str) -> None:
        """Writes for the others to get()."""
        self._store.set(key, text)

    def get(
        self,
        keys: Sequence[str],
        missing: str,
        check: Callable[[], None],
        timeout_s: float | None = None,
    ) -> list[str]:
        """The texts of all keys, once they are there. `missing` says in an error what they mean;
        `check` is called while waiting, and may raise. The store itself is never waited in: other
        threads use it too.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            late = self._wait(keys, limit_s, check)
            if not late:
                return [self._store.get(key).decode() for key in keys]
        except DistError as error:
            raise PeerLost(
                f"group {self.name}, rank {self.rank}: the job's store has gone, on which"
                f" {missing} {', '.join(keys)} was waited for: {error}"
            ) from error
        raise Timeout(
            f"group {self.name}, rank {self.rank}: waited {limit_s} s for {missing}"
            f" {', '.join(key.split('/')[-1] for key in late)}"
        )

    def _wait(self, keys: Sequence[str], limit_s: float, check: Callable[[], None]) -> list[str]:
        """Those keys that are not there after `limit_s`."""
        end, pause_s = time.monotonic() + limit_s, _FIRST_PAUSE_S
        while not self._store.check(list(keys)):
            check()
            if time.monotonic() > end:
                return [key for key in keys if not self._store.check([key])]
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return []

    def cards(self, check: Callable[[], None]) -> list[Card]:
        """Every rank's card, in rank order."""
        if not self._cards:
            keys = [f"card/{rank}" for rank in range(self.size)]
            texts = self.get(keys, "ranks of the group to be made on:", check)
            self._cards = [Card(**json.loads(text)) for text in texts]
        return self._cards

    def gather(self, check: Callable[[], None]) -> None:
        """Waits until every rank has made the group, and reads what is asked for in threads: the
        store may go with rank 0's process before the last of them does. For that reason rank 0 also
        waits until the others have read.
        """
        if self.size == 1:
            return
        self.cards(check)
        self.secret("", check)
        self.set(f"ready/{self.rank}", "yes")
        if self.rank == 0:
            keys = [f"ready/{rank}" for rank in range(self.size)]
            self.get(keys, "ranks of the group to be made on:", check)

    def is_one_host(self, check: Callable[[], None]) -> bool:
        """Whether all ranks reach each other over loopback."""
        return len({card.host for card in self.cards(check)}) == 1

    def address_of(self, rank: int, check: Callable[[], None]) -> str:
        """Where the others reach `rank`."""
        return "127.0.0.1" if self.is_one_host(check) else self.cards(check)[rank].address

    def secret(self, purpose: str, check: Callable[[], None]) -> str:
        """What all ranks of this group know and nobody else does, one for each purpose."""
        if not self._shared:
            self._shared = self.get(["secret"], "rank 0's", check)[0]
        key = os.environ.get("BRAID_JOB_TOKEN", "") + self._shared
        return hmac.new(key.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    def identity(self, kind: str, check: Callable[[], None]) -> Identity:
        """Who this rank is in the group's comm of that kind; collective."""
        if self.size == 1:
            return Identity(0, 1)
        cards = self.cards(check)
        here = [rank for rank, card in enumerate(cards) if card.host == cards[self.rank].host]
        key = f"offer/{kind}"
        if self.rank == 0:
            address = self.address_of(0, check)
            offer = {"address": address, "port": free_port(address), "job": secrets.token_hex(8)}
            self.set(key, json.dumps(offer))
        agreed = json.loads(self.get([key], "rank 0's", check)[0])
        return Identity(
            self.rank,
            self.size,
            local_rank=here.index(self.rank),
            store_address=agreed["address"],
            store_port=agreed["port"],
            job_id=agreed["job"],
        )

"""How the ranks of a group that is made know that they mean the same one.

torch keeps a store when a group is destroyed and made anew, and an elastic job's store has seen
processes that are gone: what lies there may be of another time, and ranks with different pasts
cannot count alike. So every rank says hello with a number of its own, made for this once, and
rank 0 sends out invitations that repeat the numbers of those who are meant:

  hello/<rank>              that rank: its number, and its card
  invitation                rank 0: all numbers and cards, salt, and the name of a place
  <place>/accepted/<rank>   who finds its own number in the invitation
  <place>/begun             rank 0, when all have accepted
  <place>/seen/<rank>       who has seen that; then rank 0, whose process may have the store, may go

Who reads something old accepts nothing: its number is not there. Where rank 0 has read an old
hello, the invitation is accepted by all but that rank; its true hello is another one, for which
rank 0 writes a new invitation, to a new place, which all follow. An accepted invitation counts
once its place has begun, and a place in which all accepted holds these ranks and no others.

Whoever reaches the store's port reads and writes all of this, so nothing here is a secret or a
proof of anything: it says where ranks look for each other. What makes no sense counts as not there.
"""

import contextlib
import json
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import PrefixStore


@dataclass(frozen=True)
class Card:
    """Where a rank is."""

    host: str
    """Equal for ranks that reach each other over loopback."""
    address: str
    process: str = ""
    """For ranks of its host, who may ask whether it has ended (processes.py)."""


@dataclass(frozen=True)
class Party:
    """What all ranks of one group agree on."""

    place: str
    """Where in the store they go on."""
    cards: list[Card]
    salt: str
    """Of this group's secrets: that two groups have none in common."""


class Lobby:
    """One rank's way into one group. One thread."""

    def __init__(self, store: Any, rank: int, size: int, card: Card) -> None:
        self._store = PrefixStore("braid", store)
        self._rank, self._size = rank, size
        self._number = secrets.token_hex(8)
        self._hellos: list[str] = []  # rank 0: who is invited
        self._party: Party | None = None
        self._has_begun = False
        self._hello = json.dumps({"number": self._number, "card": asdict(card)})
        self._store.set(f"hello/{rank}", self._hello)

    def poll(self) -> Party | None:
        """One step; to be called until it answers."""
        return self._invite() if self._rank == 0 else self._follow()

    @property
    def progress(self) -> tuple[str, bool]:
        """Changes when a step led somewhere."""
        return self._party.place if self._party is not None else "", self._has_begun

    def missing(self) -> list[int]:
        """Who is waited for, as far as this rank can see."""
        for part in ("", "accepted", "seen"):
            if part and self._party is None:
                return [0]
            keys = self._keys(part)
            if late := [rank for rank, key in enumerate(keys) if not self._store.check([key])]:
                return late
        return [0]

    def place(self, party: Party) -> Any:
        """The part of the store that is this group's."""
        return PrefixStore(party.place, self._store)

    def _keys(self, part: str) -> list[str]:
        """Of all ranks; rank 0 accepts and sees what it writes itself."""
        if not part or self._party is None:
            return [f"hello/{rank}" for rank in range(self._size)]
        return [f"{self._party.place}/{part}/{rank}" for rank in range(self._size)]

    def _note(self, part: str) -> None:
        self._store.set(self._keys(part)[self._rank], "yes")

    def _invite(self) -> Party | None:
        if not self._has_begun:
            hellos = self._read_hellos()
            if hellos and hellos != self._hellos:
                self._write_invitation(hellos)
            if not hellos or not self._store.check(self._keys("accepted")):
                return None
            self._begin()
        return self._party if self._store.check(self._keys("seen")) else None

    def _read_hellos(self) -> list[str]:
        keys = self._keys("")
        if not self._store.check(keys):
            return []
        return [self._hello, *(self._store.get(key).decode() for key in keys[1:])]

    def _write_invitation(self, hellos: list[str]) -> None:
        try:
            said = [json.loads(hello) for hello in hellos]
            cards = [Card(**each["card"]) for each in said]
            numbers = [str(each["number"]) for each in said]
        except (ValueError, KeyError, TypeError):
            return
        self._party = Party(secrets.token_hex(8), cards, secrets.token_hex(32))
        self._hellos = hellos
        self._note("accepted")
        self._store.set("invitation", json.dumps({**asdict(self._party), "numbers": numbers}))

    def _begin(self) -> None:
        assert self._party is not None
        self._note("seen")
        self._store.set(f"{self._party.place}/begun", "yes")
        self._has_begun = True

    def _follow(self) -> Party | None:
        if self._party is not None and self._store.check([f"{self._party.place}/begun"]):
            self._note("seen")
            return self._party
        if self._store.check(["invitation"]):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._read_invitation(json.loads(self._store.get("invitation")))
        return None

    def _read_invitation(self, said: Any) -> None:
        if said["numbers"][self._rank : self._rank + 1] != [self._number]:
            return
        if self._party is None or self._party.place != said["place"]:
            cards = [Card(**card) for card in said["cards"]]
            if len(cards) != self._size:
                return
            self._party = Party(str(said["place"]), cards, str(said["salt"]))
            self._note("accepted")

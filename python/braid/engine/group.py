"""Peers that are addressed together."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from braid.engine import values
from braid.engine.region import Peer
from braid.engine.ticket import Ticket

if TYPE_CHECKING:
    from braid.engine.engine import Engine


class PeerGroup:
    """Peers whose addresses were checked once; Engine.peer_group() makes it.

    It goes wherever Engine takes several peers, and has their calls itself.
    """

    def __init__(self, engine: "Engine", peers: Iterable[Peer]) -> None:
        self._engine = engine
        self._peers = tuple(values.several(peers, "peer_group: peers"))

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def signal(self, imm: int, timeout: float | None = None) -> list[Ticket]:
        """As Engine.signal()."""
        return self._engine.signal(self, imm, timeout=timeout)

    def barrier(self, imm: int, timeout: float | None = None) -> None:
        """As Engine.barrier()."""
        self._engine.barrier(self, imm, timeout=timeout)

    def connect(self, timeout: float | None = None) -> None:
        """Connects to all of them at once, and waits."""
        tickets = [self._engine.connect(peer, timeout=timeout) for peer in self]
        for ticket in tickets:
            ticket.wait()

    def disconnect(self) -> None:
        """Ends the connections; our transfers to them become Cancelled."""
        for peer in self:
            self._engine.disconnect(peer)

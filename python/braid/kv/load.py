"""One request at a decoder: pages that come, or that it fetches, and the proof that it is over."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread

from braid.engine import Descriptor, Peer, Region, Ticket
from braid.errors import Error
from braid.kv.ending import Ending
from braid.kv.flying import Flying
from braid.kv.layout import Layout, Slice
from braid.kv.places import PageIds, Place


@dataclass(slots=True, eq=False)
class Source:
    """A prefiller's rank, as the decoder knows it."""

    peer: Peer
    incarnation: bytes | None = None
    name: str = ""
    layout: Layout | None = None
    regions: list[Descriptor] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    """Where each of its layers lies in `regions`."""
    pages: int = 0
    offered: list[Region] = field(default_factory=list)
    """Regions of our layers (and tails) that this source alone was told of."""
    is_offering: bool = False
    """Whether a thread registers what it is to be told."""
    heard_at: float = 0.0
    asked_at: float = 0.0
    """When it was last asked whether it is there, while nothing was wanted of it."""
    unwanted_at: float = 0.0
    """The last time at which nothing was wanted of it: until then it owed no letter."""
    error: Error | None = None
    """Why it cannot be used: it refused, or was lost."""
    is_gone: bool = False
    """Nothing that it has begun can land any more."""
    revoking: Thread | None = None
    """The thread that takes away what it was told of, once it is lost."""


@dataclass(slots=True)
class Order:
    """What a load gets from one source, and whether that source is through with it."""

    source: Source
    slices: list[Slice]
    is_settled: bool = False
    is_asked: bool = False
    """Whether it owes the answer to `took`."""


class Prefill:
    """All ranks of a prefiller, as one decoder's rank reaches them. Decoder.connect() makes it."""

    def __init__(self, sources: list[Source], decoder: object) -> None:
        self.sources = sources
        self.decoder = decoder
        self.waiting: dict[int, Load] = {}
        """Loads, by their tags, that begin when all ranks have answered."""

    def is_ready(self) -> bool:
        return all(source.layout is not None for source in self.sources)

    def error(self) -> Error | None:
        """Why it cannot be used."""
        return next((s.error for s in self.sources if s.error is not None), None)


class Load(Ending):
    """A request's pages on their way here. Ends well when all are in place, else with what went
    wrong, and not before nothing of it can land any more: then its pages may be used again.
    Decoder.want() and pull() make it.
    """

    def __init__(
        self,
        request: str,
        prefill: Prefill,
        tag: int,
        pages: PageIds,
        cancel: Callable[["Load", Error | None], None],
    ) -> None:
        super().__init__(f"request '{request}'")
        self.request = request
        self.prefill = prefill
        self.tag = tag
        self.pages = pages
        self.first_page = 0
        self.total_pages = 0
        self.remote_pages: PageIds | None = None
        """Where the pages lie at the prefiller; None: the prefiller writes them here."""
        self.orders: list[Order] = []
        self.is_placed = False
        """Whether `orders` are known: what comes from whom."""
        self.awaits: list[Source] = []
        """Its sources that must be told first where they may write."""
        self.expected: Ticket | None = None
        self.reads = Flying()
        self.to_read: deque[Callable[[], object]] = deque()
        """Reads that the engine has had no room for yet; empty once the load has failed."""
        self.tail_slot: int | None = None
        self.tail: bytes | None = None
        """What came behind the pages, once the load has ended well."""
        self.failure: Error | None = None
        """What it will end with, once nothing can land any more."""
        self.deadline: float | None = None
        self._cancel = cancel

    def cancel(self) -> None:
        """Takes it back, and waits for nothing: it ends as Cancelled when nothing of it can land
        any more, or well when that is too late.
        """
        self._cancel(self, None)

    def is_settled(self) -> bool:
        return (
            not self.reads and not self.to_read and all(order.is_settled for order in self.orders)
        )

"""One request at a prefiller: which of its pages are computed, and who gets them.

A *consumer* is one rank of a decoder. Pages go to it layer by layer, each as soon as it is computed
and the consumer has said where it wants it, whichever comes later. A request is over when all its
consumers are: only then may its pages be used again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np

from braid.engine import Descriptor, Engine, Peer, Ticket
from braid.errors import Error, Exhausted, InvalidArgument
from braid.kv.cache import PagedCache
from braid.kv.counters import Counters
from braid.kv.ending import Ending
from braid.kv.flying import LONGEST_S, Flying
from braid.kv.layout import Layout, Slice
from braid.kv.places import Move, PageIds, Place, both, is_any_twice, moves, named, regions_of


@dataclass(slots=True)
class Link:
    """A decoder's rank, as its hello has introduced it."""

    peer: Peer
    name: str
    layout: Layout
    heard_at: float
    asked_at: float = 0.0
    """When it was last asked whether it is there, while it got nothing."""
    regions: list[Descriptor] = field(default_factory=list)
    """The regions that it offered: its layers', and behind them its tails' if it has tails."""
    places: list[Place] = field(default_factory=list)
    """Where each of its layers lies in `regions`."""
    pages: int = 0


@dataclass(slots=True)
class Consumer:
    """A rank that wants a request's pages."""

    link: Link
    request: str
    tag: int
    slices: list[Slice]
    pages: PageIds
    """Its page numbers: where the request's pages go, from page `first_page` on."""
    first_page: int
    tail_slot: int | None
    sent: list[int]
    """How many pages of the request are on their way or there, for each layer here."""
    flying: Flying = field(default_factory=Flying)
    is_tail_sent: bool = False
    is_pulling: bool = False
    is_early: bool = False
    """It pulled before begin(), so what it read may not have been computed by then."""
    is_cancelled: bool = False
    is_over: bool = False
    error: Error | None = None

    def is_reading(self) -> bool:
        """Whether its pages are read: by a write of ours, or because it pulls them."""
        return bool(self.flying) or (self.is_pulling and not self.is_over)


class Handover(Ending):
    """A request's pages on their way to a decoder. Ends when they may be used again: well when
    every consumer has them, else with what went wrong. Prefiller.begin() makes it.
    """

    def __init__(
        self, request: str, cache: PagedCache, pages: PageIds, tokens: int, lease_until: float
    ) -> None:
        super().__init__(f"request '{request}'")
        self.request = request
        self.pages = pages
        self.tokens = tokens
        self.lease_until = lease_until
        self.expected: int | None = None
        """How many consumers there will be, once one of them has said it."""
        self.consumers: dict[bytes, Consumer] = {}
        self.tail: bytes | None = None
        self.tail_slot: int | None = None
        self.why: Error | None = None
        """Why it is given up, as soon as it is."""
        self._cache = cache
        self._computed = [0] * cache.layout.layers_here
        """How many pages are computed, for each layer here."""
        self.turn = 0
        """How often its pages were taken away. Passes that were declared before that do not count
        for the pages that it has now.
        """

    @property
    def layout(self) -> Layout:
        """The layout of the cache that its pages are in."""
        return self._cache.layout

    @property
    def total_pages(self) -> int:
        return self.layout.pages_of(self.tokens)

    def is_computed(self) -> bool:
        return min(self._computed) >= self.total_pages

    def why_not_pulled(self, pages: PageIds, names: tuple[str, str]) -> str | None:
        """What is wrong with a pull of `pages` by names[1] from us, names[0]; None: nothing. A page
        of another request, or one that is not computed yet, could have anything in it.
        """
        computed = self.pages[: min(self._computed)]
        if np.array_equal(pages, computed[: pages.size]):
            return None  # as most ask: from the first one on, in order
        rest = pages[~np.isin(pages, computed)]
        if not rest.size:
            return None
        asked = f"{self.what}: '{names[1]}' asked for pages {named(pages)}"
        if not np.isin(pages, self.pages).all():
            return f"{asked}, '{names[0]}' has {named(self.pages)} of it"
        return f"{asked}, of which {named(rest)} are not computed"

    def computed(self, layers: range, tokens: int) -> None:
        """All tokens before number `tokens` are in the pages of `layers`. A page that is not full
        waits for its last token.
        """
        is_all = tokens >= self.tokens
        pages = self.total_pages if is_all else tokens // self.layout.page_tokens
        here = self._here(layers)
        self._computed[here] = [max(found, pages) for found in self._computed[here]]

    def _here(self, layers: range) -> slice:
        """The places of `layers` among the layers that are here."""
        first = self.layout.first_layer
        return slice(layers.start - first, layers.stop - first)

    def pump(self, write: "Write", layers: range | None = None) -> None:
        """Begins all writes of `layers` (None: of all) that can begin."""
        for consumer in self.consumers.values():
            if consumer.error is None and not consumer.is_over and not consumer.is_pulling:
                try:
                    self._pump_one(consumer, write, layers)
                except Exhausted:  # the next tick goes on
                    return
                except Error as error:
                    consumer.error = error

    def _pump_one(self, consumer: Consumer, write: "Write", layers: range | None) -> None:
        for part in consumer.slices:
            begin, end = part.layers.start, part.layers.stop
            if layers is not None:
                begin, end = max(begin, layers.start), min(end, layers.stop)
            here = self._here(range(begin, end)) if begin < end else slice(0)
            progress = zip(consumer.sent[here], self._computed[here], strict=True)
            for (sent, computed), alike in groupby(progress):
                count, ready = len(list(alike)), min(computed, len(self.pages))
                if ready > sent:
                    span, several = (sent, ready), range(begin, begin + count)
                    self._write_pages(consumer, write, part, several, span)
                begin += count
        if self._may_send_tail(consumer):
            self._write_tail(consumer, write)
            consumer.is_tail_sent = True

    def _write_pages(
        self,
        consumer: Consumer,
        write: "Write",
        part: Slice,
        layers: range,
        span: tuple[int, int],
    ) -> None:
        """Writes pages span[0] to span[1] of the request, in as few calls as possible."""
        begin, end = span
        here, there = self.layout.first_layer, consumer.link.layout.first_layer
        places = both(layers, self._cache.places, here, consumer.link.places, there)
        theirs = consumer.pages[begin - consumer.first_page : end - consumer.first_page]
        for move in moves(places, self.pages[begin:end], theirs):
            self._write_move(consumer, write, part, move)
            moved = self._here(layers[move.layers.start : move.layers.stop])
            consumer.sent[moved] = [end] * len(move.layers)
            self.stamp("first page")

    def _write_move(self, consumer: Consumer, write: "Write", part: Slice, move: Move) -> None:
        head_bytes = self.layout.head_bytes
        write(
            consumer,
            (move.pages, part.heads * head_bytes),
            partial(
                write.engine.write_pages,
                regions_of(move.ours, self._cache.regions),
                regions_of(move.theirs, consumer.link.regions),
                part.heads * head_bytes,
                move.ours.ids,
                move.theirs.ids,
                src_stride=move.ours.stride,
                dst_stride=move.theirs.stride,
                src_offset=move.ours.offsets + np.uint64(part.source_head * head_bytes),
                dst_offset=move.theirs.offsets + np.uint64(part.target_head * head_bytes),
                imm=consumer.tag,
                timeout=LONGEST_S,
            ),
        )

    def _may_send_tail(self, consumer: Consumer) -> bool:
        has_tail = consumer.tail_slot is not None and self.tail_slot is not None
        return has_tail and not consumer.is_tail_sent and self.is_computed()

    def _write_tail(self, consumer: Consumer, write: "Write") -> None:
        tails = self._cache.tails
        assert tails.region is not None
        assert self.tail_slot is not None
        assert consumer.tail_slot is not None
        write(
            consumer,
            (1, tails.nbytes),
            partial(
                write.engine.write,
                tails.region,
                consumer.link.regions[-1],
                tails.nbytes,
                src_offset=self.tail_slot * tails.nbytes,
                dst_offset=consumer.tail_slot * tails.nbytes,
                imm=consumer.tag,
                timeout=LONGEST_S,
            ),
        )

    def is_all_sent(self, consumer: Consumer) -> bool:
        """Whether nothing is left to begin for it."""
        if consumer.tail_slot is not None and not consumer.is_tail_sent:
            return False
        return all(
            min(consumer.sent[self._here(part.layers)]) >= self.total_pages
            for part in consumer.slices
        )

    def is_read(self) -> bool:
        """Whether anybody reads the pages."""
        return any(consumer.is_reading() for consumer in self.consumers.values())

    def is_over(self) -> bool:
        """Whether nobody reads the pages any more, and nobody will."""
        if any(not consumer.is_over for consumer in self.consumers.values()):
            return False
        if self.why is not None:
            return True
        return self.expected is not None and len(self.consumers) >= self.expected

    def first_error(self) -> Error | None:
        errors = [c.error for c in self.consumers.values() if c.error is not None]
        return self.why or (errors[0] if errors else None)

    def take_pages(self) -> None:
        """Takes all pages away: nothing is computed in them, nor by passes that are under way."""
        self.turn += 1
        self.pages = self.pages[:0]
        self._computed = [0] * len(self._computed)

    def grow(self, pages: PageIds) -> None:
        """Adds pages at the end, since a cache is often given out chunk by chunk."""
        together = np.concatenate([self.pages, pages])
        if is_any_twice(together):
            raise InvalidArgument(f"{self.what}: a page is named twice")
        self.pages = together


class Write:
    """Begins one write and remembers it."""

    def __init__(self, engine: Engine, counters: Counters) -> None:
        self.engine = engine
        self._counters = counters

    def __call__(
        self, consumer: Consumer, amount: tuple[int, int], begin: Callable[[], Ticket]
    ) -> None:
        """`amount` is how many pages, and of how many bytes each."""
        consumer.flying.add(begin())
        self._counters.add("pages", amount[0])
        self._counters.add("bytes", amount[0] * amount[1])

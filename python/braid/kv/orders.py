"""What each load gets from whom: the letters to its prefillers, their answers, and its reads.

A load begins when every rank of its prefiller has answered the greeting, since only then is it
known what comes from whom (braid.kv.layout.cover). To be written to, it waits once more until each
of its sources was told where it may write. The letters are in braid.kv.consumers.
"""

import time
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from braid import letters
from braid.engine import Engine, Message
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.kv.cache import PagedCache
from braid.kv.layout import Layout, Slice, consumers, cover
from braid.kv.load import Load, Order, Prefill, Source
from braid.kv.loads import Loads
from braid.kv.reads import Reads


class Orders(Loads):
    """The orders of one decoder's loads. All is done with the lock held where nothing else is said.

    group   the layouts of all ranks of the decoder
    """

    def __init__(
        self,
        engine: Engine,
        cache: PagedCache,
        group: Sequence[Layout],
        silence: float,
        beat: float,
    ) -> None:
        super().__init__(engine, cache, silence, beat)
        self._group = group
        self._reads = Reads(engine, cache, self.counters)

    def _look_after(self, prefill: Prefill) -> None:
        """Begins the loads that have waited for the answers of all ranks, or ends them."""
        error = prefill.error()
        if error is None and not prefill.is_ready():
            return
        waiting, prefill.waiting = prefill.waiting, {}
        for load in waiting.values():
            begin = (
                partial(self._place, load) if error is None else partial(self._fail, load, error)
            )
            self._apart(load.what, begin, partial(self._fail, load))
        if error is not None and prefill in self._prefills:
            self._prefills.remove(prefill)

    def _place(self, load: Load) -> None:
        """Every rank has answered: begins the load, or lets it wait for the offers."""
        layouts = [source.layout for source in load.prefill.sources]
        known = [layout for layout in layouts if layout is not None]
        salt = zlib.crc32(load.request.encode())
        try:
            slices = cover(self.cache.layout, known, salt)
            counts = consumers(self._group, known, salt)
        except Error as error:
            return self._fail(load, error)
        if not load.is_placed:
            self._order(load, slices, counts)
        if load.remote_pages is not None:
            self._begin_reads(load, counts)
        elif self._awaits_offers(load):
            load.prefill.waiting[load.tag] = load  # and comes here again
        else:
            self._begin_writes(load, counts)
        return None

    def _order(self, load: Load, slices: list[Slice], counts: list[int]) -> None:
        """Notes what comes from whom. The group's first rank tells sources that no rank asks."""
        for number, source in enumerate(load.prefill.sources):
            of_it = [part for part in slices if part.source == number]
            if of_it:
                load.orders.append(Order(source, of_it))
            elif counts[number] == 0 and self.cache.layout == self._group[0]:
                self._send(source.peer, {"kind": "spared", "request": load.request})
        load.is_placed = True

    def _awaits_offers(self, load: Load) -> bool:
        """Whether the load must wait until all of its sources were told where they may write."""
        load.awaits = [order.source for order in load.orders if not order.source.offered]
        for source in load.awaits:
            self._begin_offer(source)
        return bool(load.awaits)

    def _on_offered(self, source: Source, error: Error | None) -> None:
        for prefill in [p for p in self._prefills if source in p.sources]:
            for load in list(prefill.waiting.values()):
                if error is not None and source in load.awaits:
                    self._apart(load.what, partial(self._fail, load, error))
            self._look_after(prefill)

    # --- push: prefillers write ---

    def _begin_writes(self, load: Load, counts: list[int]) -> None:
        """`counts` says of each source how many ranks of the group it will write to."""
        pages = len(load.pages)
        count = sum(len(part.layers) * pages for order in load.orders for part in order.slices)
        count += load.tail_slot is not None
        body = load.pages.astype("<u4").tobytes()
        if count:  # before anybody knows of the pages: what fails now has moved nothing
            load.expected = self.engine.expect(
                load.tag, count, callback=partial(self._on_count, load)
            )
        for order in load.orders:
            head = _want(load, order, counts[load.prefill.sources.index(order.source)])
            self._send(order.source.peer, head, body)
        if count:
            self.counters.add("pages", count)
            self.counters.add("bytes", len(load.pages) * self._bytes_of_page(load))
        else:  # all is here already
            self._finish(load, None)

    def _bytes_of_page(self, load: Load) -> int:
        """How much of a page comes, over all layers."""
        return sum(
            len(part.layers) * part.heads * self.cache.layout.head_bytes
            for order in load.orders
            for part in order.slices
        )

    def _on_count(self, load: Load, error: Error | None) -> None:
        """All pages have landed; with an error, their count is not expected any more. Without the
        lock.
        """
        with self._lock:
            if error is None and load.tag in self._loads:
                load.stamp("last page")
                self._finish(load, None)
        self._run_later()

    # --- pull: we read ---

    def _begin_reads(self, load: Load, counts: list[int]) -> None:
        """Tells the sources what is read, and reads. Without pages, only that nothing is wanted."""
        assert load.remote_pages is not None
        body = load.remote_pages.astype("<u8").tobytes()
        for order in load.orders:
            head = {
                "kind": "pull",
                "request": load.request,
                "tag": load.tag,
                "consumers": counts[load.prefill.sources.index(order.source)],
            }
            self._send(order.source.peer, head, body)
        if not load.pages.size:
            self._look_at_reads(load)
            return
        self._moving[load.tag] = load
        for order in load.orders:
            for part in order.slices:
                self._read_slice(load, order.source, part)
        self._look_at_reads(load)

    def _read_slice(self, load: Load, source: Source, part: Slice) -> None:
        try:
            if load.failure is None:
                self._reads.plan(load, source, part)
                self._reads.begin(load)
        except Error as error:
            self._fail(load, error)

    def _read_on(self, load: Load) -> None:
        try:
            self._reads.begin(load)
        except Error as error:
            self._fail(load, error)

    def _look_at_reads(self, load: Load) -> None:
        """Goes on when the load's reads have ended; else looks again when another one ends."""
        self._read_on(load)
        load.reads.watch(partial(self._on_landed, load))
        if load.reads.error is not None and load.failure is None:
            self._fail(load, load.reads.error)
        elif load.to_read:  # until there is room
            return
        elif not load.reads and load.failure is None:
            self._moving.pop(load.tag, None)
            load.stamp("last page")
            self._ask_if_held(load)
        elif not load.reads:
            self._settle(load)

    def _ask_if_held(self, load: Load) -> None:
        """Asks each source whether it kept its pages until all were read."""
        for order in load.orders:
            if not order.is_settled and not order.is_asked:
                order.is_asked = True
                head = {"kind": "took", "request": load.request, "tag": load.tag}
                self._send(order.source.peer, head)

    def _on_landed(self, load: Load) -> None:
        """A read has ended. Without the lock, on the engine's thread of callbacks."""
        with self._lock:
            load.stamp("first page")
            load.reads.landed()
            look = partial(self._look_at_reads, load)
            self._apart(load.what, look, partial(self._fail, load))
        self._run_later()

    def _read_again(self, load: Load, order: Order) -> None:
        """The prefiller began the request after our pull: what was read may not have been computed
        by then.
        """
        if not order.is_asked or load.remote_pages is None:
            return
        order.is_asked = False
        for event in ("first page", "last page"):
            load.times.pop(event, None)
        self._moving[load.tag] = load
        for part in order.slices:
            self._read_slice(load, order.source, part)
        self._look_at_reads(load)

    # --- what prefillers say ---

    def _handle(self, head: dict[str, Any], body: bytes, message: Message) -> None:
        kind = head["kind"]
        if kind in ("welcome", "refused"):
            return self._on_answer(head, body, message)
        source = self._by_sender.get(message.incarnation)
        if source is None:
            raise InvalidArgument(f"kv: '{kind}' of a prefiller that was not asked")
        source.heard_at = time.monotonic()
        if kind == "beat":
            return None
        if kind == "ask":
            return self._send(source.peer, {"kind": "beat", "requests": []})
        if kind not in ("failed", "cancelled", "held"):
            raise InvalidArgument(f"kv: asked for a message of a prefiller, found {kind!r}")
        load = self._loads.get(letters.whole(head, "tag", 2**32 - 1))
        if load is None or load.request != head.get("request"):
            self.counters.add("repeated")
            return None
        return self._on_word(load, source, head)

    def _on_word(self, load: Load, source: Source, head: dict[str, Any]) -> None:
        """failed, cancelled or held: the source is through with this load."""
        order = next((order for order in load.orders if order.source is source), None)
        if order is None:
            return
        if head["kind"] == "held" and head.get("is_early") is True and load.failure is None:
            self._read_again(load, order)
            return
        order.is_settled = True
        if head["kind"] == "held":
            if head.get("is_held") is not True:
                words = f"{load.what}: '{source.name}' gave its pages back before they were read"
                self._fail(load, Timeout(words))
        elif load.failure is None:
            words = head.get("why") or f"{load.what}: '{source.name}' took it back"
            self._fail(load, Cancelled(str(words)))
        self._settle(load)


def _want(load: Load, order: Order, num_consumers: int) -> dict[str, Any]:
    """The letter that has a source write. The tail comes from the first one."""
    has_tail = order is load.orders[0] and load.tail_slot is not None
    return {
        "kind": "want",
        "request": load.request,
        "tag": load.tag,
        "first_page": load.first_page,
        "tokens_pages": load.total_pages,
        "consumers": num_consumers,
        "slices": [
            [p.layers.start, p.layers.stop, p.source_head, p.target_head, p.heads]
            for p in order.slices
        ],
        "tail_slot": load.tail_slot if has_tail else None,
    }

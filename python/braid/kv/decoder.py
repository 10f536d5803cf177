"""The side that gets the pages. The messages are in braid.kv.prefiller.

When does a load end, and its pages may be used again?

    well        by the count: as many pages as were asked for have landed (push); or all reads have
                ended and every prefiller has said that it held its pages to here (pull). One that
                began the request behind the pull has it read again: what was read may not have been
                computed
    badly       what went wrong is known, and of every source one of these: it has said that it is
                through (failed, cancelled), or what it was told of is unregistered

Who the prefillers are, and whether one is gone, is in braid.kv.sources; loads are here.
"""

import heapq
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from braid import letters
from braid.closing import Closing
from braid.engine import Engine, Message, values
from braid.errors import Cancelled, Error, Exhausted, InvalidArgument, Timeout
from braid.kv.asked import given_seconds, page_numbers, request_name, seconds, whole
from braid.kv.cache import PagedCache
from braid.kv.ending import log
from braid.kv.flying import LONGEST_S
from braid.kv.layout import Layout, Slice, consumers, cover, whole_group
from braid.kv.load import Load, Order, Prefill, Source
from braid.kv.places import Move, PageIds, both, check_pages, moves, regions_of
from braid.kv.sources import Sources

_TAGS_FROM = 1 << 31  # the lower half of the immediates is the user's


class Decoder(Sources, Closing):
    """Gets the pages of requests from prefillers. One for each rank. A context manager.

    engine   its messages (send, recv) belong to the decoder from now on, and of its immediates the
             upper half
    cache    the pages
    group    the layouts of all ranks of this decoder; left out: cache.layout with every rank of its
             tensor parallelism
    silence  seconds after which a prefiller that says nothing is lost; ten times that, where
             nothing is wanted of it
    beat     seconds between words to prefillers of which something is wanted

    Every call takes any thread.
    """

    def __init__(
        self,
        engine: Engine,
        cache: PagedCache,
        *,
        group: Sequence[Layout] | None = None,
        silence: float = 10.0,
        beat: float = 1.0,
    ) -> None:
        super().__init__(
            engine,
            values.of_kind(cache, PagedCache, "decoder: cache"),
            given_seconds(silence, "decoder: silence"),
        )
        cache.check_writable("decoder: cache")
        self._group = [
            values.of_kind(layout, Layout, "decoder: group")
            for layout in values.several(group or whole_group(cache.layout), "decoder: group")
        ]
        self._beat = given_seconds(beat, "decoder: beat")
        self._loads: dict[int, Load] = {}
        self._moving: dict[int, Load] = {}
        """Those of them at which each tick looks: they read, or will end badly."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap, with the loads' tags; also of loads that are over."""
        self._wants: Counter[Prefill] = Counter()
        """How many loads of each."""
        self._renewed: dict[str, Prefill] = {}
        self._next_tag = _TAGS_FROM + secrets.randbelow(1 << 30)
        self._beaten_at = 0.0
        self._start()

    # --- what the user calls ---

    def want(
        self,
        request: str,
        prefill: Prefill,
        pages: Sequence[int] | PageIds,
        tokens: int,
        *,
        first_page: int = 0,
        timeout: float | None = None,
    ) -> Load:
        """Asks the prefiller to write a request's pages here.

        tokens      of its prompt
        pages       for each of its pages from `first_page` on, where it shall go; those before are
                    here already
        timeout     seconds for all of it
        InvalidArgument: a page out of range or named twice, or another number of them; tokens that
        are no whole number, a timeout that is no time, a prefill that this decoder did not make.
        Exhausted: the layout has tails, and so many loads are under way as have room for theirs.
        Whatever goes wrong behind that ends the load: once a prefiller knows of the pages they must
        not be used before.
        """
        ids = self.cache.ids(pages, f"request '{request_name(request, 'want')}'")
        load = self._new(request, prefill, ids, tokens, first_page, timeout)
        if self.cache.layout.tail_bytes:
            with self._lock:
                load.tail_slot = self.cache.tails.take()
            if load.tail_slot is None:
                raise Exhausted(f"{load.what}: all {self.cache.tails.SLOTS} tails are taken")
        return self._begin(load)

    def pull(
        self,
        request: str,
        prefill: Prefill,
        remote_pages: Sequence[int] | PageIds,
        pages: Sequence[int] | PageIds,
        *,
        timeout: float | None = None,
    ) -> Load:
        """Reads a request's pages that the prefiller holds and has computed: remote_pages[i] into
        pages[i]. With no pages it only says that nothing is wanted, so that the prefiller releases
        them.

        The prefiller need not have begun the request: pages are read again behind begin() where it
        does not know that they were computed before. Of a begun one whose pages are not computed
        the load ends badly, unless they are just while the letter of the pull is on its way, which
        nobody finds out: a router tells their numbers when they are computed.
        """
        what = f"request '{request_name(request, 'pull')}'"
        ours = self.cache.ids(pages, what)
        theirs = page_numbers(remote_pages, f"{what}: remote_pages")
        if theirs.size != ours.size:
            raise InvalidArgument(f"{what}: {theirs.size} pages there, {ours.size} here")
        tokens = ours.size * self.cache.layout.page_tokens
        load = self._new(request, prefill, ours, tokens, 0, timeout)
        load.remote_pages = theirs
        return self._begin(load)

    def renew(self, request: str, prefill: Prefill) -> None:
        """Keeps a request's lease at the prefiller until it is wanted, pulled or let go of."""
        self._check_prefill(prefill, f"request '{request_name(request, 'renew')}'")
        with self._lock:
            if prefill.error() is None:
                self._renewed[request] = prefill

    def let_go(self, request: str, prefill: Prefill) -> None:
        """Tells the prefiller that nobody will ask for the request."""
        self._check_prefill(prefill, f"request '{request_name(request, 'let_go')}'")
        with self._lock:
            self._renewed.pop(request, None)
            for source in prefill.sources:
                self._send(source.peer, {"kind": "cancel", "request": request, "tag": 0})

    def loads(self) -> list[Load]:
        """What is under way."""
        with self._lock:
            return list(self._loads.values())

    def close(self) -> None:
        """Takes all loads back, waits until nothing of them can land any more, and stops. After an
        error, which is of a region that could not be unregistered, it may be called again.
        """
        for load in self.loads():
            closed = Cancelled(f"{load.what}: the decoder closed")
            self._apart(load.what, partial(self._cancel, load, closed))
        until = time.monotonic() + 2 * self._silence
        for load in self.loads():
            try:
                load.wait(max(0.0, until - time.monotonic()))
            except Error as error:
                log.debug("close: %s", error)
        with self._lock:
            for source in self._sources.values():
                if source.layout is not None:
                    bye = partial(self._send, source.peer, {"kind": "bye"})
                    self._apart(f"'{source.name}'", bye)
        self._stop()
        self._revoke_all()
        for ticket in [ticket for load in self.loads() for ticket in load.reads]:
            with suppress(Error):
                ticket.cancel()  # of a load that began beside us
                ticket.wait()
        self._end_all()

    # --- sources ---

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

    def _look_after(self, prefill: Prefill) -> None:
        """Begins, or ends, what waits for its ranks' answers."""
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

    # --- loads ---

    def _new(
        self,
        request: str,
        prefill: Prefill,
        ids: PageIds,
        tokens: int,
        first_page: int,
        timeout: float | None,
    ) -> Load:
        """Of pages that are looked up already: that is most of the time of all the checks."""
        what = f"request '{request}'"
        self._check_prefill(prefill, what)
        limit = seconds(timeout, what)
        tokens = whole(tokens, f"{what}: tokens")
        first_page = whole(first_page, f"{what}: first_page")
        total = self.cache.layout.pages_of(tokens)
        if first_page > total or ids.size != total - first_page:
            raise InvalidArgument(
                f"{what}: {tokens} tokens take {total} pages; found {ids.size} from "
                f"page {first_page} on"
            )
        with self._lock:
            tag, self._next_tag = self._next_tag, self._next_tag + 1
            if self._next_tag >= 1 << 32:
                self._next_tag = _TAGS_FROM
        load = Load(request, prefill, tag, ids, self._cancel)
        load.first_page, load.total_pages = first_page, total
        load.deadline = None if limit is None else time.monotonic() + limit
        return load

    def _check_prefill(self, prefill: Prefill, what: str) -> None:
        if not isinstance(prefill, Prefill) or prefill.decoder is not self:
            raise InvalidArgument(
                f"{what}: prefill: asked for what connect() of this decoder gave, found "
                f"{prefill!r:.80}"
            )

    def _begin(self, load: Load) -> Load:
        with self._lock:
            self._loads[load.tag] = load
            self._wants[load.prefill] += 1
            if load.deadline is not None:
                heapq.heappush(self._deadlines, (load.deadline, load.tag))
            self._renewed.pop(load.request, None)
            self.counters.add("requests")
            load.prefill.waiting[load.tag] = load
            if self._is_over:
                self._fail(load, self._closed(load.what))
            else:
                self._look_after(load.prefill)
        self._run_later()
        return load

    def _place(self, load: Load) -> None:
        """Every rank has answered: what comes from whom is known."""
        layouts = [source.layout for source in load.prefill.sources]
        known = [layout for layout in layouts if layout is not None]
        salt = zlib.crc32(load.request.encode())
        try:
            slices = cover(self.cache.layout, known, salt)
            counts = consumers(self._group, known, salt)
        except Error as error:
            return self._fail(load, error)
        for number, source in enumerate(load.prefill.sources):
            if load.is_placed:  # and waited for offers
                break
            of_it = [part for part in slices if part.source == number]
            if of_it:
                load.orders.append(Order(source, of_it))
            elif counts[number] == 0 and self.cache.layout == self._group[0]:
                self._send(source.peer, {"kind": "spared", "request": load.request})
        load.is_placed = True
        if load.remote_pages is None and self._awaits_offers(load):
            load.prefill.waiting[load.tag] = load
        elif load.remote_pages is None:
            self._ask(load, counts)
        else:
            self._read(load, counts)
        return None

    def _awaits_offers(self, load: Load) -> bool:
        """Whether a source is still to be told where it may write."""
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

    def _ask(self, load: Load, counts: list[int]) -> None:
        pages = len(load.pages)
        count = sum(len(part.layers) * pages for order in load.orders for part in order.slices)
        count += load.tail_slot is not None
        body = load.pages.astype("<u4").tobytes()
        if count:  # before anybody knows of the pages: what fails now has moved nothing
            load.expected = self.engine.expect(
                load.tag, count, callback=partial(self._on_count, load)
            )
        for order in load.orders:
            has_tail = order is load.orders[0] and load.tail_slot is not None
            head = {
                "kind": "want",
                "request": load.request,
                "tag": load.tag,
                "first_page": load.first_page,
                "tokens_pages": load.total_pages,
                "consumers": counts[load.prefill.sources.index(order.source)],
                "slices": [
                    [p.layers.start, p.layers.stop, p.source_head, p.target_head, p.heads]
                    for p in order.slices
                ],
                "tail_slot": load.tail_slot if has_tail else None,
            }
            self._send(order.source.peer, head, body)
        if count:
            self.counters.add("pages", count)
            self.counters.add("bytes", len(load.pages) * self._bytes_of_page(load))
        else:  # all is here already
            self._finish(load, None)

    def _bytes_of_page(self, load: Load) -> int:
        return sum(
            len(part.layers) * part.heads * self.cache.layout.head_bytes
            for order in load.orders
            for part in order.slices
        )

    def _on_count(self, load: Load, error: Error | None) -> None:
        """All has landed; or nobody expects it any more."""
        with self._lock:
            if error is None and load.tag in self._loads:
                load.stamp("last page")
                self._finish(load, None)
        self._run_later()

    def _read(self, load: Load, counts: list[int]) -> None:
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
        assert source.layout is not None
        assert load.remote_pages is not None
        here, there = self.cache.layout.first_layer, source.layout.first_layer
        places = both(part.layers, self.cache.places, here, source.places, there)
        try:
            check_pages(load.remote_pages, source.pages, f"{load.what}: at '{source.name}'")
        except InvalidArgument as error:
            self._fail(load, error)
        if load.failure is not None:
            return
        load.to_read.extend(
            partial(self._read_move, load, source, part, move)
            for move in moves(places, load.pages, load.remote_pages)
        )
        self._read_on(load)

    def _read_on(self, load: Load) -> None:
        """Begins the reads that can begin: where the engine has all it takes under way, the others
        begin when one of this load has ended, or with the next tick.
        """
        while load.to_read and load.failure is None:
            try:
                load.to_read[0]()
            except Exhausted:
                return
            except Error as error:
                self._fail(load, error)
                return
            load.to_read.popleft()

    def _read_move(self, load: Load, source: Source, part: Slice, move: Move) -> None:
        head_bytes = self.cache.layout.head_bytes
        ticket = self.engine.read_pages(
            regions_of(move.ours, self.cache.regions),
            regions_of(move.theirs, source.regions),
            part.heads * head_bytes,
            move.ours.ids,
            move.theirs.ids,
            dst_stride=move.ours.stride,
            src_stride=move.theirs.stride,
            dst_offset=move.ours.offsets + np.uint64(part.target_head * head_bytes),
            src_offset=move.theirs.offsets + np.uint64(part.source_head * head_bytes),
            timeout=LONGEST_S,
        )
        load.reads.add(ticket)
        self.counters.add("pages", move.pages)
        self.counters.add("bytes", move.pages * part.heads * head_bytes)

    def _on_landed(self, load: Load) -> None:
        """A read has ended: on the engine's thread of callbacks."""
        with self._lock:
            load.stamp("first page")
            load.reads.landed()
            look = partial(self._look_at_reads, load)
            self._apart(load.what, look, partial(self._fail, load))
        self._run_later()

    def _look_at_reads(self, load: Load) -> None:
        """Whether all have ended, and how; else it looks again when another one has."""
        self._read_on(load)
        load.reads.watch(partial(self._on_landed, load))
        if load.reads.error is not None and load.failure is None:
            self._fail(load, load.reads.error)
        elif load.to_read:  # until there is room
            return
        elif not load.reads and load.failure is None:
            self._moving.pop(load.tag, None)
            load.stamp("last page")
            for order in load.orders:
                if not order.is_settled and not order.is_asked:
                    order.is_asked = True
                    head = {"kind": "took", "request": load.request, "tag": load.tag}
                    self._send(order.source.peer, head)
        elif not load.reads:
            self._settle(load)

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
                self._fail(load, Timeout(f"{load.what}: '{source.name}' gave its pages back before "
                                         "they were read"))  # fmt: skip
        elif load.failure is None:
            words = head.get("why") or f"{load.what}: '{source.name}' took it back"
            self._fail(load, Cancelled(str(words)))
        self._settle(load)

    def _read_again(self, load: Load, order: Order) -> None:
        """It began the request behind our pull: what was read then may not have been computed."""
        if not order.is_asked or load.remote_pages is None:
            return
        order.is_asked = False
        for event in ("first page", "last page"):
            load.times.pop(event, None)
        self._moving[load.tag] = load
        for part in order.slices:
            self._read_slice(load, order.source, part)
        self._look_at_reads(load)

    # --- ends ---

    def _cancel(self, load: Load, why: Error | None) -> None:
        with self._lock:
            if load.tag in self._loads and load.failure is None:
                self.counters.add("cancelled")
                self._fail(load, why or Cancelled(f"{load.what}: taken back"))
        self._run_later()

    def _fail(self, load: Load, error: Error) -> None:
        """It will end with `error`: reads are taken back, and those who write are told to stop."""
        if load.failure is not None:
            return
        load.failure = error
        load.to_read.clear()
        self._moving[load.tag] = load
        load.prefill.waiting.pop(load.tag, None)
        for ticket in load.reads:
            ticket.cancel()
        for order in load.orders:
            if not order.is_settled and not order.source.is_gone:
                head = {"kind": "cancel", "request": load.request, "tag": load.tag}
                self._apart(load.what, partial(self._send, order.source.peer, head))
        self._settle(load)

    def _settle(self, load: Load) -> None:
        for order in load.orders:
            order.is_settled = order.is_settled or order.source.is_gone
        if load.tag in self._loads and load.is_settled():
            if load.failure is not None:
                self._finish(load, load.failure)
            elif load.remote_pages is not None and load.orders:  # else it waits for its ranks
                self._finish(load, None)

    def _finish(self, load: Load, error: Error | None) -> None:
        load.to_read.clear()  # nothing of it begins any more
        del self._loads[load.tag]
        self._moving.pop(load.tag, None)
        self._wants[load.prefill] -= 1
        if not self._wants[load.prefill]:
            del self._wants[load.prefill]
        if error is not None and load.expected is not None:
            with suppress(InvalidArgument):  # a closed engine counts nothing
                self.engine.discard(load.tag)  # which does not come again
        if load.tail_slot is not None:
            load.tail = None if error is not None else self.cache.tails.get(load.tail_slot)
            self.cache.tails.give_back(load.tail_slot)
        self.counters.add("done" if error is None else "failed")
        self._end_later(load, error)

    def _end_each(self) -> None:
        for load in list(self._loads.values()):
            error = load.failure or self._closed(load.what)
            self._apart(load.what, partial(self._finish, load, error))

    # --- time ---

    def _tick(self, now: float) -> None:
        if now - self._beaten_at >= self._beat:
            self._beaten_at = now
            self._apart("beats", self._beat_all)
        for load in self._due(now):
            late = Timeout(f"{load.what}: not here within its deadline")
            self._apart(load.what, partial(self._fail, load, late))
        for load in list(self._moving.values()):
            look = partial(self._look_at_moving, load)
            self._apart(load.what, look, partial(self._fail, load))
        self._apart("sources", partial(self._look_at_sources, now))

    def _due(self, now: float) -> Iterator[Load]:
        while self._deadlines and self._deadlines[0][0] < now:
            _, tag = heapq.heappop(self._deadlines)
            if (load := self._loads.get(tag)) is not None:
                yield load

    def _look_at_moving(self, load: Load) -> None:
        load.reads.take_away()  # one that failed while an earlier one is watched
        if load.reads.error is not None:
            self._fail(load, load.reads.error)
        elif load.to_read:
            self._look_at_reads(load)
        if load.failure is not None:
            self._settle(load)

    def _beat_all(self) -> None:
        """A source knows itself whom it gives which request; the names are of those that it was
        not asked for yet.
        """
        names: dict[Source, list[str]] = {source: [] for source in self._wanted()}
        unasked = [(load.request, p) for p in self._wants for load in p.waiting.values()]
        for request, prefill in [*unasked, *self._renewed.items()]:
            for source in prefill.sources:
                names[source].append(request)
        for source, requests in names.items():
            if source.layout is not None and source.error is None:
                head = {"kind": "beat", "requests": requests}
                self._apart(f"'{source.name}'", partial(self._send, source.peer, head))

    def _on_lost(self, source: Source, error: Error) -> None:
        for load in list(self._loads.values()):
            if source in load.prefill.sources:
                self._apart(load.what, partial(self._fail, load, error))
        lost = [request for request, prefill in self._renewed.items() if source in prefill.sources]
        for request in lost:
            del self._renewed[request]

    def _on_gone(self) -> None:
        for load in list(self._loads.values()):
            self._apart(load.what, partial(self._settle, load))

    def _wanted(self) -> set[Source]:
        prefills = {*self._wants, *self._renewed.values()}
        return {source for prefill in prefills for source in prefill.sources}

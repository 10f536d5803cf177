"""The side that computes the pages and gives them away.

    decoder                                   prefiller
    hello {version, layout}                ->
                                           <- welcome {layout, regions}, or refused {why}
    offer {regions}                        -> where it may write
    want {request, tag, pages, ...}        -> writes pages as they are computed; each counts one
                                              under the tag. The last count is the end: no message
    cancel {request, tag}                  -> begins nothing more, waits for what is under way
                                           <- cancelled {request, tag}: nothing can land any more
                                           <- failed {request, tag, why}: the same, unasked
    pull {request, pages}                  -> keeps the pages for as long as the lease holds; of
                                              pages that the request has not: failed
    took {request}                         -> were they kept to here?
                                           <- held {request, is_held, is_early}; early: it pulled
                                              before begin(), so it reads again, and asks again
    spared {request}                       -> no rank will ask this one for anything
    beat {requests}                        -> renews their leases, and those of all that the decoder
                                              gets; also: are you there?
                                           <- beat
                                           <- ask: are you there? beat {} is the answer
    bye                                    -> writes nothing to it any more

Whichever of `want` and begin() comes first waits for the other, for a lease at most. A request that
is over is remembered: what comes for it later is answered `failed`, and moves nothing.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from braid import letters
from braid.closing import Closing
from braid.engine import Engine, Message, Watch, values
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.kv.asked import given_seconds, request_name, whole
from braid.kv.cache import PagedCache
from braid.kv.ending import log
from braid.kv.handover import Consumer, Handover, Link, Write
from braid.kv.layout import Slice
from braid.kv.links import Links
from braid.kv.places import PageIds, check_pages
from braid.kv.progress import Declared, Part, Progress

_MOST_REMEMBERED = 65536


@dataclass(slots=True)
class _Early:
    """What a decoder has said of a request that has not begun."""

    until: float
    letters: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)


class Prefiller(Links, Closing):
    """Gives the pages of requests away as they are computed. One for each rank. A context manager.

    engine   its messages (send, recv) belong to the prefiller from now on
    cache    the pages
    lease    seconds for which a request's pages are kept for a decoder that says nothing
    silence  seconds after which a decoder that says nothing while it gets pages is lost; ten times
             that, while it gets none

    Every call takes any thread.
    """

    def __init__(
        self, engine: Engine, cache: PagedCache, *, lease: float = 30.0, silence: float = 10.0
    ) -> None:
        super().__init__(
            engine,
            values.of_kind(cache, PagedCache, "prefiller: cache"),
            given_seconds(silence, "prefiller: silence"),
        )
        self._lease = given_seconds(lease, "prefiller: lease")
        self._requests: dict[str, Handover] = {}
        self._early: dict[tuple[str, bytes], _Early] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        self._handlers: dict[str, Callable[[dict[str, Any], bytes, bytes], None]] = {
            "offer": self._on_offer,
            "want": self._on_want,
            "pull": self._on_pull,
            "took": self._on_took,
            "cancel": self._on_cancel,
            "spared": self._on_spared,
        }
        self._write = Write(engine, self.counters)
        self._progress = Progress(engine, cache.layout.layers_here, self._on_computed)
        self._start()

    # --- what the user calls ---

    @property
    def word(self) -> Watch:
        """What a kernel bumps, once for each layer; or call layer_done()."""
        return self._progress.word

    def begin(
        self,
        request: str,
        pages: Sequence[int] | PageIds,
        tokens: int,
        *,
        is_computed: bool = False,
        was_computed_when_told: bool = False,
    ) -> Handover:
        """A request whose prompt of `tokens` tokens will be in `pages`, in order.

        pages: as many as there are by now; grow() adds more. They must not be used for anything
        else before the handover has ended. is_computed: all is in them already.

        was_computed_when_told: and was, before anybody was told of the pages. A decoder that has
        pulled them before this call has read them well then; else it reads them again, for they
        may have been computed meanwhile.
        InvalidArgument: a page out of range or named twice, more tokens than the cache (or, where
        all is computed, than `pages`) can hold, a request that is here already or over.
        """
        what = f"request '{request_name(request, 'begin')}'"
        ids = self.cache.ids(pages, what)
        room = (ids.size if is_computed else self.cache.pages) * self.cache.layout.page_tokens
        tokens = whole(tokens, f"{what}: tokens", room)
        with self._lock:
            if request in self._requests or request in self._over:
                how = "is under way" if request in self._requests else self._over[request]
                raise InvalidArgument(f"request '{request}': asked to begin it, it {how}")
            until = time.monotonic() + self._lease
            handover = Handover(request, self.cache, ids, tokens, until)
            self._requests[request] = handover
            self.counters.add("requests")
            if is_computed:
                self._mark_computed(handover)
            for key in [key for key in self._early if key[0] == request]:
                for head, body in self._early.pop(key).letters:
                    self._on_early(head, body, key[1])
                    consumer = handover.consumers.get(key[1])
                    if consumer is not None and head["kind"] == "pull" and body:
                        consumer.is_early = not was_computed_when_told
            self._settle(handover)
            if self._is_over:
                self._give_up(handover, self._closed(handover.what))
        self._run_later()
        return handover

    def grow(self, request: str, pages: Sequence[int] | PageIds) -> None:
        """More pages for a request, behind those that it has."""
        ids = self.cache.ids(pages, f"request '{request}'")
        with self._lock:
            if (handover := self._requests.get(request)) is not None:
                handover.grow(ids)
                self._pump(handover)
        self._run_later()

    def pause(self, request: str, timeout: float, *, patience: float | None = None) -> None:
        """Takes a request's pages away from it, and returns when nothing reads them any more: they
        may be used for something else at once. grow() gives it others, in which all is computed
        again, by passes that are declared behind this call; what has gone stays gone. One who
        pulls them reads them until it says that it is through. Raises Timeout.

        patience: seconds, behind which whoever reads them still does not get the request: its load
        ends badly. Whether it is slow or stopped, writes to it end soon when they are taken back,
        and else with the engine's lease. None: all of `timeout`.
        """
        what, began = f"request '{request}'", time.monotonic()
        until = began + given_seconds(timeout, what)
        patient_until = until if patience is None else began + given_seconds(patience, what)
        with self._lock:
            handover = self._requests.get(request)
            if handover is None:
                return
            handover.take_pages()
        while self._is_read(handover):
            now = time.monotonic()
            if now > until:
                raise Timeout(f"{handover.what}: its pages are read still after {timeout} s")
            if now > patient_until:
                self._stop_readers(handover)
            time.sleep(0.001)

    def _is_read(self, handover: Handover) -> bool:
        with self._lock:
            return handover.is_read()

    def _stop_readers(self, handover: Handover) -> None:
        with self._lock:
            for consumer in handover.consumers.values():
                if consumer.is_reading() and consumer.error is None:
                    words = f"{handover.what}: '{consumer.link.name}' read pages that were needed"
                    self._stop_consumer(handover, consumer, Timeout(words))
        self._run_later()

    def declare(self, parts: Sequence[Part]) -> None:
        """The next forward pass: it will bump the word once for each layer, in order. Chunks of a
        long prompt are parts of several passes. What it computes is in the pages that the request
        has now: behind pause() it counts for nothing. InvalidArgument, and nothing is declared: a
        request that was not begun. One that is over is no mistake: it may be cancelled at any time.
        """
        parts = values.several(parts, "declare: parts")
        for part in parts:
            values.of_kind(part, Part, "declare: parts")
            if not self.knows(part.request):
                raise InvalidArgument(f"request '{part.request}': declared, and never begun here")
            whole(part.tokens, f"request '{part.request}': tokens")
        with self._lock:
            self._progress.declare([Declared(part, self._turn(part)) for part in parts])

    def _turn(self, part: Part) -> int:
        """Of its request, with the lock held; one that is over has none."""
        handover = self._requests.get(part.request)
        return -1 if handover is None else handover.turn

    def knows(self, request: str) -> bool:
        """Whether it is under way, or has ended not long ago."""
        with self._lock:
            return request in self._requests or request in self._over

    def layer_done(self, layers: int = 1) -> None:
        """Bumps the word from the host: so many more layers of the declared passes are computed.
        InvalidArgument, and nothing moves: more than are left of what was declared.
        """
        self._progress.bump(whole(layers, "layer_done: layers"))

    def computed(self, request: str, tokens: int | None = None) -> None:
        """All layers of the request's first `tokens` tokens (None: of all) are in its pages: says
        so without the word.
        """
        if tokens is not None:
            whole(tokens, f"request '{request}': tokens")
        with self._lock:
            if (handover := self._requests.get(request)) is not None:
                self._mark_computed(handover, tokens)
                self._pump(handover)
        self._run_later()

    def tail(self, request: str, data: bytes) -> None:
        """What goes over behind all pages: `tail_bytes` of the layout."""
        data = values.octets(data, f"request '{request}': tail")
        if len(data) != self.cache.layout.tail_bytes:
            raise InvalidArgument(
                f"request '{request}': tail: asked for {self.cache.layout.tail_bytes} bytes, "
                f"found {len(data)}"
            )
        with self._lock:
            if (handover := self._requests.get(request)) is not None:
                handover.tail = data
                self._pump(handover)
        self._run_later()

    def cancel(self, request: str, why: Error | None = None) -> None:
        """Takes a request back; waits for nothing. Its decoder is told once nothing can land."""
        with self._lock:
            if (handover := self._requests.get(request)) is not None:
                self.counters.add("cancelled")
                self._give_up(handover, why or Cancelled(f"{handover.what}: taken back"))
        self._run_later()

    def close(self) -> None:
        """Takes all requests back, waits until they are over, and stops."""
        for request in self._under_way():
            closed = Cancelled(f"request '{request}': the prefiller closed")
            self._apart(f"request '{request}'", partial(self.cancel, request, closed))
        until = time.monotonic() + self._silence
        for handover in self._under_way().values():
            try:
                handover.wait(max(0.0, until - time.monotonic()))
            except Error as error:
                log.debug("close: %s", error)
        self._progress.close()
        self._stop()
        left = [c for handover in self._under_way().values() for c in handover.consumers.values()]
        for ticket in [ticket for consumer in left for ticket in consumer.flying]:
            with suppress(Error):
                ticket.cancel()  # of a request that began beside us
                ticket.wait()
        self._end_all()

    def _under_way(self) -> dict[str, Handover]:
        with self._lock:
            return dict(self._requests)

    # --- messages ---

    def _handle(self, head: dict[str, Any], body: bytes, message: Message) -> None:
        sender = message.incarnation
        if head["kind"] == "hello":
            return self._on_hello(head, body, message)
        link = self._links.get(sender)
        if link is None and head["kind"] == "bye":
            return None  # it was greeted by another prefiller of this engine, which is closed
        if link is None:
            raise InvalidArgument(f"'{head['kind']}' before a hello")
        link.heard_at = time.monotonic()
        if head["kind"] == "beat":
            self._on_beat(head, link, sender)
        elif head["kind"] == "bye":
            self._lose(sender, Cancelled(f"'{link.name}' has left"))
        elif (handler := self._handlers.get(head["kind"])) is not None:
            handler(head, body, sender)
        else:
            raise InvalidArgument(f"kv: asked for a message of a decoder, found {head['kind']!r}")
        return None

    def _on_early(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        link = self._links.get(sender)
        try:
            if link is not None:
                self._handlers[head["kind"]](head, body, sender)
        except Error as error:
            log.warning("'%s': %s", self.engine.name, error)

    def _on_want(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        request, tag = letters.text(head, "request"), letters.whole(head, "tag", 2**32 - 1)
        handover = self._found(request, head, body, sender)
        if handover is None:
            return
        if self._is_known(handover, sender, tag):
            return
        try:
            consumer = self._consumer(handover, head, body, sender)
        except Error as error:
            self.counters.add("refused")
            log.warning("'%s': refused a want: %s", self.engine.name, error)
            self._failed(sender, request, tag, str(error))
            return
        handover.expected = letters.whole(head, "consumers", 65536)
        handover.stamp("wanted")
        handover.consumers[sender] = consumer
        self._pump(handover)

    def _is_known(self, handover: Handover, sender: bytes, tag: int) -> bool:
        """Whether it gets the request already, which it is told under another tag."""
        known = handover.consumers.get(sender)
        if known is None:
            return False
        self.counters.add("repeated")
        if known.tag != tag:
            words = f"it goes to '{known.link.name}' already"
            self._failed(sender, handover.request, tag, words)
        return True

    def _consumer(
        self, handover: Handover, head: dict[str, Any], body: bytes, sender: bytes
    ) -> Consumer:
        link = self._links[sender]
        if not link.regions:
            raise InvalidArgument(f"{handover.what}: wanted before anything was offered")
        pages = _pages_of(head, body, "<u4")
        first = letters.whole(head, "first_page")
        wanted = max(0, letters.whole(head, "tokens_pages") - first)
        if letters.whole(head, "tokens_pages") != handover.total_pages:
            raise InvalidArgument(
                f"{handover.what}: {handover.total_pages} pages at '{self.engine.name}', "
                f"{head['tokens_pages']} at '{link.name}'"
            )
        if len(pages) != wanted:
            raise InvalidArgument(f"{handover.what}: {wanted} pages, found {len(pages)} numbers")
        check_pages(pages, link.pages, f"{handover.what}: at '{link.name}'")
        slot = head.get("tail_slot")
        if not isinstance(slices := head.get("slices"), list):
            raise InvalidArgument(f"kv: want: asked for slices, found {slices!r:.60}")
        return Consumer(
            link,
            handover.request,
            letters.whole(head, "tag", 2**32 - 1),
            [self._slice(numbers, link) for numbers in slices],
            pages,
            first,
            letters.whole(head, "tail_slot") if slot is not None else None,
            [first] * self.cache.layout.layers_here,
        )

    def _slice(self, numbers: object, link: Link) -> Slice:
        """[first layer, last + 1, source head, target head, heads]: within what both have."""
        if not isinstance(numbers, list) or [type(n) for n in numbers] != [int] * 5:
            raise InvalidArgument(f"kv: a slice is five numbers, found {numbers!r:.80}")
        begin, end, source, target, heads = numbers
        for layout, head in ((self.cache.layout, source), (link.layout, target)):
            last = layout.first_layer + layout.layers_here
            if not (layout.first_layer <= begin < end <= last and heads > 0):
                raise InvalidArgument(f"kv: layers {begin} to {end} are not those of a rank")
            if not 0 <= head <= layout.heads_here - heads:
                raise InvalidArgument(f"kv: heads {head} to {head + heads} are not those of a rank")
        return Slice(0, range(begin, end), source, target, heads)

    def _on_pull(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        request, tag = letters.text(head, "request"), letters.whole(head, "tag", 2**32 - 1)
        handover = self._found(request, head, body, sender)
        if handover is None or self._is_known(handover, sender, tag):
            return
        pages, none = _pages_of(head, body, "<u8"), np.empty(0, np.uint64)
        link = self._links[sender]
        consumer = Consumer(link, request, tag, [], none, 0, None, [], is_pulling=True)
        handover.expected = letters.whole(head, "consumers", 65536)
        handover.stamp("wanted")
        handover.consumers[sender] = consumer
        why = handover.why_not_pulled(pages, (self.engine.name, link.name))
        if why is not None:
            self.counters.add("refused")
            self._stop_consumer(handover, consumer, InvalidArgument(why))

    def _on_took(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        """The decoder has read all it wanted: was that before anybody gave the pages back, and
        behind begin()?
        """
        request, tag = letters.text(head, "request"), letters.whole(head, "tag", 2**32 - 1)
        handover = self._requests.get(request)
        if handover is None and (early := self._early.get((request, sender))) is not None:
            early.letters.append((head, body))  # its pull waits for begin(), too
            return
        consumer = handover.consumers.get(sender) if handover is not None else None
        if consumer is not None and not (consumer.is_pulling and consumer.tag == tag):
            consumer = None  # it gets the request otherwise, and this pull was told so
        is_early = consumer is not None and consumer.error is None and consumer.is_early
        is_held = consumer is not None and consumer.error is None and not is_early
        answer = {"kind": "held", "request": request, "tag": tag, "is_held": is_held}
        self._send(self._links[sender].peer, {**answer, "is_early": is_early})
        if handover is None or consumer is None:
            return
        if is_early:  # it reads again
            consumer.is_early = False
            return
        consumer.is_over = True
        handover.stamp("last page")
        self._settle(handover)

    def _on_cancel(self, head: dict[str, Any], _body: bytes, sender: bytes) -> None:
        request, tag = letters.text(head, "request"), letters.whole(head, "tag", 2**32 - 1)
        self._drop_early(request, sender, tag)
        handover = self._requests.get(request)
        consumer = handover.consumers.get(sender) if handover is not None else None
        if handover is None or consumer is None or consumer.is_over or consumer.tag != tag:
            answer = {"kind": "cancelled", "request": request, "tag": tag}
            self._send(self._links[sender].peer, answer)
            if handover is not None and consumer is None:
                self._give_up(handover, Cancelled(f"{handover.what}: its decoder took it back"))
            return
        self.counters.add("cancelled")
        consumer.is_cancelled = True
        self._stop_consumer(
            handover,
            consumer,
            Cancelled(f"{handover.what}: '{consumer.link.name}' took it back"),
        )

    def _drop_early(self, request: str, sender: bytes, tag: int) -> None:
        """What was said under that tag; of others it is told still."""
        early = self._early.get((request, sender))
        if early is not None:
            early.letters = [each for each in early.letters if _tag_of(each[0]) != tag]
            if not early.letters:
                del self._early[request, sender]

    def _on_spared(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        handover = self._found(letters.text(head, "request"), head, body, sender)
        if handover is not None:
            handover.expected = 0
            self._settle(handover)

    def _on_beat(self, head: dict[str, Any], link: Link, sender: bytes) -> None:
        requests = head.get("requests")
        if not isinstance(requests, list):
            raise InvalidArgument(f"kv: beat: asked for requests, found {requests!r:.60}")
        until = time.monotonic() + self._lease
        for request in requests:
            if (handover := self._requests.get(request)) is not None:
                handover.lease_until = until
        for handover in self._requests.values():
            consumer = handover.consumers.get(sender)
            if consumer is not None and not consumer.is_over:
                handover.lease_until = until
        self._send(link.peer, {"kind": "beat"})

    def _found(
        self, request: str, head: dict[str, Any], body: bytes, sender: bytes
    ) -> Handover | None:
        """The request; None when it is over (the decoder is told) or has not begun (kept)."""
        handover = self._requests.get(request)
        if handover is not None and handover.why is None:
            return handover
        if request in self._over or handover is not None:
            self.counters.add("repeated")
            how = self._over.get(request, "is given up")
            self._failed(sender, request, _tag_of(head), f"it {how}")
        else:
            early = self._early.setdefault(
                (request, sender), _Early(time.monotonic() + self._lease)
            )
            early.letters.append((head, body))
        return None

    def _failed(self, sender: bytes, request: str, tag: int, why: str) -> None:
        """Tells the decoder that nothing (more) will land under the tag."""
        link = self._links.get(sender)
        if link is not None:
            words = f"request '{request}' at '{self.engine.name}': {why}"
            answer = {"kind": "failed", "request": request, "tag": tag, "why": words}
            self._send(link.peer, answer)

    # --- pages ---

    def _on_computed(self, parts: Sequence[Declared], layers: range) -> None:
        """The word has moved: on its own thread, and maybe some time ago."""
        first = self.cache.layout.first_layer
        numbered = range(layers.start + first, layers.stop + first)
        with self._lock:
            for part, turn in parts:
                handover = self._requests.get(part.request)
                if handover is None or handover.turn != turn:
                    continue
                handover.lease_until = time.monotonic() + self._lease
                handover.computed(numbered, part.tokens)
                pump = partial(self._pump, handover, numbered)
                self._apart(handover.what, pump, partial(self._give_up, handover))
        self._run_later()

    def _mark_computed(self, handover: Handover, tokens: int | None = None) -> None:
        handover.lease_until = time.monotonic() + self._lease
        first = self.cache.layout.first_layer
        layers = range(first, first + self.cache.layout.layers_here)
        handover.computed(layers, handover.tokens if tokens is None else tokens)
        if handover.is_computed():
            handover.stamp("computed")

    def _pump(self, handover: Handover, layers: range | None = None) -> None:
        if handover.why is not None:
            return
        if handover.is_computed():
            handover.stamp("computed")
        if handover.tail is not None and handover.tail_slot is None:
            handover.tail_slot = self.cache.tails.take()  # none is free: at a later tick
            if handover.tail_slot is not None:
                self.cache.tails.put(handover.tail_slot, handover.tail)
        handover.pump(self._write, layers)
        for consumer in handover.consumers.values():
            self._look_at(handover, consumer)
        self._settle(handover)

    def _look_at(self, handover: Handover, consumer: Consumer) -> None:
        """Whether anything went wrong, now and when another one of its writes has ended."""
        consumer.flying.watch(partial(self._on_landed, consumer))
        error = consumer.error or consumer.flying.error
        if error is not None and not consumer.is_over:
            self._stop_consumer(handover, consumer, error)

    def _on_landed(self, consumer: Consumer) -> None:
        """A write has ended: on the engine's thread of callbacks."""
        with self._lock:
            consumer.flying.landed()
            if (handover := self._requests.get(consumer.request)) is not None:
                self._look_at(handover, consumer)
                self._settle(handover)
        self._run_later()

    def _stop_consumer(self, handover: Handover, consumer: Consumer, error: Error) -> None:
        """Begins nothing more for it; it is over when what is under way has ended."""
        consumer.error = consumer.error or error
        for ticket in consumer.flying:
            ticket.cancel()
        self._settle(handover)

    # --- ends ---

    def _settle(self, handover: Handover) -> None:
        """Finds what is over by now, and says it."""
        for sender, consumer in handover.consumers.items():
            if consumer.is_over or consumer.flying:
                continue
            if consumer.error is not None:
                consumer.is_over = True
                say = partial(self._say_over, handover, consumer, sender)
                self._apart(handover.what, say)
            elif not consumer.is_pulling and handover.is_all_sent(consumer):
                handover.stamp("last page")
                consumer.is_over = True
        if handover.is_over() and handover.request in self._requests:
            self._finish(handover)

    def _say_over(self, handover: Handover, consumer: Consumer, sender: bytes) -> None:
        if consumer.is_cancelled:
            answer = {"kind": "cancelled", "request": handover.request, "tag": consumer.tag}
            self._send(consumer.link.peer, answer)
        else:
            self._failed(sender, handover.request, consumer.tag, str(consumer.error))

    def _finish(self, handover: Handover) -> None:
        del self._requests[handover.request]
        self.cache.tails.give_back(handover.tail_slot)
        error = handover.first_error()
        self.counters.add("done" if error is None else "failed")
        self._over[handover.request] = "is over" if error is None else f"ended: {error}"
        while len(self._over) > _MOST_REMEMBERED:
            self._over.popitem(last=False)
        self._end_later(handover, error)

    def _give_up(self, handover: Handover, why: Error) -> None:
        handover.why = handover.why or why
        for consumer in list(handover.consumers.values()):
            if not consumer.is_over:
                self._stop_consumer(handover, consumer, why)
        self._settle(handover)

    def _end_each(self) -> None:
        for handover in list(self._requests.values()):
            handover.why = handover.why or self._closed(handover.what)
            self._apart(handover.what, partial(self._finish, handover))

    def _lose(self, sender: bytes, why: Error) -> None:
        """A decoder's rank is gone: nothing is written to it any more."""
        if (link := self._links.pop(sender, None)) is not None:
            self._drop_letters(link.peer)
        for handover in list(self._requests.values()):
            consumer = handover.consumers.get(sender)
            if consumer is not None and not consumer.is_over:
                self._stop_consumer(handover, consumer, why)
                self._give_up(handover, why)

    def _tick(self, now: float) -> None:
        for handover in list(self._requests.values()):
            look = partial(self._look_at_lease, handover, now)
            self._apart(handover.what, look, partial(self._give_up, handover))
        self._apart("links", partial(self._look_at_links, now))
        for key, early in list(self._early.items()):
            if now > early.until:
                self._apart(f"request '{key[0]}'", partial(self._forget_early, key))

    def _look_at_lease(self, handover: Handover, now: float) -> None:
        if handover.why is not None:
            return self._settle(handover)
        if handover.consumers:
            self._pump(handover)
        if now > handover.lease_until and handover.why is None:
            self.counters.add("expired")
            words = f"{handover.what}: nobody has renewed its lease of {self._lease} s"
            self._give_up(handover, Timeout(words))
        return None

    def _forget_early(self, key: tuple[str, bytes]) -> None:
        """A request that nobody began: its decoder is told."""
        request, sender = key
        early = self._early.pop(key)
        for tag in dict.fromkeys(_tag_of(head) for head, _ in early.letters):
            self._failed(sender, request, tag, f"it has not begun within {self._lease} s")

    def _serves(self, sender: bytes) -> bool:
        return any(
            sender in handover.consumers and not handover.consumers[sender].is_over
            for handover in self._requests.values()
        )


def _tag_of(head: dict[str, Any]) -> int:
    """0: it has none."""
    tag = head.get("tag")
    return tag if type(tag) is int else 0


def _pages_of(head: dict[str, Any], body: bytes, number: str) -> PageIds:
    """The page numbers behind a head; InvalidArgument: the last one is cut off."""
    if len(body) % np.dtype(number).itemsize:
        raise InvalidArgument(f"kv: '{head['kind']}' with {len(body)} bytes of page numbers")
    return np.frombuffer(body, number).astype(np.uint64)

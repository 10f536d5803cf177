"""The side that computes a request's pages and gives them away: what its user calls.

A prefiller is made in layers, each of which knows nothing of the next:

    post        letters, the clock, and one lock (with the decoder's side)
    links       who the decoders are
    handovers   the requests under way: what is computed goes out, and each ends once
    consumers   what decoders' letters ask for, and the protocol
    prefiller   what the user calls
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from braid.closing import Closing
from braid.engine import Engine, Watch, values
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.kv.asked import given_seconds, request_name, whole
from braid.kv.cache import PagedCache
from braid.kv.consumers import Consumers
from braid.kv.ending import log
from braid.kv.handover import Handover
from braid.kv.places import PageIds
from braid.kv.progress import Declared, Part, Progress


class Prefiller(Consumers, Closing):
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
            given_seconds(lease, "prefiller: lease"),
            given_seconds(silence, "prefiller: silence"),
        )
        self._progress = Progress(engine, cache.layout.layers_here, self._on_computed)
        self._start()

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

        pages        as many as there are by now; grow() adds more. They must not be used for
                     anything else before the handover has ended
        is_computed  all tokens are in the pages already
        was_computed_when_told    and they were before any decoder heard of the pages. Then what a
                     decoder pulled before this call is right; else it reads the pages again

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
            self._hear_early(handover, was_computed_when_told=was_computed_when_told)
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
        """Takes a request's pages away from it, and returns when nothing reads them any more: then
        they may be used for something else. Raises Timeout.

        grow() gives the request other pages. All tokens are computed again in them, by passes that
        are declared after this call; pages that a decoder has already are not sent again. A decoder
        that pulls the old pages reads them until it has said that it is through.

        patience    seconds after which a decoder that still reads them does not get the request:
                    its load ends badly. Writes to it are taken back and mostly end soon; else they
                    end with the engine's lease. None: all of `timeout`
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
        """The next forward pass, which will bump the word once for each layer, in order. Chunks of
        a long prompt are parts of several passes.

        The pass computes into the pages that a request has now: after a pause() it counts for
        nothing. InvalidArgument, and nothing is declared: a request that was not begun. One that
        is over is no mistake, since it may be cancelled at any time.
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
        """The turn of the part's request, or -1 when that is over. With the lock held."""
        handover = self._requests.get(part.request)
        return -1 if handover is None else handover.turn

    def knows(self, request: str) -> bool:
        """Whether the request is under way, or has ended not long ago."""
        with self._lock:
            return request in self._requests or request in self._over

    def layer_done(self, layers: int = 1) -> None:
        """Bumps the word from the host: `layers` more layers of the declared passes are computed.
        InvalidArgument, and nothing moves: more than are left of what was declared.
        """
        self._progress.bump(whole(layers, "layer_done: layers"))

    def computed(self, request: str, tokens: int | None = None) -> None:
        """Says without the word that all layers of the request's first `tokens` tokens (None: of
        all tokens) are in its pages.
        """
        if tokens is not None:
            whole(tokens, f"request '{request}': tokens")
        with self._lock:
            if (handover := self._requests.get(request)) is not None:
                self._mark_computed(handover, tokens)
                self._pump(handover)
        self._run_later()

    def tail(self, request: str, data: bytes) -> None:
        """What is sent behind the last page: `tail_bytes` bytes, as the layout says."""
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

"""The side that gets a request's pages: what its user calls.

A decoder is made in layers, each of which knows nothing of the next:

    post      letters, the clock, and one lock (with the prefiller's side)
    sources   who the prefillers are
    loads     the loads under way, and when each is over
    orders    what each load gets from whom; reads begins the reads of those that are pulled
    decoder   what the user calls

The letters are told in braid.kv.consumers.
"""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from braid.closing import Closing
from braid.engine import Engine, values
from braid.errors import Cancelled, Error, Exhausted, InvalidArgument
from braid.kv.asked import given_seconds, page_numbers, request_name, seconds, whole
from braid.kv.cache import PagedCache
from braid.kv.ending import log
from braid.kv.layout import Layout, whole_group
from braid.kv.load import Load, Prefill
from braid.kv.orders import Orders
from braid.kv.places import PageIds

_TAGS_FROM = 1 << 31  # the lower half of the immediates is the user's


class Decoder(Orders, Closing):
    """Gets the pages of requests from prefillers. One for each rank. A context manager.

    engine   its messages (send, recv) and the upper half of its immediates belong to the decoder
             from now on
    cache    the pages
    group    the layouts of all ranks of this decoder; left out: cache.layout with every rank of its
             tensor parallelism
    silence  seconds after which a prefiller that says nothing is lost; ten times that, while
             nothing is wanted of it
    beat     seconds between letters to a prefiller of which something is wanted

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
        cache = values.of_kind(cache, PagedCache, "decoder: cache")
        silence = given_seconds(silence, "decoder: silence")
        cache.check_writable("decoder: cache")
        layouts = [
            values.of_kind(layout, Layout, "decoder: group")
            for layout in values.several(group or whole_group(cache.layout), "decoder: group")
        ]
        beat = given_seconds(beat, "decoder: beat")
        super().__init__(engine, cache, layouts, silence, beat)
        self._next_tag = _TAGS_FROM + secrets.randbelow(1 << 30)
        self._start()

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

        tokens      of the request's prompt
        pages       where its pages go, from the request's page `first_page` on; those before are
                    here already
        timeout     seconds for all of it

        InvalidArgument: a page out of range or named twice, or another number of them; tokens that
        are no whole number, a timeout that is no time, a prefill that this decoder did not make.
        Exhausted: the layout has tails, and the loads under way have taken all slots for them.
        Whatever goes wrong later ends the load, and the pages must not be used before it has ended:
        a prefiller may know of them.
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
        """Reads pages of a request that the prefiller has computed: remote_pages[i] into pages[i].
        Without pages it only says that none are wanted, so that the prefiller releases them.

        The prefiller need not have begun the request. When it does it may have the pages read
        again, since they may not have been computed before (Prefiller.begin()). If it has begun the
        request and the pages are not computed, the load ends badly. Pages that become computed
        while the letter is on its way are not noticed, though what was read may be older: tell a
        decoder of pages only when they are computed.
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
        """The loads that are under way."""
        with self._lock:
            return list(self._loads.values())

    def close(self) -> None:
        """Takes all loads back, waits until nothing of them can land any more, and stops. It raises
        where a region cannot be unregistered, and may be called again then.
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

    def _new(
        self,
        request: str,
        prefill: Prefill,
        ids: PageIds,
        tokens: int,
        first_page: int,
        timeout: float | None,
    ) -> Load:
        """A load of pages whose numbers are checked: of the checks that one takes most of the time,
        so callers make it once.
        """
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

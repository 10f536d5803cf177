"""The loads under way at a decoder: their deadlines, whose pages are wanted, and how they end. What
comes from whom, and by which letters, is in braid.kv.orders.

When does a load end, and its pages may be used again?

    well     pushed: as many pages as were asked for have landed, by the count.
             pulled: all reads have ended, and every prefiller has said that it kept its pages until
             then. A prefiller that began the request only after the pull has it read again, since
             what was read may not have been computed
    badly    what went wrong is known; our reads have ended; and every source has said that it is
             through (failed, cancelled), or what it was told of is unregistered
"""

import heapq
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from braid.engine import Engine
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.kv.cache import PagedCache
from braid.kv.load import Load, Prefill, Source
from braid.kv.sources import Sources


class Loads(Sources):
    """The loads of one decoder. All is done with the lock held where nothing else is said."""

    def __init__(self, engine: Engine, cache: PagedCache, silence: float, beat: float) -> None:
        super().__init__(engine, cache, silence)
        self._beat = beat
        self._loads: dict[int, Load] = {}
        """All, by their tags."""
        self._moving: dict[int, Load] = {}
        """The loads that each tick looks at, since they read or will end badly."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap, with the loads' tags; also of loads that are over."""
        self._wants: Counter[Prefill] = Counter()
        """How many loads each prefill has."""
        self._renewed: dict[str, Prefill] = {}
        """Requests that are kept at their prefillers until a load asks for them."""
        self._beaten_at = 0.0

    @abstractmethod
    def _look_at_reads(self, load: Load) -> None:
        """Begins reads that wait for room, and finds whether all have ended."""

    def _begin(self, load: Load) -> Load:
        """Enters the load: it begins when all ranks of its prefiller have answered. Without the
        lock.
        """
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

    # --- ends ---

    def _cancel(self, load: Load, why: Error | None) -> None:
        """Without the lock."""
        with self._lock:
            if load.tag in self._loads and load.failure is None:
                self.counters.add("cancelled")
                self._fail(load, why or Cancelled(f"{load.what}: taken back"))
        self._run_later()

    def _fail(self, load: Load, error: Error) -> None:
        """The load will end with `error`, once nothing can land any more: its reads are taken back,
        and its sources are told to stop.
        """
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
        """Finishes the load if every source is through with it or gone, and all reads have ended.
        One that is written to ends well by its count alone.
        """
        for order in load.orders:
            order.is_settled = order.is_settled or order.source.is_gone
        if load.tag in self._loads and load.is_settled():
            if load.failure is not None:
                self._finish(load, load.failure)
            elif load.remote_pages is not None and load.orders:  # else it waits for its ranks
                self._finish(load, None)

    def _finish(self, load: Load, error: Error | None) -> None:
        """Nothing of it can land any more: its pages may be used again."""
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
        """The loads whose deadline has passed, each once."""
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

    # --- sources ---

    def _beat_all(self) -> None:
        """Says to all sources of which anything is wanted that we are there. The letter names the
        requests that a source was not asked for yet; of the others it knows itself.
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

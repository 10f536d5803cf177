"""Who a decoder's prefillers are: greets their ranks, tells them where they may write, finds those
that are gone, and takes away from them what they were told. It knows nothing of loads.

A source (a prefiller's rank) that says nothing is given up after `silence` seconds. It may be
alive, and write when it wakes up. So each source is told of regions of its own, over the same
memory: they are unregistered, which ends when nothing can land through them any more, and no other
source notices. The same happens to one of which nothing is wanted, after a longer time: peers come
and go.
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from braid import letters
from braid.engine import Descriptor, Engine, Message, Peer, Region
from braid.errors import Error, InvalidArgument, PeerLost, Timeout
from braid.kv.asked import seconds
from braid.kv.cache import PagedCache, unregister_all
from braid.kv.ending import log
from braid.kv.layout import Layout, difference
from braid.kv.load import Prefill, Source
from braid.kv.places import places_from
from braid.kv.post import VERSION, Post, is_of

_AGAIN_S = 0.5
# For an idle source, in multiples of `silence`.
_ASKED_AFTER = 3
_LOST_AFTER = 10


class Sources(Post):
    """The sources of one decoder. All is done with the lock held where nothing else is said."""

    def __init__(self, engine: Engine, cache: PagedCache, silence: float) -> None:
        super().__init__(engine)
        self.cache = cache
        self._silence = silence
        self._sources: dict[bytes, Source] = {}
        """By the peer's address; without the sources that are lost."""
        self._by_sender: dict[bytes, Source] = {}
        self._lost: list[Source] = []
        """The lost sources that may still write."""
        self._prefills: list[Prefill] = []
        self._offering: set[threading.Thread] = set()

    @abstractmethod
    def _wanted(self) -> set[Source]:
        """The sources of which anything is wanted."""

    @abstractmethod
    def _look_after(self, prefill: Prefill) -> None:
        """A rank of the prefill has answered, or cannot be used any more."""

    @abstractmethod
    def _on_lost(self, source: Source, error: Error) -> None:
        """The source is given up; it may still write."""

    @abstractmethod
    def _on_offered(self, source: Source, error: Error | None) -> None:
        """The source was told where it may write; with an error, it could not be."""

    @abstractmethod
    def _on_gone(self) -> None:
        """Nothing of some source can land any more: its `is_gone` says so."""

    def connect(self, peers: Sequence[Peer], timeout: float | None = None) -> Prefill:
        """The ranks of a prefiller, by their engines' addresses. Waits for their answers for
        `timeout` seconds (None: not at all, and what is wanted meanwhile waits). Of the same
        ranks it gives the same Prefill, until one of them is lost.

        InvalidArgument: another model, layout, dtype or version; Timeout, PeerLost.
        """
        limit = seconds(timeout, "connect")
        is_list = isinstance(peers, Iterable)
        if not is_list or not peers or not all(isinstance(peer, Peer) for peer in peers):
            raise InvalidArgument(
                f"kv: asked for the addresses of a prefiller's engines, found {peers!r:.80}"
            )
        with self._lock:
            prefill = self._prefill([self._source(peer) for peer in peers])
            self._look_after(prefill)
        self._run_later()
        until = time.monotonic() + (limit or 0)
        while limit is not None and not prefill.is_ready():
            if (error := prefill.error()) is not None:
                raise error
            if time.monotonic() > until:
                silent = [s.peer.where() for s in prefill.sources if s.layout is None]
                raise Timeout(f"connect: {', '.join(silent)}: no answer within {timeout} s")
            time.sleep(0.002)
        return prefill

    # --- those who answer ---

    def _prefill(self, sources: list[Source]) -> Prefill:
        """The Prefill of these sources: a known one, or a new one."""
        for known in self._prefills:
            if known.sources == sources:
                return known
        prefill = Prefill(sources, self)
        self._prefills.append(prefill)
        return prefill

    def _source(self, peer: Peer) -> Source:
        """A known source, or a new one, which is greeted; so is one that was lost."""
        source = self._sources.get(peer.data)
        if source is None:
            source = Source(peer, heard_at=time.monotonic())
            layout = self.cache.layout.as_json()
            head = {"kind": "hello", "version": VERSION, "layout": layout}
            self._send(peer, head, letters.pack([self.engine.address.data]))
            self._sources[peer.data] = source
        return source

    def _on_answer(self, head: dict[str, Any], body: bytes, message: Message) -> None:
        """An answer to a hello, of the source whose address has the sender's incarnation in it."""
        source = next(
            (s for s in self._sources.values() if is_of(s.peer, message.incarnation)), None
        )
        if source is None:
            raise InvalidArgument(f"kv: '{message.sender}' answers what it was not asked")
        source.heard_at = time.monotonic()
        source.incarnation, source.name = message.incarnation, message.sender
        self._by_sender[message.incarnation] = source
        try:
            self._accept(source, head, body)
        except Error as error:
            self.counters.add("refused")
            source.error = error
            self._leave_out(source)
            self._gone(source)
        for prefill in list(self._prefills):
            self._look_after(prefill)

    def _accept(self, source: Source, head: dict[str, Any], body: bytes) -> None:
        if head["kind"] == "refused":
            raise InvalidArgument(f"'{source.name}' refused: {head.get('why')}")
        layout = Layout.from_json(head.get("layout"))
        names = (self.engine.name, source.name)
        if (found := difference(self.cache.layout, layout, names)) is not None:
            raise InvalidArgument(found)
        source.regions = [Descriptor(part) for part in letters.unpack(body)]
        source.pages = letters.whole(head, "pages")
        source.places = places_from(head.get("places"), layout.layers_here, len(source.regions))
        source.layout = layout

    def _begin_offer(self, source: Source) -> None:
        """Tells a source where it may write, before the first thing that it is to write. What is
        told is made on a thread of its own: that takes a second for much memory and some NICs, and
        all other requests would wait for it.
        """
        if source.is_offering:
            return
        if self._closing.is_set() or self._is_over:
            raise self._closed(f"'{source.name}'")
        thread = threading.Thread(target=self._make_offer, args=(source,), daemon=True)
        thread.start()
        source.is_offering = True
        self._offering.add(thread)

    def _make_offer(self, source: Source) -> None:
        """Without the lock. What nobody was told of, since it was for one that is lost or wanted by
        nobody any more, is taken back.
        """
        made: list[Region] = []
        errors: list[Error | None] = [None]
        make = partial(self._register, made)
        self._apart(f"'{source.name}'", make, errors.append)
        with self._lock:
            source.is_offering = False
            if made and source.error is None and not self._closing.is_set() and not self._is_over:
                source.offered, made = made, []
                self._apart(f"'{source.name}'", partial(self._offer, source))
            error = self._closed(f"'{source.name}'") if self.engine.closed else errors[-1]
            self._on_offered(source, error)
        self._run_later()
        take_back = partial(unregister_all, self.engine, made, were_told=False)
        self._apart(f"'{source.name}'", take_back)
        with self._lock:
            self._offering.discard(threading.current_thread())

    def _register(self, made: list[Region]) -> None:
        made.extend(self.cache.register_layers())

    def _offer(self, source: Source) -> None:
        places = [list(place) for place in self.cache.places]
        regions = [region.descriptor.data for region in source.offered]
        head = {"kind": "offer", "places": places, "pages": self.cache.pages}
        self._send(source.peer, head, letters.pack(regions))

    # --- those who do not ---

    def _look_at_sources(self, now: float) -> None:
        """At each tick."""
        wanted = self._wanted()
        for source in list(self._sources.values()):
            if source in wanted:
                look = partial(self._look_at_silence, source, now)
            else:
                look = partial(self._look_at_idle, source, now)
            self._apart(f"'{source.name}'", look)
        for source in list(self._lost):
            self._apart(f"'{source.name}'", partial(self._begin_revoking, source))

    def _look_at_silence(self, source: Source, now: float) -> None:
        if now - max(source.heard_at, source.unwanted_at) > self._silence:
            self._lose(source, f"has said nothing for {self._silence} s")

    def _look_at_idle(self, source: Source, now: float) -> None:
        source.unwanted_at = now
        if now - source.heard_at > _LOST_AFTER * self._silence:
            self._lose(source, f"has said nothing for {_LOST_AFTER * self._silence} s")
        elif now - max(source.heard_at, source.asked_at) > _ASKED_AFTER * self._silence:
            source.asked_at = now
            if source.layout is not None:  # else it owes an answer already
                self._send(source.peer, {"kind": "beat", "requests": []})

    def _unheard(self, address: bytes, error: Error) -> None:
        source = self._sources.get(address)
        if source is not None:
            self._lose(source, f"is lost: {error}")

    def _lose(self, source: Source, how: str) -> None:
        self.counters.add("peers_lost")
        name = f"'{source.name}'" if source.name else source.peer.where()
        source.error = error = PeerLost(f"{name} {how}")
        self._leave_out(source)
        if source.offered:
            self._lost.append(source)  # the clock begins to revoke it
        self._on_lost(source, error)
        if not source.offered:
            self._gone(source)  # it knows no page of ours
        for prefill in [p for p in self._prefills if source in p.sources]:
            self._look_after(prefill)

    def _leave_out(self, source: Source) -> None:
        """Forgets the source: the next connect() greets its peer anew."""
        self._drop_letters(source.peer)
        if self._sources.get(source.peer.data) is source:
            del self._sources[source.peer.data]

    def _gone(self, source: Source) -> None:
        """Nothing of it can land any more, whatever it says."""
        source.is_gone = True
        if source.incarnation and self._by_sender.get(source.incarnation) is source:
            del self._by_sender[source.incarnation]
        self._on_gone()

    # --- what they were told ---

    def _begin_revoking(self, source: Source) -> None:
        """Revokes on a thread of its own; the next tick tries again if there is no thread."""
        if source.revoking is None or not source.revoking.is_alive():
            source.revoking = threading.Thread(target=self._revoke, args=(source,), daemon=True)
            source.revoking.start()

    def _revoke(self, source: Source) -> None:
        """Takes away from a source what it was told of: when the engine has done so nothing of it
        can land any more, now or when it wakes up. Nobody else was told of these regions.
        """
        while source.offered:
            try:
                unregister_all(self.engine, source.offered)
            except Exception as error:
                log.warning("'%s': '%s' is lost: %s", self.engine.name, source.name, error)
                if self._closing.wait(_AGAIN_S):
                    return  # close() goes on with it
        with self._lock:
            if source in self._lost:
                self._lost.remove(source)
                self._gone(source)
        self._run_later()

    def _revoke_all(self) -> None:
        """Revokes all sources when no message comes any more. An error stops no other one."""
        with self._lock:
            offering = list(self._offering)
        for thread in offering:
            thread.join()
        for source in list(self._lost):
            if source.revoking is not None and source.revoking.is_alive():
                source.revoking.join()
        with ExitStack() as each:
            for source in [*self._sources.values(), *self._lost]:
                each.callback(unregister_all, self.engine, source.offered)

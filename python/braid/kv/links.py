"""Who a prefiller's decoders are: answers their ranks' greetings, and finds those that are gone. It
knows nothing of requests.

A rank that gets pages is given up when it says nothing for `silence` seconds, one that gets none
after a longer time: peers come and go. Both are asked before whether they are there, which tells
the engine, too.
"""

import time
from abc import abstractmethod
from functools import partial
from typing import Any

from braid import letters
from braid.engine import Descriptor, Engine, Message, Peer
from braid.errors import Error, InvalidArgument, PeerLost
from braid.kv.cache import PagedCache
from braid.kv.ending import log
from braid.kv.handover import Link
from braid.kv.layout import Layout, difference
from braid.kv.places import places_from
from braid.kv.post import VERSION, Post, is_of

# In multiples of `silence`: for a decoder that gets nothing, and (soon) for one that gets pages.
_LOST_AFTER = 10
_ASKED_AFTER = 3
_SOON_ASKED_AFTER = 0.25


class Links(Post):
    """The decoders' ranks that one prefiller knows. All is done with the lock held."""

    def __init__(self, engine: Engine, cache: PagedCache, silence: float) -> None:
        super().__init__(engine)
        self.cache = cache
        self._silence = silence
        self._links: dict[bytes, Link] = {}
        """By the incarnation of the decoder's engine."""

    @abstractmethod
    def _serves(self, sender: bytes) -> bool:
        """Whether that decoder gets pages."""

    @abstractmethod
    def _lose(self, sender: bytes, why: Error) -> None:
        """That decoder is gone: nothing is written to it any more, and its link ends."""

    def _on_hello(self, head: dict[str, Any], body: bytes, message: Message) -> None:
        """InvalidArgument, and no answer, where the address that comes with it is none, or another
        engine's.
        """
        parts = letters.unpack(body)
        peer = Peer(parts[0] if parts else b"")
        self.engine.check(peer)
        if not is_of(peer, message.incarnation):  # and nobody else is told of it
            raise InvalidArgument(
                f"kv: hello: '{message.sender}' gives another one's address: {peer.where()}"
            )
        try:
            link = self._introduced(head, parts, message)
        except Error as error:
            self.counters.add("refused")
            log.warning("'%s': refused '%s': %s", self.engine.name, message.sender, error)
            self._send(peer, {"kind": "refused", "why": str(error), "version": VERSION})
            return
        regions = [region.descriptor.data for region in self.cache.regions]
        places = [list(place) for place in self.cache.places]
        layout = self.cache.layout.as_json()
        self._send(
            peer,
            {
                "kind": "welcome",
                "layout": layout,
                "places": places,
                "pages": self.cache.pages,
                "name": self.engine.name,
            },
            letters.pack(regions),
        )
        self._links[message.incarnation] = link

    def _introduced(self, head: dict[str, Any], parts: list[bytes], message: Message) -> Link:
        if len(parts) != 1:
            raise InvalidArgument(f"kv: hello: asked for an address, found {len(parts)} parts")
        if head.get("version", VERSION) != VERSION:
            raise letters.OtherVersion(
                f"version {VERSION} of the protocol at '{self.engine.name}', "
                f"{head['version']} at '{message.sender}'"
            )
        layout = Layout.from_json(head.get("layout"))
        names = (self.engine.name, message.sender)
        if (found := difference(self.cache.layout, layout, names)) is not None:
            raise InvalidArgument(found)
        return Link(Peer(parts[0]), message.sender, layout, time.monotonic())

    def _on_offer(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        link = self._links[sender]
        parts = letters.unpack(body)
        of_layers = len(parts) - bool(link.layout.tail_bytes)
        if of_layers < 1:
            raise InvalidArgument(f"kv: asked for regions of layers, found {of_layers}")
        regions = [Descriptor(part) for part in parts]
        self.engine.check(*regions)
        pages = letters.whole(head, "pages")
        places = places_from(head.get("places"), link.layout.layers_here, of_layers)
        link.pages, link.places, link.regions = pages, places, regions

    def _look_at_links(self, now: float) -> None:
        """At each tick."""
        for sender, link in list(self._links.items()):
            look = partial(self._look_at_silence, sender, link, now)
            self._apart(f"'{link.name}'", look, partial(self._lose, sender))

    def _look_at_silence(self, sender: bytes, link: Link, now: float) -> None:
        if now - max(link.heard_at, link.asked_at) <= _SOON_ASKED_AFTER * self._silence:
            return
        is_served = self._serves(sender)
        lost_s = (1 if is_served else _LOST_AFTER) * self._silence
        asked_s = (_SOON_ASKED_AFTER if is_served else _ASKED_AFTER) * self._silence
        if now - link.heard_at > lost_s:
            self.counters.add("peers_lost")
            self._lose(sender, PeerLost(f"'{link.name}' has said nothing for {lost_s} s"))
        elif now - max(link.heard_at, link.asked_at) > asked_s:
            link.asked_at = now
            self._send(link.peer, {"kind": "ask"})

    def _unheard(self, address: bytes, error: Error) -> None:
        for sender, link in list(self._links.items()):
            if link.peer.data == address:
                self.counters.add("peers_lost")
                self._lose(sender, PeerLost(f"'{link.name}' is lost: {error}"))

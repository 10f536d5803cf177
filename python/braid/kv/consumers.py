"""Who gets a request's pages: what the letters of decoders ask of a prefiller.

    decoder                            prefiller
    hello {version, layout}          ->
                                     <- welcome {layout, regions}, or refused {why}
    offer {regions}                  -> may write there from now on
    want {request, tag, pages, ...}  -> writes pages as they are computed. Each counts one under the
                                        tag: the last count is the end, and no letter says it
    pull {request, tag, pages}       -> keeps the pages while the lease holds, and the decoder reads
                                        them. `failed` where they are not the request's, or
                                        not computed
    took {request, tag}              -> the decoder has read them: were they kept until now?
                                     <- held {request, tag, is_held, is_early}. is_early: it pulled
                                        before begin(), so it reads them again and says `took` again
    cancel {request, tag}            -> begins nothing more, and waits for what is under way
                                     <- cancelled {request, tag}: nothing can land any more
                                     <- failed {request, tag, why}: the same, without a `cancel`
    spared {request}                 -> no rank of the decoder will ask this prefiller for it
    beat {requests}                  -> renews the leases of these, and of all that the decoder gets
                                     <- beat, which says that the prefiller is there
                                     <- ask: is the decoder there? It answers with a beat
    bye                              -> writes nothing to the decoder any more

Whichever of `want` and begin() comes first waits for the other, for a lease at most. A request that
is over is remembered: a later letter about it is answered `failed`, and moves nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from braid import letters
from braid.engine import Engine, Message
from braid.errors import Cancelled, Error, InvalidArgument
from braid.kv.cache import PagedCache
from braid.kv.ending import log
from braid.kv.handover import Consumer, Handover, Link
from braid.kv.handovers import Handovers
from braid.kv.want import consumer_of, pages_behind


@dataclass(slots=True)
class _Early:
    """What a decoder has said of a request that has not begun."""

    until: float
    letters: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)


class Consumers(Handovers):
    """The consumers of one prefiller's requests. All is done with the lock held."""

    def __init__(self, engine: Engine, cache: PagedCache, lease: float, silence: float) -> None:
        super().__init__(engine, cache, lease, silence)
        self._early: dict[tuple[str, bytes], _Early] = {}
        """By request, and the incarnation of the sender."""
        self._handlers: dict[str, Callable[[dict[str, Any], bytes, bytes], None]] = {
            "offer": self._on_offer,
            "want": self._on_want,
            "pull": self._on_pull,
            "took": self._on_took,
            "cancel": self._on_cancel,
            "spared": self._on_spared,
        }

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

    # --- push ---

    def _on_want(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        request, tag = _about(head)
        handover = self._found(request, head, body, sender)
        if handover is None or self._is_known(handover, sender, tag):
            return
        try:
            consumer = consumer_of(handover, self._links[sender], self.engine.name, head, body)
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
        """Whether the decoder gets the request already. A want or pull under another tag fails."""
        known = handover.consumers.get(sender)
        if known is None:
            return False
        self.counters.add("repeated")
        if known.tag != tag:
            words = f"it goes to '{known.link.name}' already"
            self._failed(sender, handover.request, tag, words)
        return True

    # --- pull ---

    def _on_pull(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        request, tag = _about(head)
        handover = self._found(request, head, body, sender)
        if handover is None or self._is_known(handover, sender, tag):
            return
        pages, none = pages_behind(head, body, "<u8"), np.empty(0, np.uint64)
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
        """The decoder has read all that it pulled. The answer says whether the pages were kept for
        it until now, and whether it pulled them before begin(): then it reads them again.
        """
        request, tag = _about(head)
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

    # --- ends ---

    def _on_cancel(self, head: dict[str, Any], _body: bytes, sender: bytes) -> None:
        request, tag = _about(head)
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

    # --- requests that have not begun ---

    def _found(
        self, request: str, head: dict[str, Any], body: bytes, sender: bytes
    ) -> Handover | None:
        """The request that a letter is about. None when it is over, which the decoder is told, or
        has not begun: then the letter is kept.
        """
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

    def _hear_early(self, handover: Handover, *, was_computed_when_told: bool) -> None:
        """What decoders have said of the request before it began. A pull of pages that may not have
        been computed when they were read is marked: its decoder reads them again.
        """
        for key in [key for key in self._early if key[0] == handover.request]:
            for head, body in self._early.pop(key).letters:
                self._on_early(head, body, key[1])
                consumer = handover.consumers.get(key[1])
                if consumer is not None and head["kind"] == "pull" and body:
                    consumer.is_early = not was_computed_when_told

    def _on_early(self, head: dict[str, Any], body: bytes, sender: bytes) -> None:
        link = self._links.get(sender)
        try:
            if link is not None:
                self._handlers[head["kind"]](head, body, sender)
        except Error as error:
            log.warning("'%s': %s", self.engine.name, error)

    def _drop_early(self, request: str, sender: bytes, tag: int) -> None:
        """Forgets what the decoder has said under that tag; what it said under others is kept."""
        early = self._early.get((request, sender))
        if early is not None:
            early.letters = [each for each in early.letters if _tag_of(each[0]) != tag]
            if not early.letters:
                del self._early[request, sender]

    def _forget_early(self, key: tuple[str, bytes]) -> None:
        """Nobody began the request in time: its decoder is told."""
        request, sender = key
        early = self._early.pop(key)
        for tag in dict.fromkeys(_tag_of(head) for head, _ in early.letters):
            self._failed(sender, request, tag, f"it has not begun within {self._lease} s")

    # --- time ---

    def _tick(self, now: float) -> None:
        self._look_at_leases(now)
        self._apart("links", partial(self._look_at_links, now))
        for key, early in list(self._early.items()):
            if now > early.until:
                self._apart(f"request '{key[0]}'", partial(self._forget_early, key))


def _about(head: dict[str, Any]) -> tuple[str, int]:
    """The request and the tag of a letter that has both."""
    return letters.text(head, "request"), letters.whole(head, "tag", 2**32 - 1)


def _tag_of(head: dict[str, Any]) -> int:
    """The tag in a letter's head; 0 where there is none."""
    tag = head.get("tag")
    return tag if type(tag) is int else 0

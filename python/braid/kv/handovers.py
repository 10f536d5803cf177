"""The requests under way at a prefiller: what is computed goes out, and each ends once. Of what
decoders' letters ask for it knows nothing; that is braid.kv.consumers.

A handover ends when all its consumers are over and as many have come as there will be, or when it
is given up and nothing reads its pages any more. A consumer is over when nothing of it is under way
and either all is sent or something went wrong, which its decoder is told then and not before:
`failed` and `cancelled` promise that nothing can land any more.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from braid.engine import Engine
from braid.errors import Error, Timeout
from braid.kv.cache import PagedCache
from braid.kv.handover import Consumer, Handover, Write
from braid.kv.links import Links
from braid.kv.progress import Declared

_MOST_REMEMBERED = 65536


class Handovers(Links):
    """The handovers of one prefiller. All is done with the lock held where nothing else is said."""

    def __init__(self, engine: Engine, cache: PagedCache, lease: float, silence: float) -> None:
        super().__init__(engine, cache, silence)
        self._lease = lease
        self._requests: dict[str, Handover] = {}
        self._over: OrderedDict[str, str] = OrderedDict()
        """How the latest of those that are over ended."""
        self._write = Write(engine, self.counters)

    # --- pages ---

    def _on_computed(self, parts: Sequence[Declared], layers: range) -> None:
        """The word of layers has moved. Without the lock, on the word's own thread; a part whose
        pages were taken away meanwhile counts for nothing.
        """
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
        """All layers of the first `tokens` tokens (None: of all) are in the pages."""
        handover.lease_until = time.monotonic() + self._lease
        first = self.cache.layout.first_layer
        layers = range(first, first + self.cache.layout.layers_here)
        handover.computed(layers, handover.tokens if tokens is None else tokens)
        if handover.is_computed():
            handover.stamp("computed")

    def _pump(self, handover: Handover, layers: range | None = None) -> None:
        """Begins what can begin of what is computed in `layers` (None: in all)."""
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
        """Stops the consumer if a write of it has failed; looks again when the next one ends."""
        consumer.flying.watch(partial(self._on_landed, consumer))
        error = consumer.error or consumer.flying.error
        if error is not None and not consumer.is_over:
            self._stop_consumer(handover, consumer, error)

    def _on_landed(self, consumer: Consumer) -> None:
        """A write has ended. Without the lock, on the engine's thread of callbacks."""
        with self._lock:
            consumer.flying.landed()
            if (handover := self._requests.get(consumer.request)) is not None:
                self._look_at(handover, consumer)
                self._settle(handover)
        self._run_later()

    def _stop_consumer(self, handover: Handover, consumer: Consumer, error: Error) -> None:
        """Begins nothing more for the consumer; it is over once what is under way has ended."""
        consumer.error = consumer.error or error
        for ticket in consumer.flying:
            ticket.cancel()
        self._settle(handover)

    # --- ends ---

    def _settle(self, handover: Handover) -> None:
        """Finds which consumers are over by now, tells their decoders, and finishes the handover
        when none is left.
        """
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

    def _failed(self, sender: bytes, request: str, tag: int, why: str) -> None:
        """Tells a decoder that nothing lands under the tag any more."""
        link = self._links.get(sender)
        if link is not None:
            words = f"request '{request}' at '{self.engine.name}': {why}"
            answer = {"kind": "failed", "request": request, "tag": tag, "why": words}
            self._send(link.peer, answer)

    def _finish(self, handover: Handover) -> None:
        """Nothing of it is under way any more: its pages may be used again."""
        del self._requests[handover.request]
        self.cache.tails.give_back(handover.tail_slot)
        error = handover.first_error()
        self.counters.add("done" if error is None else "failed")
        self._over[handover.request] = "is over" if error is None else f"ended: {error}"
        while len(self._over) > _MOST_REMEMBERED:
            self._over.popitem(last=False)
        self._end_later(handover, error)

    def _give_up(self, handover: Handover, why: Error) -> None:
        """It will end with `why`, once what is under way for its consumers has ended."""
        handover.why = handover.why or why
        for consumer in list(handover.consumers.values()):
            if not consumer.is_over:
                self._stop_consumer(handover, consumer, why)
        self._settle(handover)

    def _end_each(self) -> None:
        for handover in list(self._requests.values()):
            handover.why = handover.why or self._closed(handover.what)
            self._apart(handover.what, partial(self._finish, handover))

    # --- leases and lost decoders ---

    def _look_at_leases(self, now: float) -> None:
        """At each tick."""
        for handover in list(self._requests.values()):
            look = partial(self._look_at_lease, handover, now)
            self._apart(handover.what, look, partial(self._give_up, handover))

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

    def _lose(self, sender: bytes, why: Error) -> None:
        """A decoder's rank is gone: nothing is written to it any more."""
        if (link := self._links.pop(sender, None)) is not None:
            self._drop_letters(link.peer)
        for handover in list(self._requests.values()):
            consumer = handover.consumers.get(sender)
            if consumer is not None and not consumer.is_over:
                self._stop_consumer(handover, consumer, why)
                self._give_up(handover, why)

    def _serves(self, sender: bytes) -> bool:
        return any(
            sender in handover.consumers and not handover.consumers[sender].is_over
            for handover in self._requests.values()
        )

"""A word that counts finished layers, and what each of its values stands for.

Every forward pass bumps the word once for each layer, in order: from a kernel behind the layer's
last store (so it can be part of a CUDA graph), or from the host. What the pass computes is declared
before it begins. Values that the watcher passes over are made up for: a value says that all below
it have happened, too.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from braid.engine import Engine, Watch
from braid.errors import InvalidArgument
from braid.kv.ending import log


@dataclass(frozen=True, slots=True)
class Part:
    """What one forward pass does for one request."""

    request: str
    tokens: int
    """How many of its tokens, from the first on, are in the cache when the pass is over."""


class Declared(NamedTuple):
    """A part, and in which of its request's pages the pass computes it."""

    part: Part
    turn: int
    """Handover.turn, as it was when the pass was declared."""


class Progress:
    """Turns the word's values into computed(parts, layers), on a thread of the engine's."""

    def __init__(
        self,
        engine: Engine,
        layers: int,
        computed: Callable[[Sequence[Declared], range], None],
    ) -> None:
        self._layers = layers
        self._computed = computed
        self._mutex = threading.Lock()
        self._passes: deque[Sequence[Declared]] = deque()
        self._begun = 0
        """Passes that were declared before the first of `_passes`."""
        self.word: Watch = engine.watch(self._on_word)

    def declare(self, parts: Sequence[Declared]) -> None:
        """The next pass."""
        with self._mutex:
            self._passes.append(parts)

    def bump(self, layers: int = 1) -> None:
        """From the host, by one thread at a time. InvalidArgument, and the word stays: more layers
        than were declared.
        """
        with self._mutex:
            declared = (self._begun + len(self._passes)) * self._layers
            left = max(0, declared - self.word.value)
            if layers > left:
                raise InvalidArgument(
                    f"layer_done: layers: asked for at most the {left} that are left of declared "
                    f"passes, found {layers}"
                )
            self.word.value = self.word.value + layers

    def _on_word(self, before: int, now: int) -> None:
        while before < now:
            number, layer = divmod(before, self._layers)
            end = min(self._layers, layer + now - before)
            parts = self._parts_of(number, is_last=end == self._layers)
            if parts is None:
                log.error("the word of layers says %d, and no pass %d was declared", now, number)
                return
            try:
                self._computed(parts, range(layer, end))
            except Exception:  # a watch whose callback raises is over, for all requests
                log.exception("layers %d to %d of pass %d", layer, end, number)
            before += end - layer

    def _parts_of(self, number: int, *, is_last: bool) -> Sequence[Declared] | None:
        with self._mutex:
            place = number - self._begun
            if not 0 <= place < len(self._passes):
                return None
            found = self._passes[place]
            if is_last:
                while self._begun <= number:
                    self._passes.popleft()
                    self._begun += 1
            return found

    def close(self) -> None:
        self.word.close()

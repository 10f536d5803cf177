"""One process with a prefiller or a decoder; `python -m braid.bench.kv.peer`. It speaks as
braid.bench.engine.peer does.
"""

import sys
from functools import partial
from time import monotonic, monotonic_ns, sleep
from typing import Any

import numpy as np

import braid
from braid import kv
from braid.bench.engine import pattern, peer
from braid.bench.engine.window import Window
from braid.engine import Peer as Address
from braid.kv import places
from braid.kv.cache import LayerMemory

LAYERS = 8
_WAIT_S = 60.0


class Peer(peer.Peer):
    """One side: "prefill" or "decode"."""

    device: int | None = None
    """Where its pages lie; None: the host's memory."""

    def __init__(self, role: str, layers: int = LAYERS, gap: int = 0) -> None:
        """gap: pages of nobody's between layers; with none they lie together."""
        super().__init__()
        self._layers, self._gap = layers, gap
        self._is_decoder = role == "decode"
        self._side: Any = None
        self._cache: kv.PagedCache | None = None
        self._case = (0, 0)
        self._there: Any = None
        self._handovers: dict[str, kv.Handover] = {}

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        nics: Any = [f"{provider}:{where}" for provider, where in word["nics"]] or "none"
        self.engine = braid.Engine(
            word["name"], nics=nics, token=word["token"], local=not word["nics"],
            hosts="127.0.0.1", lease=20, timeout=_WAIT_S,
        )  # fmt: skip
        self.places = pattern.base(word["nbytes"])
        self.memory = np.zeros_like(self.places)
        return {"address": self.engine.address.data.hex(), "descriptor": ""}

    def meet(self, word: dict[str, Any]) -> dict[str, Any]:
        self.other = Address(bytes.fromhex(word["address"]))
        return {}

    def case(self, word: dict[str, Any]) -> dict[str, Any]:
        """Takes pages of a size: `count` over all layers. Prefillers first."""
        self._end_case()
        size, each = word["page_bytes"], word["count"] // self._layers
        begin = self.begin_of_pages()
        layers = [
            LayerMemory(begin + n * (each + self._gap) * size, each, size, self.device)
            for n in range(self._layers)
        ]
        # Pages of one head and one token, which are as good as any of that size.
        layout = kv.Layout("bench", "uint8", self._layers, 1, 1, size)
        self._cache = kv.PagedCache(self.engine, layers, layout)
        role: Any = kv.Decoder if self._is_decoder else kv.Prefiller
        self._side = role(self.engine, self._cache, silence=_WAIT_S)
        if self._is_decoder:
            self._there = self._side.connect([self.other], _WAIT_S)
        return {}

    def begin(self, word: dict[str, Any]) -> dict[str, Any]:
        """Requests that are computed, by name, so that none is asked for before it is there."""
        shares = self._shares(word, pattern.SOURCE)
        for number, name in enumerate(word["names"]):
            pages = shares[number % len(shares)]
            self._handovers[name] = self._side.begin(name, pages, len(pages), is_computed=True)
        return {}

    def given(self, word: dict[str, Any]) -> dict[str, Any]:
        """When things happened to requests that begin() began, by their names."""
        handovers = [self._handovers[name] for name in word["names"]]
        for handover in handovers:
            handover.wait(_WAIT_S)
        return {"times": {each.request: each.times for each in handovers}}

    def calls(self, word: dict[str, Any]) -> dict[str, Any]:
        """How many pages go in a request's first call of the engine, at most, and in another."""
        places.FIRST_PAGES, places.MOST_PAGES = word["pages"]
        return {}

    def prefill(self, word: dict[str, Any]) -> dict[str, Any]:
        """A stand-in for computing: so many ms a layer, and a bump behind each. When it ended."""
        pages = self._ids(word["count"], pattern.SOURCE)
        self._side.begin(word["name"], pages, len(pages))
        self._side.declare([kv.Part(word["name"], len(pages))])
        sleep(0.05)  # the decoder's wish is here
        began = monotonic_ns()
        for layer in range(self._layers):
            until = began + (layer + 1) * word["layer_ms"] * 1e6
            while monotonic_ns() < until:
                sleep(2e-4)  # as a GPU would, it leaves the processor to others
            self._side.layer_done()
        return {"began_ns": began, "computed_ns": monotonic_ns()}

    def fetch(self, word: dict[str, Any]) -> dict[str, Any]:
        """Gets requests, `at_once` of them under way, each into pages that are its own while it is:
        us for each, the mean of `at_once` that ended. When the last one ended, and when things
        happened to each, in seconds.
        """
        ours, theirs = (self._shares(word, seed) for seed in (pattern.TARGET, pattern.SOURCE))
        times: dict[str, dict[str, float]] = {}
        under_way = Window[kv.Load](len(ours), partial(self._end_load, times))
        for number, name in enumerate(word["names"]):
            under_way.make_room()
            called, place = monotonic(), number % len(ours)
            if word["is_push"]:
                pages = ours[place]
                load = self._side.want(name, self._there, pages, len(pages))
            else:
                load = self._side.pull(name, self._there, theirs[place], ours[place])
            times[name] = {"called": called, "returned": monotonic()}
            under_way.add(load)
        samples = under_way.end()
        return {"samples_us": samples, "ended_ns": monotonic_ns(), "times": times}

    def _end_load(self, times: dict[str, dict[str, float]], load: kv.Load) -> None:
        load.wait(_WAIT_S)
        times[load.request].update(load.times, waited=monotonic())

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        count, size = word["count"], word["page_bytes"]
        wrong = pattern.wrong_bytes(
            self.pages_of(self.memory, count, size), self.pages_of(self.places, count, size),
            word["number"], size,
            self.all_ids(count, pattern.SOURCE), self.all_ids(count, pattern.TARGET),
        )  # fmt: skip
        return {"wrong_bytes": wrong, "too_many": 0}

    def begin_of_pages(self) -> int:
        """Its address."""
        return int(self.memory.ctypes.data)

    def pages_of(self, words: Any, count: int, size: int) -> Any:  # noqa: ANN401
        """The part of a memory that has `count` pages of all layers, and what lies between."""
        return words[: (count + self._layers * self._gap) * size // 8]

    def all_ids(self, count: int, seed: int) -> pattern.Ids:
        """The numbers of a request's pages over the whole memory, layer after layer."""
        each, ids = count // self._layers + self._gap, self._ids(count, seed)
        return np.concatenate([ids + np.uint64(n * each) for n in range(self._layers)])

    def _shares(self, word: dict[str, Any], seed: int) -> list[pattern.Ids]:
        """A layer's pages for each request that is under way, of `count` pages each."""
        at_once = word.get("at_once", 1)
        return np.array_split(self._ids(at_once * word["count"], seed), at_once)

    def _ids(self, count: int, seed: int) -> pattern.Ids:
        """Those of each layer, in no order."""
        return pattern.shuffled(count // self._layers, seed)

    def health(self, word: dict[str, Any]) -> dict[str, Any]:
        del word
        return {"lines": self.engine.health(), "stats": self._side.counters.as_dict()}

    def _end_case(self) -> None:
        self._handovers.clear()
        if self._cache is not None:
            self._side.close()
            self._cache.close()

    def close(self) -> None:
        self._end_case()
        super().close()


if __name__ == "__main__":
    peer.main(Peer(sys.argv[1]))

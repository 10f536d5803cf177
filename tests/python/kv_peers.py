"""A prefiller in another process, for tests: told by a pipe what to do, killed and stopped."""

import time
from collections.abc import Callable
from typing import Any

import engine_peers
import numpy as np

import braid
from braid import kv

PAGES = 64
LIMIT_S = 30
LAYOUT = kv.Layout("m", "float32", layers=3, heads=4, page_tokens=8, token_bytes=16)


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def content(layer: int, page: int, head: int, layout: kv.Layout, salt: int = 0) -> np.ndarray:
    """What page `page` of the prefiller holds: bytes that depend on every place.

    head is numbered as in the model.
    """
    seed = salt * 1_000_003 + (layer * 4096 + page) * 64 + head
    return np.random.default_rng(seed).integers(0, 256, layout.head_bytes, np.uint8)


def memory(layout: kv.Layout, pages: int = PAGES) -> list[np.ndarray]:
    shape = (pages, layout.heads_here, layout.page_tokens, layout.token_bytes)
    return [np.zeros(shape, np.uint8) for _ in range(layout.layers_here)]


def fill(layers: list[np.ndarray], layout: kv.Layout, page: int, salt: int = 0) -> None:
    for number, layer in enumerate(layers):
        for head in range(layout.heads_here):
            found = content(
                number + layout.first_layer, page, head + layout.first_head, layout, salt
            )
            layer[page, head] = found.reshape(layer.shape[2:])


def is_right(
    layers: list[np.ndarray], layout: kv.Layout, page: int, theirs: int, salt: int = 0
) -> bool:
    """Whether our `page` holds what the prefiller's page `theirs` does."""
    return all(
        np.array_equal(
            layer[page, head].reshape(-1),
            content(number + layout.first_layer, theirs, head + layout.first_head, layout, salt),
        )
        for number, layer in enumerate(layers)
        for head in range(layout.heads_here)
    )


class Side:
    """An engine, a cache of it, and one role."""

    def __init__(
        self, role: type, layout: kv.Layout, name: str, way: str = "local", **settings: Any
    ) -> None:
        engine = {"lease": settings.pop("engine_lease", 20.0)}
        engine |= {name: settings.pop(name) for name in ("most_transfers",) if name in settings}
        self.engine = braid.Engine(**engine_peers.options(way, name, **engine))
        self.layers = memory(layout)
        self.layout = layout
        self.cache = kv.PagedCache(self.engine, self.layers, layout)
        self.role = role(self.engine, self.cache, **settings)

    def close(self) -> None:
        self.role.close()
        self.cache.close()
        self.engine.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemotePrefiller:
    """What a process of engine_peers serves: begins requests, says how they ended."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.side = Side(kv.Prefiller, settings.pop("layout", LAYOUT), "prefill", **settings)
        self.handovers: dict[str, kv.Handover] = {}

    def names(self) -> Any:
        return self.side.engine.address, None

    def begin(self, request: str, pages: list[int], tokens: int, salt: int = 0) -> None:
        for page in pages:
            fill(self.side.layers, self.side.layout, page, salt)
        prefiller = self.side.role
        self.handovers[request] = prefiller.begin(request, pages, tokens, is_computed=True)

    def begin_slowly(
        self, request: str, pages: list[int], tokens: int, salt: int = 0, pause_s: float = 0.002
    ) -> None:
        """Layer by layer, as a forward pass would."""
        for page in pages:
            fill(self.side.layers, self.side.layout, page, salt)
        prefiller = self.side.role
        self.handovers[request] = prefiller.begin(request, pages, tokens)
        prefiller.declare([kv.Part(request, tokens)])
        for _ in range(self.side.layout.layers_here):
            time.sleep(pause_s)
            prefiller.layer_done()

    def ended(self, request: str, timeout: float = 30) -> str:
        try:
            self.handovers[request].wait(timeout)
        except braid.Error as error:
            return f"{type(error).__name__}: {error}"
        return "well"

    def spoil(self, pages: list[int]) -> None:
        """The pages are somebody else's now."""
        for layer in self.side.layers:
            layer[pages] = 0xEE

    def counters(self) -> dict[str, int]:
        return self.side.role.counters.as_dict()

    def close(self) -> None:
        self.side.close()


class RemoteDecoder:
    """The same for a decoder: connects, and waits for what it wants."""

    def __init__(self, settings: dict[str, Any]) -> None:
        prefiller = settings.pop("prefiller")
        self.side = Side(kv.Decoder, settings.pop("layout", LAYOUT), "decode", **settings)
        self.there = self.side.role.connect([prefiller], 60)

    def names(self) -> Any:
        return self.side.engine.address, None

    def want(self, request: str, pages: list[int], tokens: int) -> str:
        try:
            self.side.role.want(request, self.there, pages, tokens).wait(60)
        except braid.Error as error:
            return f"{type(error).__name__}: {error}"
        return "well"

    def fetch(self, orders: list[tuple[str, list[int], list[int], bool]]) -> None:
        """Begins all of them: (request, its pages there, ours, whether it is pulled)."""
        role, page_tokens = self.side.role, self.side.layout.page_tokens
        self.fetched = []
        for request, theirs, ours, is_pull in orders:
            tokens = page_tokens * len(ours)
            load = (
                role.pull(request, self.there, theirs, ours)
                if is_pull
                else role.want(request, self.there, ours, tokens)
            )
            self.fetched.append((load, theirs, ours))

    def fetched_ended(self, salts: list[int]) -> list[str]:
        """How each of them ended: "well" only where every page is right."""
        out = []
        for (load, theirs, ours), salt in zip(self.fetched, salts, strict=True):
            try:
                load.wait(60)
            except braid.Error as error:
                out.append(f"{type(error).__name__}: {error}")
                continue
            pages = zip(ours, theirs, strict=True)
            right = all(is_right(self.side.layers, LAYOUT, o, t, salt) for o, t in pages)
            out.append("well" if right else f"{load.what}: ended well, and its pages are wrong")
        return out

    def close(self) -> None:
        self.side.close()


def serve(pipe: Any, settings: dict[str, Any]) -> None:
    remote = RemoteDecoder(settings) if "prefiller" in settings else RemotePrefiller(settings)
    pipe.send((True, remote.names()))
    while (order := pipe.recv()) is not None:
        name, args = order
        try:
            pipe.send((True, getattr(remote, name)(*args)))
        except Exception as error:
            pipe.send((False, error))
    remote.close()


class Process(engine_peers.Process):
    """A prefiller in a process of its own; its calls are RemotePrefiller's. With `prefiller`, its
    address, a decoder of it, whose calls are RemoteDecoder's.
    """

    def __init__(self, **settings: Any) -> None:
        self._pipe, theirs = engine_peers._spawn.Pipe()
        self._process = engine_peers._spawn.Process(target=serve, args=(theirs, settings))
        self._process.start()
        theirs.close()
        self.address, self.descriptor = self.answer()

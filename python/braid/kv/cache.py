"""A rank's pages, registered with its engine: one region for all layers that lie together."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from braid.arrays import Array
from braid.closing import Closing
from braid.engine import Engine, Region, values
from braid.errors import InvalidArgument
from braid.kv.asked import page_numbers
from braid.kv.layout import Layout
from braid.kv.places import PageIds, Place, check_pages, is_any_twice


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Where a layer's pages lie: page k begins at address + k * page_stride bytes."""

    address: int
    pages: int
    page_stride: int
    device: int | None = None
    keep: Any = None
    """What owns the memory."""

    def extent(self, page_bytes: int) -> int:
        """Bytes from the first page's begin to the last one's end."""
        return (self.pages - 1) * self.page_stride + page_bytes


def _where(memory: LayerMemory) -> str:
    return "the host" if memory.device is None else f"GPU {memory.device}"


def memory_of(array: Array, layout: Layout, what: str) -> LayerMemory:
    """One layer's memory, from an array or tensor [pages, heads here, page_tokens, ...]. With one
    head its axis may be left out. Pages may lie apart, but each must be contiguous.
    """
    if hasattr(array, "data_ptr"):  # torch's
        size = array.element_size()
        address, strides = array.data_ptr(), [stride * size for stride in array.stride()]
        device = None if array.device.type == "cpu" else int(array.device.index or 0)
    elif isinstance(array, np.ndarray):
        size, address, strides = array.itemsize, array.ctypes.data, list(array.strides)
        device = None
    else:
        found = type(array).__name__
        raise InvalidArgument(f"{what}: asked for a NumPy array or a tensor, found {found}")
    shape = list(array.shape)
    inside = [layout.page_tokens]
    if layout.heads_here > 1 or (len(shape) > 3 and shape[1] == 1):
        inside.insert(0, layout.heads_here)
    _check_inside(shape, strides, size, inside, layout, what)
    return LayerMemory(address, shape[0], strides[0], device, array)


def _check_inside(
    shape: list[int], strides: list[int], size: int, inside: list[int], layout: Layout, what: str
) -> None:
    rest = shape[1 + len(inside) :]
    nbytes = int(np.prod(rest, dtype=np.int64)) * size
    if shape[1 : 1 + len(inside)] != inside or nbytes != layout.token_bytes:
        raise InvalidArgument(
            f"{what}: asked for [pages, {', '.join(map(str, inside))}, {layout.token_bytes} "
            f"bytes], found the shape {shape} of elements of {size} bytes"
        )
    expected = size
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length > 1 and stride != expected:
            raise InvalidArgument(
                f"{what}: a page must lie in one piece, heads before tokens; found the strides "
                f"{strides} for the shape {shape}"
            )
        expected *= length
    if shape[0] > 1 and strides[0] < expected:
        raise InvalidArgument(f"{what}: pages {strides[0]} bytes apart overlap")


def blocks_of(memory: Sequence[LayerMemory], page_bytes: int) -> list[range]:
    """Layers that lie together, with nothing of anybody else's between them: one behind the other,
    or page by page.
    """
    out: list[range] = []
    begin = 0
    while begin < len(memory):
        end = begin + 1
        while end < len(memory) and _follows(memory[end - 1], memory[end], page_bytes):
            end += 1
        if end == begin + 1:
            many = memory[begin].page_stride // page_bytes
            if many > 1 and _is_page_by_page(memory[begin : begin + many], many, page_bytes):
                end = begin + many
        out.append(range(begin, end))
        begin = end
    return out


def _is_alike(one: LayerMemory, other: LayerMemory) -> bool:
    return (one.pages, one.page_stride, one.device) == (
        other.pages, other.page_stride, other.device,
    )  # fmt: skip


def _follows(one: LayerMemory, other: LayerMemory, page_bytes: int) -> bool:
    return (
        _is_alike(one, other)
        and one.page_stride == page_bytes
        and other.address == one.address + one.pages * page_bytes
    )


def _is_page_by_page(memory: Sequence[LayerMemory], layers: int, page_bytes: int) -> bool:
    first = memory[0]
    return (
        len(memory) == layers
        and first.page_stride == layers * page_bytes
        and all(
            _is_alike(first, each) and each.address == first.address + number * page_bytes
            for number, each in enumerate(memory)
        )
    )


class PagedCache(Closing):
    """The pages of all layers of one rank, as peers reach them. A context manager.

    places: where each layer here lies in `regions`.
    layers: for each layer here an array or tensor [pages, heads here, page_tokens, ...], or a
    LayerMemory, all of the host or all of one GPU; the cache keeps them alive. Registered until
    close().
    """

    def __init__(self, engine: Engine, layers: Sequence[Any], layout: Layout) -> None:
        values.of_kind(engine, Engine, "cache: engine")
        values.of_kind(layout, Layout, "cache: layout")
        layers = values.several(layers, "cache: layers")
        if len(layers) != layout.layers_here:
            raise InvalidArgument(
                f"cache: asked for {layout.layers_here} layers, found {len(layers)}"
            )
        self.layout = layout
        self._engine = engine
        self._memory = [
            layer
            if isinstance(layer, LayerMemory)
            else memory_of(layer, layout, f"cache: layer {layout.first_layer + number}")
            for number, layer in enumerate(layers)
        ]
        for number, each in enumerate(self._memory):
            if each.device != self._memory[0].device:
                raise InvalidArgument(
                    f"cache: layer {layout.first_layer + number} is memory of {_where(each)}, "
                    f"layer {layout.first_layer} of {_where(self._memory[0])}: asked for one"
                )
            if each.pages > 1 and each.page_stride < layout.page_bytes:
                raise InvalidArgument(
                    f"cache: layer {layout.first_layer + number}: pages of {layout.page_bytes} "
                    f"bytes {each.page_stride} bytes apart overlap"
                )
        self.pages = min(memory.pages for memory in self._memory)
        self._blocks = blocks_of(self._memory, layout.page_bytes)
        self.regions: list[Region] = []
        try:
            self._register_first()
            self.places = self._places()
            self.tails = Tails(engine, layout.tail_bytes)
        except BaseException:
            self.close()
            raise

    def _register_first(self) -> None:
        """Neighbours need not be of one allocation, and a region of a GPU's memory must be: those
        that one region cannot hold have one each.
        """
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            try:
                self.regions.append(self._engine.register(self._extent(block)))
                self._blocks.append(block)
            except InvalidArgument:
                if len(block) == 1:
                    raise
                alone = [range(layer, layer + 1) for layer in block]
                for each in alone:
                    self.regions.append(self._engine.register(self._extent(each)))
                self._blocks += alone

    def register_layers(self) -> list[Region]:
        """Other regions of all layers, as `places` says, and behind them of the tails if there are
        any: what one peer alone is told of can be taken away from it alone.
        """
        made: list[Region] = []
        try:
            for block in self._blocks:
                made.append(self._engine.register(self._extent(block)))
            if self.tails.region is not None:
                made.append(self.tails.register())
        except BaseException:
            unregister_all(self._engine, made, were_told=False)
            raise
        return made

    def _extent(self, block: range) -> tuple[int, ...]:
        first, last = self._memory[block[0]], self._memory[block[-1]]
        end = last.address + last.extent(self.layout.page_bytes)
        where = (first.address, end - first.address)
        return where if first.device is None else (*where, first.device)

    def _places(self) -> list[Place]:
        return [
            Place(number, memory.address - self._memory[block[0]].address, memory.page_stride)
            for number, block in enumerate(self._blocks)
            for memory in (self._memory[layer] for layer in block)
        ]

    def check_writable(self, what: str) -> None:
        """InvalidArgument for a layer that NumPy calls read-only: it may be of `bytes`, say, which
        nobody may change. A prefiller only reads it.
        """
        for number, memory in enumerate(self._memory):
            if isinstance(memory.keep, np.ndarray) and not memory.keep.flags.writeable:
                layer = self.layout.first_layer + number
                raise InvalidArgument(
                    f"{what}: layer {layer}: asked for an array to write to, found a read-only one"
                )

    def ids(self, pages: Sequence[int] | PageIds, what: str) -> PageIds:
        """Page numbers [n] that this cache has, each at most once; InvalidArgument names what is no
        page number, and a page that it has not.
        """
        found = page_numbers(pages, what)
        check_pages(found, self.pages, what)
        if is_any_twice(found):
            twice = next(int(page) for page in found if (found == page).sum() > 1)
            raise InvalidArgument(f"{what}: page {twice} is named twice")
        return found

    def close(self) -> None:
        """When it returns nothing can land in the pages any more, and they may be freed. After an
        error it may be called again.
        """
        with ExitStack() as both:
            if hasattr(self, "tails"):
                both.callback(self.tails.close)
            both.callback(unregister_all, self._engine, self.regions)


class Tails:
    """Slots for what goes over once behind all pages of a request."""

    SLOTS = 256

    def __init__(self, engine: Engine, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free = list(range(self.SLOTS)) if nbytes else []
        self._memory = np.zeros((self.SLOTS, max(1, nbytes)), np.uint8)
        self._engine = engine
        self.region = self.register() if nbytes else None

    def register(self) -> Region:
        """One more region of the slots, for one peer."""
        return self._engine.register(self._memory)

    def take(self) -> int | None:
        """A free slot; None when all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int | None) -> None:
        if slot is not None:
            self._free.append(slot)

    def put(self, slot: int, data: bytes) -> None:
        self._memory[slot] = np.frombuffer(data, np.uint8)

    def get(self, slot: int) -> bytes:
        return bytes(self._memory[slot])

    def close(self) -> None:
        if self.region is not None:
            unregister_all(self._engine, [self.region])
            self.region = None


def unregister_all(engine: Engine, regions: list[Region], *, were_told: bool = True) -> None:
    """Empties the list, and returns when nothing can land in any of them any more.

    Each on a thread of its own: a peer that does not answer is waited for for a second. What goes
    wrong with one is raised when all others have been tried; those that are registered still stay
    in the list.

    were_told: whether peers know of them. Then an engine that closes is waited for: until then they
    may write. Its close() waits for callbacks, so that nobody may call this who holds what a
    callback waits for.
    """
    if not regions:
        return
    with ThreadPoolExecutor(min(32, len(regions))) as threads:
        take_away = partial(_unregister, engine, regions, were_told)
        tried = [threads.submit(take_away, region) for region in list(regions)]
    for each in tried:
        each.result()


def _unregister(engine: Engine, regions: list[Region], were_told: bool, region: Region) -> None:
    try:
        region.unregister()
    except InvalidArgument:
        if not engine.closed:
            raise
        if were_told:
            engine.wait_closed()  # it takes all its regions with it
    regions.remove(region)

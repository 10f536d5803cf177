"""Where layers lie in registered memory, and which of them one call of the engine moves together.

A call costs as much as it takes to copy many pages, whatever it moves. So layers go in one call, as
planes of it: the same pages of each, wherever each lies.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from braid import letters
from braid.engine.transfers import MOST_PLANES
from braid.errors import InvalidArgument

PageIds = npt.NDArray[np.uint64]
T = TypeVar("T")
MOST_PAGES = 1 << 16
"""Most pages of one call: lists of several such calls find room on the engine's board."""
FIRST_PAGES = 1 << 13
"""Most pages of the first of several calls: they move while the other calls are made. Measured:
records/kv_gpu_calls.json, decision 43.
"""


class Place(NamedTuple):
    """Where a layer lies: its page k begins at offset + k * stride of region number `region`."""

    region: int
    offset: int
    stride: int


def places_from(found: object, layers: int, regions: int) -> list[Place]:
    """What a peer says of its layers; InvalidArgument for what is none."""
    if not isinstance(found, list) or len(found) != layers:
        raise InvalidArgument(f"kv: asked for the places of {layers} layers, found {found!r:.80}")
    return [_place_from(each, regions) for each in found]


def _place_from(found: Any, regions: int) -> Place:  # noqa: ANN401
    if not isinstance(found, list) or len(found) != 3:
        raise InvalidArgument(f"kv: a place is three numbers, found {found!r:.80}")
    words = dict(zip(("region", "offset", "stride"), found, strict=True))
    place = Place(*(letters.whole(words, name) for name in words))
    if place.region >= regions:
        raise InvalidArgument(f"kv: region {place.region} of {regions}")
    return place


def both(
    layers: range, ours: Sequence[Place], our_first: int, theirs: Sequence[Place], their_first: int
) -> list[tuple[Place, Place]]:
    """Where layers lie here and there, each side's list beginning with its first layer."""
    begin, end = layers.start, layers.stop
    here, there = (
        ours[begin - our_first : end - our_first],
        theirs[begin - their_first : end - their_first],
    )
    return list(zip(here, there, strict=True))


def check_pages(ids: PageIds, pages: int, what: str) -> None:
    """Behind a layer's last page there may be another layer, which the engine lets anybody reach
    who may reach this one. InvalidArgument names the first page that is none.
    """
    wrong = ids[ids >= pages]
    if wrong.size:
        raise InvalidArgument(f"{what}: page {wrong[0]}: the cache has {pages} pages")


def is_any_twice(ids: PageIds) -> bool:
    """Whether a page is named twice. np.unique takes 6 to 20 times as long as to sort them."""
    ordered = np.sort(ids)
    return bool((ordered[1:] == ordered[:-1]).any())


_MOST_NAMED = 16


def named(ids: PageIds) -> str:
    """Page numbers in words: the first ones of many, and how many there are."""
    first = ", ".join(map(str, ids[:_MOST_NAMED].tolist()))
    return f"[{first}]" if ids.size <= _MOST_NAMED else f"[{first}, ...: {ids.size} pages]"


class Side(NamedTuple):
    """One end of a call, as Engine.write_pages() takes it: a region and an offset for each layer,
    or one region that all have.
    """

    regions: int | list[int]
    offsets: PageIds
    stride: int
    ids: PageIds


class Move(NamedTuple):
    """One call: pages of these layers, by their numbers among those that were asked for."""

    layers: range
    ours: Side
    theirs: Side

    @property
    def pages(self) -> int:
        return len(self.layers) * self.ours.ids.size


def moves(
    layers: Sequence[tuple[Place, Place]], our_ids: PageIds, their_ids: PageIds
) -> Iterator[Move]:
    """The calls that move the pages our_ids[i] and their_ids[i] of all layers, which are planes of
    a call each.
    """
    begin = 0
    while begin < len(layers):
        most = (MOST_PAGES if begin else FIRST_PAGES) // max(1, our_ids.size)
        some = layers[begin : begin + min(MOST_PLANES, max(1, most))]
        count = _count(some)
        ours, theirs = zip(*some[:count], strict=True)
        yield Move(range(begin, begin + count), _side(ours, our_ids), _side(theirs, their_ids))
        begin += count


def _count(layers: Sequence[tuple[Place, Place]]) -> int:
    """How many from the first on have its strides."""
    strides = [(ours.stride, theirs.stride) for ours, theirs in layers]
    if strides.count(strides[0]) == len(strides):
        return len(strides)
    return next(n for n, each in enumerate(strides) if each != strides[0])


def _side(places: Sequence[Place], ids: PageIds) -> Side:
    regions = [place.region for place in places]
    is_one = regions.count(regions[0]) == len(regions)
    offsets = np.array([place.offset for place in places], np.uint64)
    return Side(regions[0] if is_one else regions, offsets, places[0].stride, ids)


def regions_of(side: Side, regions: Sequence[T]) -> T | list[T]:
    """The regions of a side as a call takes them: one for all planes, or one for each."""
    if isinstance(side.regions, int):
        return regions[side.regions]
    return [regions[number] for number in side.regions]

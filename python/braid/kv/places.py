"""Where layers lie in registered memory, and which of them one call of the engine moves together.

A call costs as much as it takes to copy many pages, whatever it moves. Layers of one allocation lie
at equal distances mostly, one behind the other or page by page; then pages of several layers are
pages of one list, numbered in steps that fit both the distance and the stride.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from braid import letters
from braid.errors import InvalidArgument

PageIds = npt.NDArray[np.uint64]
MOST_PAGES = 1 << 16
"""Of a call: some more find room on the engine's board (src/engine/board.h) beside them."""
FIRST_PAGES = 1 << 13
"""Of the first of several calls: its pages move while the others are made. Measured:
records/kv_gpu_calls.json, decision 43.
"""


class Place(NamedTuple):
    """Of a layer: its page k begins at offset + k * stride of region number `region`."""

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
    """One end of a call, as Engine.write_pages() takes it."""

    region: int
    offset: int
    stride: int
    ids: PageIds


class Move(NamedTuple):
    """One call: pages of these layers, by their numbers among those that were asked for."""

    layers: range
    ours: Side
    theirs: Side


def moves(
    layers: Sequence[tuple[Place, Place]], page_bytes: int, our_ids: PageIds, their_ids: PageIds
) -> Iterator[Move]:
    """The calls that move `page_bytes` of the pages our_ids[i] and their_ids[i] of all layers."""
    begin = 0
    while begin < len(layers):
        most = max(1, (MOST_PAGES if begin else FIRST_PAGES) // max(1, our_ids.size))
        steps = _steps(layers[begin], layers[begin + 1 : begin + 2], page_bytes)
        count = 1 if steps is None else _count(layers[begin : begin + most], *steps)
        our_step, their_step = steps or (0, 0)
        yield Move(
            range(begin, begin + count),
            _side(layers[begin][0], our_step, count, our_ids),
            _side(layers[begin][1], their_step, count, their_ids),
        )
        begin += count


def _count(layers: Sequence[tuple[Place, Place]], our_step: int, their_step: int) -> int:
    """How many from the first on lie at these distances."""
    (our, our_begin, our_stride), (their, their_begin, their_stride) = layers[0]
    for count, (ours, theirs) in enumerate(layers):
        if ours != (our, our_begin + count * our_step, our_stride):
            return count
        if theirs != (their, their_begin + count * their_step, their_stride):
            return count
    return len(layers)


def _steps(
    first: tuple[Place, Place], second: Sequence[tuple[Place, Place]], page_bytes: int
) -> tuple[int, int] | None:
    """From layer to layer on both sides; None where pages of several cannot be numbered."""
    if not second:
        return None
    ours, theirs = map(_step, first, second[0], (page_bytes, page_bytes))
    return (ours, theirs) if ours and theirs else None


def _step(first: Place, second: Place, page_bytes: int) -> int:
    """0: they have none."""
    step = second.offset - first.offset
    is_step = second.region == first.region and second.stride == first.stride and step > 0
    return step if is_step and gcd(step, first.stride) >= page_bytes else 0


def _side(first: Place, step: int, count: int, ids: PageIds) -> Side:
    if count == 1:
        return Side(first.region, first.offset, first.stride, ids)
    unit = gcd(step, first.stride)
    if unit < first.stride:
        ids = ids * np.uint64(first.stride // unit)
    numbers = np.add.outer(_begins(count, step // unit), ids)
    return Side(first.region, first.offset, unit, numbers.reshape(-1))


@lru_cache(maxsize=256)
def _begins(count: int, step: int) -> PageIds:
    """Of layers at equal distances; they are the same for every request."""
    return np.arange(count, dtype=np.uint64) * np.uint64(step)

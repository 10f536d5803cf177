"""Where layers lie in registered memory, and which of them one call of the engine moves together.

A call costs as much as it takes to copy many pages, whatever it moves. Layers of one allocation lie
at equal distances mostly, one behind the other or page by page; then pages of several layers are
pages of one list, numbered in steps that fit both the distance and the stride.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from braid import letters
from braid.errors import InvalidArgument

PageIds = npt.NDArray[np.uint64]
MOST_PAGES = 1 << 16
"""Of a call: some more find room on the engine's board (src/engine/board.h) beside them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of a layer: its page k begins at offset + k * stride of region number `region`."""

    region: int
    offset: int
    stride: int

    def as_json(self) -> list[int]:
        return [self.region, self.offset, self.stride]


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


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a call, as Engine.write_pages() takes it."""

    region: int
    offset: int
    stride: int
    ids: PageIds


@dataclass(frozen=True, slots=True)
class Move:
    """One call: pages of these layers, by their numbers among those that were asked for."""

    layers: range
    ours: Side
    theirs: Side


def moves(
    layers: Sequence[tuple[Place, Place]], page_bytes: int, our_ids: PageIds, their_ids: PageIds
) -> Iterator[Move]:
    """The calls that move `page_bytes` of the pages our_ids[i] and their_ids[i] of all layers."""
    begin, most = 0, max(1, MOST_PAGES // max(1, our_ids.size))
    while begin < len(layers):
        end = begin + 1
        while (
            end < len(layers)
            and end - begin < most
            and all(_goes_on([pair[n] for pair in layers[begin : end + 1]], page_bytes)
                    for n in range(2))
        ):  # fmt: skip
            end += 1
        ours, theirs = zip(*layers[begin:end], strict=True)
        yield Move(range(begin, end), _side(ours, our_ids), _side(theirs, their_ids))
        begin = end


def _goes_on(places: Sequence[Place], page_bytes: int) -> bool:
    """Whether the last one lies as far behind the one before it as the second behind the first."""
    first, second, last = places[0], places[1], places[-1]
    step = second.offset - first.offset
    return (
        (last.region, last.stride) == (first.region, first.stride)
        and step > 0
        and last.offset == first.offset + step * (len(places) - 1)
        and gcd(step, first.stride) >= page_bytes
    )


def _side(places: Sequence[Place], ids: PageIds) -> Side:
    first = places[0]
    if len(places) == 1:
        return Side(first.region, first.offset, first.stride, ids)
    step = places[1].offset - first.offset
    unit = gcd(step, first.stride)
    begins = np.arange(len(places), dtype=np.uint64) * np.uint64(step // unit)
    numbers = begins[:, None] + ids * np.uint64(first.stride // unit)
    return Side(first.region, first.offset, unit, numbers.reshape(-1))

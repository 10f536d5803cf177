"""A decoder's letter `want` as the consumer that it asks for, checked against what both sides have.

Whatever the letter says, nothing is written outside of what the decoder has offered.
"""

from typing import Any

import numpy as np

from braid import letters
from braid.errors import InvalidArgument
from braid.kv.handover import Consumer, Handover, Link
from braid.kv.layout import Layout, Slice
from braid.kv.places import PageIds, check_pages


def consumer_of(
    handover: Handover, link: Link, name: str, head: dict[str, Any], body: bytes
) -> Consumer:
    """InvalidArgument says what is wrong with the letter; `name` is our engine's."""
    if not link.regions:
        raise InvalidArgument(f"{handover.what}: wanted before anything was offered")
    pages, first = _wanted_pages(handover, link, name, head, body)
    slot = head.get("tail_slot")
    if not isinstance(slices := head.get("slices"), list):
        raise InvalidArgument(f"kv: want: asked for slices, found {slices!r:.60}")
    return Consumer(
        link,
        handover.request,
        letters.whole(head, "tag", 2**32 - 1),
        [_slice_of(numbers, handover.layout, link.layout) for numbers in slices],
        pages,
        first,
        letters.whole(head, "tail_slot") if slot is not None else None,
        [first] * handover.layout.layers_here,
    )


def _wanted_pages(
    handover: Handover, link: Link, name: str, head: dict[str, Any], body: bytes
) -> tuple[PageIds, int]:
    """The decoder's page numbers, and from which page of the request on they are."""
    pages = pages_behind(head, body, "<u4")
    first = letters.whole(head, "first_page")
    total = letters.whole(head, "tokens_pages")
    wanted = max(0, total - first)
    if total != handover.total_pages:
        raise InvalidArgument(
            f"{handover.what}: {handover.total_pages} pages at '{name}', {total} at '{link.name}'"
        )
    if len(pages) != wanted:
        raise InvalidArgument(f"{handover.what}: {wanted} pages, found {len(pages)} numbers")
    check_pages(pages, link.pages, f"{handover.what}: at '{link.name}'")
    return pages, first


def _slice_of(numbers: object, ours: Layout, theirs: Layout) -> Slice:
    """From [first layer, last + 1, our first head, their first head, heads]."""
    if not isinstance(numbers, list) or [type(n) for n in numbers] != [int] * 5:
        raise InvalidArgument(f"kv: a slice is five numbers, found {numbers!r:.80}")
    begin, end, source, target, heads = numbers
    for layout, head in ((ours, source), (theirs, target)):
        last = layout.first_layer + layout.layers_here
        if not (layout.first_layer <= begin < end <= last and heads > 0):
            raise InvalidArgument(f"kv: layers {begin} to {end} are not those of a rank")
        if not 0 <= head <= layout.heads_here - heads:
            raise InvalidArgument(f"kv: heads {head} to {head + heads} are not those of a rank")
    return Slice(0, range(begin, end), source, target, heads)


def pages_behind(head: dict[str, Any], body: bytes, number: str) -> PageIds:
    """The page numbers behind a head. InvalidArgument: the last one is cut off."""
    if len(body) % np.dtype(number).itemsize:
        raise InvalidArgument(f"kv: '{head['kind']}' with {len(body)} bytes of page numbers")
    return np.frombuffer(body, number).astype(np.uint64)

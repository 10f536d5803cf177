"""Bytes that show where they are from, and page numbers in no order.

A provider that merges neighbours would otherwise be measured with one long write.
"""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]
Words = NDArray[np.uint64]

SOURCE, TARGET = 1, 2
"""Seeds of the page numbers on both sides."""
ODD = 0x9E3779B97F4A7C15


def base(nbytes: int) -> Words:
    """One word of 8 bytes for every place; no two places of a memory have the same one."""
    with np.errstate(over="ignore"):
        return np.arange(1, nbytes // 8 + 1, dtype=np.uint64) * np.uint64(ODD)


def key(number: int) -> np.uint64:
    """What the words are changed by, so that an earlier transfer's bytes do not pass for these."""
    return np.uint64((number * 0xD1342543DE82EF95 + 1) & 0xFFFF_FFFF_FFFF_FFFF)


def shuffled(count: int, seed: int, first: int = 0) -> Ids:
    """The page numbers first ... first + count - 1, in an order that `seed` decides."""
    order = np.random.default_rng(seed).permutation(count).astype(np.uint64)
    return order + np.uint64(first)


def shares(count: int, seed: int, layers: int = 1, at_once: int = 1) -> list[Ids]:
    """The page numbers of each of `at_once` requests, of `count` pages each: in every layer, one
    behind the other, each request has its own, in an order that `seed` decides.
    """
    each = at_once * count // layers
    begins = np.arange(layers, dtype=np.uint64) * np.uint64(each)
    parts = np.array_split(shuffled(each, seed), at_once)
    return [np.add.outer(begins, part).reshape(-1) for part in parts]


def wrong_bytes(
    found: Words, places: Words, number: int, page_bytes: int, source_ids: Ids, target_ids: Ids
) -> int:
    """Bytes of `found` that are not what `places` had under `number`, page by page."""
    rows = found.reshape(-1, page_bytes // 8)[target_ids.astype(np.intp)]
    wanted = places.reshape(-1, page_bytes // 8)[source_ids.astype(np.intp)] ^ key(number)
    different = rows != wanted
    if not different.any():
        return 0
    return int((rows[different].view(np.uint8) != wanted[different].view(np.uint8)).sum())

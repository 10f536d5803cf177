"""Whose buffers fit on the GPU together. Pure: all ranks get the same answer from the same
numbers.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

_SPARE_BYTES = 3 << 30  # of CUDA contexts, libraries' channels and comparisons


def merged(needs: Sequence[Mapping[Key, int]]) -> dict[Key, int]:
    """Bytes per shared buffer: the largest that anybody needs."""
    total: dict[Key, int] = {}
    for need in needs:
        for key, nbytes in need.items():
            total[key] = max(total.get(key, 0), nbytes)
    return total


def fitting(needs: Sequence[Mapping[Key, int]], usable_bytes: int) -> int:
    """How many contestants, from the first on, fit together."""
    count = len(needs)
    while count and sum(merged(needs[:count]).values()) + _SPARE_BYTES > usable_bytes:
        count -= 1
    return count

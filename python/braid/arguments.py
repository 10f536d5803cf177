"""Arguments of calls that the core would not take as numbers: what is wrong is one line, in the
words of every other mistake.
"""

import operator
from collections.abc import Sequence
from typing import Literal, SupportsIndex, TypeAlias, get_args

from braid.errors import InvalidArgument

Op: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]
"""How numbers are reduced."""
Operation: TypeAlias = Literal[
    "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast"
]
"""What has a plan that explain() tells."""

_MOST = 2**62  # elements: what the core counts to


def checked_op(function: str, op: object) -> str:
    """One of Op."""
    if isinstance(op, str) and op in get_args(Op):
        return op
    raise InvalidArgument(
        f"{function}: argument op: {op!r} is unknown; braid has {', '.join(get_args(Op))}"
    )


def checked_number(function: str, argument: str, value: SupportsIndex, most: int) -> int:
    """The number, which must be from 0 to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= most:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for 0 to {most}, found {value!r:.80}"
        )
    return number


def checked_rank(function: str, argument: str, rank: SupportsIndex, size: int) -> int:
    """A rank of a comm of `size`."""
    try:
        number = operator.index(rank)
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise InvalidArgument(
            f"{function}: {argument} is {rank!r}, with {size} ranks it must be 0 to {size - 1}"
        )
    return number


def checked_counts(
    function: str, argument: str, counts: Sequence[int], size: int, row: int
) -> list[int]:
    """One count of rows, of `row` elements each, for each of `size` ranks."""
    try:
        plain = [operator.index(n) for n in counts]
    except TypeError:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for whole numbers, found {counts!r}"
        ) from None
    most = _MOST // max(row, 1)
    if len(plain) != size or min(plain) < 0 or sum(plain) > most:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for {size} counts of 0 or more that sum to"
            f" {most} at most, found {plain!r:.80}"
        )
    return plain

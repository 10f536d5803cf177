"""What users ask a prefiller or a decoder for, checked before anything of it is entered."""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from braid.engine import values
from braid.errors import InvalidArgument
from braid.kv.places import PageIds

_MOST_TOKENS = 2**53
"""The largest number that a letter may hold (JSON)."""
_MOST_PAGE = 2**64 - 1


def request_name(request: str, what: str) -> str:
    """Words that can go over in a letter."""
    values.of_kind(request, str, f"{what}: request")
    try:
        request.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}: request: asked for Unicode, found {request!r:.80}"
        ) from error
    return request


def whole(value: SupportsIndex, what: str, most: int = _MOST_TOKENS) -> int:
    """An integer from 0 to `most`; True is none."""
    if isinstance(value, bool | np.bool_):
        found = f"{value!r} ({type(value).__name__})"
        raise InvalidArgument(f"{what}: asked for a whole number, found {found}")
    return values.whole(value, what, most)


def seconds(timeout: float | None, what: str) -> float | None:
    """0 or more, infinity too; None for none."""
    return None if timeout is None else given_seconds(timeout, what)


def given_seconds(timeout: float, what: str) -> float:
    """0 or more, infinity too."""
    return values.seconds(timeout, what)


def page_numbers(pages: Sequence[int] | PageIds, what: str) -> PageIds:
    """Page numbers [n], a copy, each a whole number of 64 bits: nothing else is made into one."""
    if isinstance(pages, list | tuple) and not set(map(type, pages)) <= {int}:
        _refuse_other(pages, what)
    elif isinstance(pages, list | tuple) and pages and (min(pages) < 0 or max(pages) > _MOST_PAGE):
        _refuse_out_of_range(pages, what)
    return np.array(values.ids(pages, what))


def _refuse_other(pages: Sequence[object], what: str) -> None:
    """NumPy makes numbers of truths and of words, where they stand beside numbers."""
    for place, page in enumerate(pages):
        is_scalar = isinstance(page, int | float) or getattr(page, "ndim", None) == 0
        if not is_scalar or str(getattr(page, "dtype", type(page).__name__)).endswith("bool"):
            raise InvalidArgument(
                f"{what}: asked for whole numbers from 0 on, found {page!r:.80} "
                f"({type(page).__name__}) at place {place}"
            )
    _refuse_out_of_range([page for page in pages if isinstance(page, int)], what)


def _refuse_out_of_range(pages: Sequence[int], what: str) -> None:
    for place, page in enumerate(pages):
        if page < 0:
            raise InvalidArgument(
                f"{what}: asked for whole numbers from 0 on, found {page} at place {place}"
            )
        values.whole(page, f"{what}: the page at place {place}")

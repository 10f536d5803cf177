"""What users hand in, as the core wants it; what it cannot be is refused by name."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from braid.errors import InvalidArgument

Ids: TypeAlias = Sequence[int] | npt.NDArray[Any] | Any
"""Page numbers: whatever NumPy turns into one axis of whole numbers."""

Kind = TypeVar("Kind")
Item = TypeVar("Item")

FOREVER_NS = 2**62
_MOST_BYTES = 2**64 - 1
_EXACT_IN_FLOAT = 2**53


def whole(value: SupportsIndex, what: str, most: int = _MOST_BYTES) -> int:
    """An integer from 0 to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        found = f"{value!r} ({type(value).__name__})"
        raise InvalidArgument(f"{what}: asked for a whole number, found {found}") from None
    if not 0 <= number <= most:
        raise InvalidArgument(f"{what}: asked for 0 to {most}, found {number}")
    return number


def immediate(value: SupportsIndex | None, what: str) -> int | None:
    return None if value is None else whole(value, f"{what}: imm", 2**32 - 1)


def nanoseconds(seconds: float | None, what: str, default_ns: int) -> int:
    """Nanoseconds, at least 1 where seconds are given: the core takes 0 for "no time"."""
    if seconds is None:
        return default_ns
    if isinstance(seconds, np.integer | np.floating):  # one of an array's numbers
        seconds = seconds.item()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        raise InvalidArgument(f"{what}: timeout: asked for seconds, found {seconds!r}")
    if seconds < 0:
        raise InvalidArgument(f"{what}: timeout: asked for 0 s or more, found {seconds}")
    return FOREVER_NS if seconds > FOREVER_NS / 1e9 else max(1, round(seconds * 1e9))


def seconds(value: float, what: str) -> float:
    """0 or more; infinity for what no clock reaches, since a sum of it with the time must be one.
    Of what is no number no clock would ever pass the end.
    """
    if value is None:
        raise InvalidArgument(f"{what}: timeout: asked for seconds, found None")
    return float(value) if nanoseconds(value, what, 0) < FOREVER_NS else math.inf


def of_kind(value: object, kind: type[Kind], what: str) -> Kind:
    if not isinstance(value, kind):
        found = f"{value!r:.80} ({type(value).__name__})"
        raise InvalidArgument(f"{what}: asked for a {kind.__name__}, found {found}")
    return value


def text(value: str, what: str) -> str:
    """A str that UTF-8 has: half a pair of surrogates is none. What it is stays untold: it may be a
    secret.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what}: asked for a str, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}: asked for text, found half a pair of surrogates at place {error.start}"
        ) from None
    return value


def several(value: Iterable[Item], what: str) -> list[Item]:
    """What can be gone through, once."""
    try:
        return list(value)
    except TypeError:
        found = f"{value!r:.80} ({type(value).__name__})"
        raise InvalidArgument(f"{what}: asked for several, found {found}") from None


def octets(value: bytes | bytearray | memoryview, what: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgument(f"{what}: asked for bytes, found {type(value).__name__}")
    return bytes(value)


def ids(value: Ids, what: str, kind: str = "page numbers") -> npt.NDArray[np.uint64]:
    """Page numbers [n], or others of that kind: uint64, contiguous."""
    try:
        array = np.asarray(value)
    except Exception as error:  # another library's tensor may raise anything
        found = f"{type(value).__name__}: {error}"
        raise InvalidArgument(f"{what}: asked for {kind}, found {found}") from error
    if array.ndim == 1 and array.dtype == np.uint64:
        return np.ascontiguousarray(array)
    if array.ndim != 1:
        raise InvalidArgument(f"{what}: asked for one axis, found the shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iuf":
        raise InvalidArgument(f"{what}: asked for {kind}, found elements of {array.dtype}")
    _refuse_strange(array, what)
    return np.ascontiguousarray(array, np.uint64)


def _refuse_strange(array: npt.NDArray[Any], what: str) -> None:
    strange = np.zeros(array.shape, bool)
    if array.dtype.kind == "f":
        strange = ~(np.isfinite(array) & (array == np.floor(array)) & (array < _EXACT_IN_FLOAT))
    if array.dtype.kind != "u":
        strange |= array < 0
    if strange.any():
        at = int(np.argmax(strange))
        raise InvalidArgument(
            f"{what}: asked for whole numbers from 0 on, found {array[at]} at place {at}"
        )

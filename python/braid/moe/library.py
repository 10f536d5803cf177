"""Arrays of the caller's library: what they are called, and new ones of the same kind."""

import functools
import importlib
import operator
import sys
from typing import Any, Protocol, cast

import numpy as np

from braid.arrays import Array
from braid.errors import InvalidArgument, Unsupported

topk_idx_t = np.int64
"""The type of ids in topk_idx, as NumPy calls it; deep_ep's is torch's of the same name."""

_MOST_COUNT = 2**31 - 1  # of tokens, experts and ranks, as the core counts them
_CPU, _CUDA = 1, 2  # DLPack's kDLCPU and kDLCUDA


class Library(Protocol):
    """What differs between NumPy and torch."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Not initialised, in the memory where the array is that library_of() was asked about."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array: ...

    def swapped(self, array: Array) -> Array:
        """A view with the last two axes exchanged."""

    def count_up(self, count: int) -> Array:
        """0, 1, 2..., int64."""

    def order_of(self, keys: Array) -> Array:
        """Where the smallest key of [n] lies, then the next one; equal ones in their order."""

    def cast(self, array: Array, dtype: str) -> Array: ...

    def raw(self, array: Array) -> Array:
        """Its bytes."""

    def plain(self, array: Array) -> Array:
        """Without what keeps it from being lent, such as a gradient's history."""


class NumPy:
    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return np.empty(shape, _numpy_dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        return np.zeros(shape, _numpy_dtype(dtype))

    def swapped(self, array: Array) -> Array:
        return array.swapaxes(-1, -2)

    def count_up(self, count: int) -> Array:
        return np.arange(count, dtype=np.int64)

    def order_of(self, keys: Array) -> Array:
        return np.argsort(keys, kind="stable")

    def cast(self, array: Array, dtype: str) -> Array:
        return array.astype(_numpy_dtype(dtype))

    def raw(self, array: Array) -> Array:
        return array.view(np.uint8)

    def plain(self, array: Array) -> Array:
        return array


def _numpy_dtype(name: str) -> Any:
    """bfloat16 and float8_e4m3fn are ml_dtypes'; where it is missing fp8 is single bytes."""
    if name not in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(name)
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ModuleNotFoundError:
        if name == "float8_e4m3fn":
            return np.dtype(np.uint8)
        raise Unsupported(
            "rows of bfloat16 in NumPy need ml_dtypes: pip install ml_dtypes"
        ) from None


def is_torch(thing: object) -> bool:
    kind: Any = type(thing)
    return _is_of_torch(kind)


@functools.cache
def _is_of_torch(kind: type) -> bool:
    return any(each.__module__.split(".")[0] == "torch" for each in kind.__mro__)


@functools.cache
def torch_side() -> Any:
    """braid.torch.moe, loaded now: it imports torch, which this package does not."""
    return importlib.import_module("braid.torch.moe")


def library_of(array: Array) -> Library:
    return cast(Library, torch_side().Torch(array.device)) if is_torch(array) else NumPy()


def dtype_name(array: Array) -> str:
    return str(getattr(array.dtype, "name", array.dtype)).removeprefix("torch.")


def item_bytes(array: Array) -> int:
    return int(array.itemsize if hasattr(array, "itemsize") else array.dtype.itemsize)


def shape_of(array: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in array.shape)


def gpu_of(array: Any) -> int | None:
    """Whose memory an array is in; None: the host's."""
    return int(array.device.index) if getattr(array, "is_cuda", False) else None


class Checks:
    """Says what is wrong with an argument, and where: rank, argument, expected, got."""

    def __init__(self, call: str, rank: int | None, gpu: int | None = None) -> None:
        self._call, self._rank = call, rank
        self._gpu = gpu  # whose memory is expected; None: the host's

    @property
    def _where(self) -> str:
        return self._call if self._rank is None else f"{self._call} on rank {self._rank}"

    def refuse(self, argument: str, expected: str, got: object) -> InvalidArgument:
        return InvalidArgument(
            f"{self._where}: argument {argument}: expected {expected}, got {got}"
        )

    def unsupported(self, argument: str, why: str) -> Unsupported:
        return Unsupported(f"{self._where}: argument {argument}: {why}")

    def whole(self, argument: str, value: Any, least: int = 0, most: int = _MOST_COUNT) -> int:
        """An integer from `least` to `most`."""
        try:
            number = operator.index(value)
        except Exception:  # whatever an object says that is no number
            raise self.refuse(argument, "a whole number", _found(value)) from None
        if number < least:
            raise self.refuse(argument, f"{least} or more", number)
        if number > most:
            raise self.refuse(argument, f"at most {most}", number)
        return number

    def flag(self, argument: str, value: Any) -> bool:
        """What is true or false; an array of several is neither."""
        try:
            return bool(value)
        except Exception:
            raise self.refuse(argument, "True or False", _found(value)) from None

    def array(
        self,
        argument: str,
        array: Array,
        dtypes: tuple[str, ...],
        shape: tuple[int | None, ...],
    ) -> Array:
        """`array` of one of `dtypes` (none named: any) and of `shape`, None is any length."""
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise self.refuse(argument, "an array", type(array).__name__)
        try:
            found = shape_of(array)
            kind, number = _device_of(array)
        except Exception:  # it has these, and they are something else
            raise self.refuse(argument, "an array", type(array).__name__) from None
        self._place(argument, kind, number)
        if dtypes and dtype_name(array) not in dtypes:
            raise self.refuse(argument, " or ".join(dtypes), dtype_name(array))
        fits = len(found) == len(shape) and all(
            n is None or n == m for n, m in zip(shape, found, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise self.refuse(argument, f"shape [{wanted}]", list(found))
        if not _is_contiguous(array):
            raise self.refuse(argument, "a contiguous array", "one with gaps or in another order")
        return library_of(array).plain(array)

    def _place(self, argument: str, kind: int, number: int) -> None:
        if self._gpu is not None:
            if (kind, number) != (_CUDA, self._gpu):
                found = "host memory" if kind == _CPU else f"DLPack device ({kind}, {number})"
                raise self.refuse(argument, f"memory of GPU {self._gpu}", found)
        elif kind != _CPU:
            raise self.unsupported(
                argument, f"expected host memory, got a device's (DLPack type {kind})"
            )


Key = tuple[Any, ...]
_FIXED = {int, bool, str, type(None), np.int32, np.int64}


class Remembered:
    """What checks of calls have found, by all that they looked at: a call like an earlier one need
    not be checked again, which takes longer than a GPU takes for few rows. Of one buffer's calls
    with memory of one kind.
    """

    _MOST = 1024

    def __init__(self) -> None:
        self._found: dict[Key, Any] = {}

    def find(self, key: Key | None) -> Any:
        """None where no such call was checked."""
        try:
            return None if key is None else self._found.get(key)
        except TypeError:  # what has no hash is checked each time
            return None

    def keep(self, key: Key | None, found: Any) -> None:
        """Of a call that was found to be right."""
        if key is None or not _FIXED.issuperset(key[-1]):
            return
        if len(self._found) >= self._MOST:
            self._found.clear()
        self._found[key] = found


def key_of(arrays: tuple[Array | None, ...], *others: Any) -> Key | None:
    """All that checks of a call look at; None where nobody knows what they would find. `others` are
    told from what equals them: 1 from True and 1.0.
    """
    try:
        return *map(_kind_of, arrays), others, tuple(map(type, others))
    except Exception:  # an array of another library, or what is none
        return None


def _kind_of(array: Array | None) -> Key | None:
    """All of an array that may differ between two calls but its numbers and its address."""
    if array is None:
        return None
    kind = type(array)
    if kind is np.ndarray:
        return array.shape, array.dtype, array.flags.c_contiguous
    if kind in _torch_kinds():
        return array.shape, array.dtype, array.device, array.is_contiguous()
    raise TypeError


@functools.cache
def _torch_kinds() -> tuple[type, ...]:
    """Not what is derived from them, which may say something else each time."""
    torch = sys.modules["torch"]
    return torch.Tensor, torch.nn.Parameter


def _device_of(array: Array) -> tuple[int, int]:
    """DLPack's kind and number; the host's where an array does not say."""
    if not hasattr(array, "__dlpack_device__"):
        return _CPU, 0
    kind, number = array.__dlpack_device__()
    return int(kind), int(number)


def _found(value: object) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def _is_contiguous(array: Array) -> bool:
    if hasattr(array, "is_contiguous"):
        return bool(array.is_contiguous())
    return bool(array.flags["C_CONTIGUOUS"])

"""Shapes of what users hand in, and new arrays of the same library. No numerics.

Torch is never imported here: its tensors are recognised by what they can do.
"""

import sys
from math import prod
from typing import Any, TypeAlias

import numpy as np

from braid.errors import Exhausted, InvalidArgument

Array: TypeAlias = Any
"""Anything with the buffer protocol or DLPack."""
Stream: TypeAlias = Any
"""A CUDA stream: a handle, torch.cuda.Stream, cupy.cuda.Stream, or None for the current one."""


_CUDA_KINDS = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def _plain(array: Array, argument: str) -> Array:
    """Torch tensors and NumPy arrays as they are, a NumPy view of all else that has a buffer or
    DLPack.
    """
    if isinstance(array, np.ndarray) or hasattr(array, "new_empty"):
        return array
    if isinstance(array, np.generic):
        return np.asarray(array)
    kind = type(array).__name__
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        if hasattr(array, "__dlpack__"):
            return _of_dlpack(array, f"argument {argument}: found a {kind}")
        raise InvalidArgument(
            f"argument {argument}: asked for an array (buffer protocol or DLPack), found {kind}"
        ) from None


def _of_dlpack(array: Array, found: str) -> Array:
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError) as error:
        raise InvalidArgument(f"{found} that NumPy cannot read: {error}") from None


def shape_of(array: Array, argument: str) -> tuple[int, ...]:
    """The shape; () counts as (1,), so that every array has a first axis."""
    shape = tuple(map(int, _plain(array, argument).shape))
    return shape or (1,)


def row_elements(shape: tuple[int, ...]) -> int:
    """Elements in one step along the first axis."""
    return prod(shape[1:])


def empty_rows(like: Array, rows: int, argument: str) -> Array:
    """An uninitialised array [rows, *like.shape[1:]] of `like`'s element type.

    Torch tensors give torch tensors on the same device; all else gives NumPy arrays.
    """
    return empty(_plain(like, argument), rows, *shape_of(like, argument)[1:])


def empty(like: Array, *shape: int) -> Array:
    """As empty_rows(), of a shape, like a torch tensor or a NumPy array."""
    try:
        if hasattr(like, "new_empty"):
            return like.new_empty(*shape)  # which takes torch half the time that a tuple does
        return np.empty(shape, dtype=like.dtype)
    except (MemoryError, ValueError, RuntimeError) as error:  # NumPy's, and torch's
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Exhausted(f"argument out: no memory for a result of shape {shape}: {why}") from None


def split_rows(rows: int, parts: int, what: str) -> int:
    """rows / parts, which must divide."""
    if rows % parts:
        raise InvalidArgument(
            f"{what}: argument send: asked for a first axis that {parts} ranks divide, found {rows}"
        )
    return rows // parts


def gpu_of(array: Array) -> int | None:
    """The CUDA device whose memory `array` is in; None for host memory."""
    if not hasattr(array, "__dlpack_device__"):
        return None
    kind, number = array.__dlpack_device__()
    return int(number) if int(kind) in _CUDA_KINDS else None


def stream_of(array: Array, stream: Stream) -> int:
    """The handle of the CUDA stream that a call on `array` is enqueued on; 0 for host memory.

    `stream` is a handle, an object with .cuda_stream (torch) or .ptr (CuPy), or None: then the
    current stream of the array's library where we know how to ask (torch), else the default one.
    """
    if stream is None:
        if not getattr(array, "is_cuda", False):
            return 0
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    asked = next((getattr(stream, k) for k in ("cuda_stream", "ptr") if hasattr(stream, k)), stream)
    try:
        handle = int(asked)
    except (TypeError, ValueError, OverflowError):
        handle = -1
    if not 0 <= handle < 2**64:
        raise InvalidArgument(
            "argument stream: asked for a handle (0 to 2^64 - 1), or an object with .cuda_stream or"
            f" .ptr, found {stream!r:.80} ({type(stream).__name__})"
        )
    return handle

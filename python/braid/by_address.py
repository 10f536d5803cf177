"""The short way of a collective on torch's tensors on a GPU: by their addresses.

To borrow a tensor through DLPack costs the host more than all the rest of a short call. Most calls
are on tensors that need nothing of it: *plain* ones, which are memory on a GPU that is what it
says, in order. What the core must know of those are some numbers.

Each call here answers None where its arguments are not plain, also where they are wrong, and while
other calls are under way: then it goes the long way (collectives.py), which takes every array, or
says what is wrong. Both make the same call of the core, with the same type and number of elements,
so ranks may take different ones.

Torch is never imported here: a program that has a tensor has done so.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from braid import _braid, arrays
from braid.arrays import Array, Stream
from braid.calls import Calls

Tensor: TypeAlias = Any

# Those that DLPack has in every torch. Booleans and complex numbers travel as bytes.
_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8"),
    *("float16", "bfloat16", "float32", "float64"),
)
_OPS = {op: _braid.redop_code(op) for op in ("sum", "prod", "min", "max", "avg")}


class _Torch(NamedTuple):
    """What is needed of it."""

    classes: frozenset[type]
    """The type of tensors that may be plain; other types may be anything underneath."""
    strided: Any
    codes: dict[Any, int]
    stream_on: Callable[[int], int]
    """A GPU's number to the handle of its current stream, as torch's compiled programs ask."""


_torch: _Torch | None = None


def _meet() -> _Torch | None:
    """None before the program has imported torch, and of one that does not tell what is needed."""
    global _torch
    torch: Any = sys.modules.get("torch")
    stream_on = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if stream_on is not None and hasattr(torch, "nn"):  # which is imported last
        classes = frozenset({torch.Tensor, torch.nn.Parameter})
        codes = {getattr(torch, name): _braid.dtype_code(name) for name in _DTYPES}
        _torch = _Torch(classes, torch.strided, codes, stream_on)
    return _torch


def current_stream(gpu: int) -> int:
    """The handle of torch's current stream there."""
    torch = _torch or _meet()
    if torch is None:
        return int(sys.modules["torch"].cuda.current_stream(gpu).cuda_stream)
    return torch.stream_on(gpu)


def _plain(array: Array) -> tuple[int, int, int] | None:
    """The code of its elements' type, the GPU and the address, where it is plain and has any."""
    torch = _torch or _meet()
    if (
        torch is None
        or type(array) not in torch.classes
        or not array.is_cuda
        or array.layout is not torch.strided
        or not array.is_contiguous()
        or array.is_neg()
        or array.requires_grad  # which DLPack refuses
    ):
        return None
    try:
        code, at = torch.codes.get(array.dtype), array.data_ptr()
    except RuntimeError:  # it stands for others, in torch.func
        return None
    return None if code is None or not at else (code, array.get_device(), at)


def _handle(tensor: Tensor, gpu: int, stream: Stream) -> int:
    return current_stream(gpu) if stream is None else arrays.stream_of(tensor, stream)


def _place(out: Array, code: int, gpu: int, count: int) -> int:
    """Where `out` is, if it is plain, and so many elements of that type on that GPU; else 0."""
    found = _plain(out)
    if found is None or found[:2] != (code, gpu) or out.numel() != count:
        return 0
    return found[2]


def _is_clear(part: int, part_bytes: int, whole: int, whole_bytes: int, offset: int = 0) -> bool:
    """As check_in_place_or_apart() in src/coll/arguments.h."""
    if part == whole + offset:
        return True
    return part + part_bytes <= whole or whole + whole_bytes <= part


class ByAddress:
    """The calls of one comm."""

    def __init__(self, core: _braid.Comm, calls: Calls) -> None:
        self._core, self._calls = core, calls
        self._rank, self._size = core.rank, core.size

    def all_gather(self, send: Array, out: Array, stream: Stream) -> Tensor:
        mine = _plain(send)
        if mine is None or self._calls.are_under_way:
            return None
        (code, gpu, at), count = mine, send.numel()
        if out is None:
            rows, *row = send.shape or (1,)
            out = arrays.empty(send, self._size * rows, *row)
            to = out.data_ptr()
        else:
            to = _place(out, code, gpu, self._size * count)
            part = send.nbytes
            if not to or not _is_clear(at, part, to, out.nbytes, self._rank * part):
                return None
        on = _handle(send, gpu, stream)
        _braid.all_gather_on(self._core, gpu, at, to, count, code, on)
        return out

    def all_reduce(self, buf: Array, op: object, out: Array, stream: Stream) -> Tensor:
        mine = _plain(buf)
        how = _OPS.get(op) if type(op) is str else None
        if mine is None or how is None or self._calls.are_under_way:
            return None
        (code, gpu, at), count = mine, buf.numel()
        if out is None:
            out, to = buf, at
        else:
            to = _place(out, code, gpu, count)
            if not to or not _is_clear(at, buf.nbytes, to, buf.nbytes):
                return None
        on = _handle(buf, gpu, stream)
        _braid.all_reduce_on(self._core, gpu, at, to, count, code, how, on)
        return out

    def reduce_scatter(self, send: Array, op: object, out: Array, stream: Stream) -> Tensor:
        mine = _plain(send)
        how = _OPS.get(op) if type(op) is str else None
        if mine is None or how is None or self._calls.are_under_way:
            return None
        code, gpu, at = mine
        count, rest = divmod(send.numel(), self._size)
        if rest:
            return None
        if out is None:
            rows, *row = send.shape or (1,)
            if rows % self._size:
                return None
            out = arrays.empty(send, rows // self._size, *row)
            to = out.data_ptr()
        else:
            to = _place(out, code, gpu, count)
            part = send.nbytes // self._size
            if not to or not _is_clear(to, part, at, send.nbytes, self._rank * part):
                return None
        on = _handle(send, gpu, stream)
        _braid.reduce_scatter_on(self._core, gpu, at, to, count, code, how, on)
        return out

    def all_to_all(self, send: Array, out: Array, stream: Stream) -> Tensor:
        mine = _plain(send)
        if mine is None or self._calls.are_under_way:
            return None
        (code, gpu, at), count = mine, send.numel()
        rows, *row = send.shape or (1,)
        if rows % self._size:
            return None
        if out is None:
            out = arrays.empty(send, rows, *row)
            to = out.data_ptr()
        else:
            to = _place(out, code, gpu, count)
            if not to or not _is_clear(at, send.nbytes, to, send.nbytes):
                return None
        on = _handle(send, gpu, stream)
        _braid.all_to_all_on(self._core, gpu, at, to, count // self._size, code, on)
        return out

    def broadcast(self, buf: Array, root: object, stream: Stream) -> Tensor:
        mine = _plain(buf)
        if mine is None or type(root) is not int or not 0 <= root < self._size:
            return None
        if self._calls.are_under_way:
            return None
        (code, gpu, at), count = mine, buf.numel()
        on = _handle(buf, gpu, stream)
        _braid.broadcast_on(self._core, gpu, at, count, code, root, on)
        return buf

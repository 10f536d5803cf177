"""The short way of a call on a GPU: plain tensors, by their addresses.

What one call costs the host is what many small ones cost altogether. Most calls are on tensors that
need nothing of what collectives.py does for odd ones, and differ from one another by some numbers,
which is all that the core needs to be told: addresses, a count, codes, a stream's handle.

Each method answers None where its arguments are not plain, also where they are wrong: such a call
goes the long way, which knows what to do or says what is wrong. Both ways lead to the same call of
the core, so ranks may take different ones: reductions by the element's type, moves by bytes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from braid import _braid
from braid.comm import Comm
from braid.torch import streams
from braid.torch.gpu_calls import GpuCalls
from braid.torch.reduction import PLAIN_OPS, REDUCIBLE
from braid.torch.work import GpuWork

Tensors = Sequence[torch.Tensor]

_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})  # others may be anything underneath
_DTYPES = {dtype: _braid.dtype_code(str(dtype).removeprefix("torch.")) for dtype in REDUCIBLE}
_BYTES = _DTYPES[torch.uint8]
# By the operator's hash, which is its kind. PREMUL_SUM and the bitwise ones are not among them.
_OPS = {int(getattr(ReduceOp, kind)): _braid.redop_code(op) for kind, op in PLAIN_OPS.items()}


def plain_calls(comm: Comm, device: torch.device, calls: GpuCalls) -> "PlainCalls | None":
    """The short way for calls of `comm`, which has made one on `device`; None where this torch does
    not say what it needs.
    """
    return PlainCalls(comm, device, calls) if streams.raw_stream is not None else None


class PlainCalls:
    """Any thread: the order of calls is that of `calls`, which also knows when the group ended."""

    def __init__(self, comm: Comm, device: torch.device, calls: GpuCalls) -> None:
        self._core, self._size = comm._core, comm.size
        self._device, self._gpu = device, device.index
        self._calls = calls

    def all_reduce(self, tensors: Tensors, opts: Any) -> GpuWork | None:
        """Of one tensor."""
        if type(opts) is not AllreduceOptions or type(tensors) is not list or len(tensors) != 1:
            return None
        (tensor,) = tensors
        dtype, count = self._dtype(tensor), tensor.numel()
        op = _OPS.get(hash(opts.reduceOp))
        if dtype is None or op is None or not count:
            return None
        at = tensor.data_ptr()
        call = partial(_braid.all_reduce_on, self._core, self._gpu, at, at, count, dtype, op)
        return self._enqueue("all_reduce", tensors, tensors, call, opts)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any) -> GpuWork | None:
        """Of one tensor that holds every rank's block."""
        if type(opts) is not ReduceScatterOptions:
            return None
        dtype, count = self._dtype(out), out.numel()
        op = _OPS.get(hash(opts.reduceOp))
        if dtype is None or op is None or dtype != self._dtype(tensor):
            return None
        if not count or tensor.numel() != count * self._size:
            return None
        sent, got = tensor.data_ptr(), out.data_ptr()
        call = partial(_braid.reduce_scatter_on, self._core, self._gpu, sent, got, count, dtype, op)
        return self._enqueue("reduce_scatter", [out, tensor], [out], call, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> GpuWork | None:
        """Of one tensor."""
        if type(opts) is not BroadcastOptions or type(tensors) is not list or len(tensors) != 1:
            return None
        (tensor,) = tensors
        root = opts.rootRank
        if self._dtype(tensor) is None or not 0 <= root < self._size or not tensor.numel():
            return None
        at, count = tensor.data_ptr(), tensor.nbytes
        call = partial(_braid.broadcast_on, self._core, self._gpu, at, count, _BYTES, root)
        return self._enqueue("broadcast", tensors, tensors, call, opts)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any) -> GpuWork | None:
        """Into one tensor that holds every rank's block."""
        if type(opts) is not AllgatherOptions or not self._are_alike(out, tensor):
            return None
        count = tensor.nbytes
        if not count or out.nbytes != count * self._size:
            return None
        call = self._move(_braid.all_gather_on, out, tensor, count)
        return self._enqueue("all_gather", [out, tensor], [out], call, opts)

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any) -> GpuWork | None:
        """Of equal blocks."""
        if type(opts) is not AllToAllOptions or not self._are_alike(out, tensor):
            return None
        count = tensor.nbytes
        if not count or out.nbytes != count or not self._have_blocks(out, tensor):
            return None
        call = self._move(_braid.all_to_all_on, out, tensor, count // self._size)
        return self._enqueue("all_to_all", [out, tensor], [out], call, opts)

    # ---- what they have in common ----

    def _dtype(self, tensor: torch.Tensor) -> int | None:
        """The code of the element type when the tensor is plain: memory on our GPU that is what it
        says, in order; else None.
        """
        if (
            type(tensor) in _CLASSES
            and tensor.get_device() == self._gpu
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and not tensor.is_neg()
        ):
            return _DTYPES.get(tensor.dtype)
        return None

    def _are_alike(self, out: torch.Tensor, tensor: torch.Tensor) -> bool:
        dtype = self._dtype(out)
        return dtype is not None and dtype == self._dtype(tensor)

    def _have_blocks(self, out: torch.Tensor, tensor: torch.Tensor) -> bool:
        """Whether both are a row of blocks, one per rank; else the long way says what is wrong."""
        return all(t.dim() > 0 and t.shape[0] % self._size == 0 for t in (out, tensor))

    def _move(
        self, function: Callable[..., None], out: torch.Tensor, tensor: torch.Tensor, count: int
    ) -> Callable[[int], None]:
        return partial(
            function, self._core, self._gpu, tensor.data_ptr(), out.data_ptr(), count, _BYTES
        )

    def _enqueue(
        self, name: str, tensors: Tensors, outputs: Tensors, call: Callable[[int], None], opts: Any
    ) -> GpuWork:
        return self._calls.enqueue(
            name, self._device, tensors, outputs, call, is_async=opts.asyncOp
        )

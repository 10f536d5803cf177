"""Tensors as rows: one contiguous run of elements, as braid moves them.

torch hands us tensors of any strides. A row is the tensor's own memory where that is contiguous in
C order, else a copy in the tensor's logical order, written back when the call is over. So a
transposed tensor means its elements, whatever the strides on the other ranks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braid.torch.errors import InvalidArgument, Unsupported

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def device_of(function: str, tensors: Sequence[torch.Tensor]) -> torch.device:
    """The one device that all tensors are on. Unsupported for what is neither CPU nor CUDA, or
    not strided.
    """
    if not tensors:
        raise InvalidArgument(f"{function}: asked for at least one tensor, found none")
    device = tensors[0].device
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            raise Unsupported(
                f"{function}: asked for a tensor with elements, found a FakeTensor, which has none;"
                " use torch's 'fake' backend where nothing is to be moved"
            )
        if tensor.device != device:
            raise InvalidArgument(
                f"{function}: asked for tensors on one device, found {device} and {tensor.device}"
            )
        if tensor.layout != torch.strided:
            raise Unsupported(
                f"{function}: asked for a strided tensor, found {tensor.layout}; call to_dense()"
            )
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"{function}: asked for tensors on cpu or cuda, found {device}")
    return torch.device(device)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where torch's functional collectives gave one that waits for its call
    when it is used, which is now. To be called in the caller's thread: what runs elsewhere runs in
    inference mode, where that cannot be done.
    """
    if type(tensor) in _PLAIN:
        return tensor
    wait = getattr(tensor, "trigger_wait", None)
    result: torch.Tensor = tensor if wait is None else wait()
    return result


def check_dtype(function: str, tensors: Sequence[torch.Tensor]) -> None:
    """All tensors must have one element type."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgument(
                f"{function}: asked for tensors of one dtype, found {tensors[0].dtype} and"
                f" {tensor.dtype}"
            )


def check_count(function: str, argument: str, found: int, wanted: int) -> None:
    """`argument` must have `wanted` elements."""
    if found != wanted:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for {wanted} elements, found {found}"
        )


def is_row(tensor: torch.Tensor) -> bool:
    """Whether its memory is its elements, in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def as_row(contiguous: torch.Tensor) -> torch.Tensor:
    """Its memory as [numel]. view(-1) leaves one element, or none, of a column (`x[:1, 0]`) the
    column's stride, of which no bytes can be seen.
    """
    return contiguous.as_strided((contiguous.numel(),), (1,))


def _empty_row(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.numel(), dtype=like.dtype, device=like.device)


def row(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of `tensor` to read from, [numel]."""
    plain = tensor.detach()
    if is_row(plain):
        return as_row(plain)
    copy = _empty_row(plain)
    copy.view(plain.shape).copy_(plain)
    return copy


@contextmanager
def written(tensor: torch.Tensor, *, is_read: bool = False) -> Iterator[torch.Tensor]:
    """The elements of `tensor` to write to, [numel]; with `is_read` they are filled in first.

    Nothing is written back when the body raises.
    """
    plain = tensor.detach()
    if is_row(plain):
        yield as_row(plain)
        return
    copy = row(plain) if is_read else _empty_row(plain)
    yield copy
    plain.copy_(copy.view(plain.shape))


def as_bytes(elements: torch.Tensor) -> torch.Tensor:
    """A row as bytes, uint8 [numel * itemsize]: what only moves needs no element type."""
    return elements.view(torch.uint8)


def put(tensor: torch.Tensor, elements: torch.Tensor) -> None:
    """Copies a row into `tensor`, whose strides may be any."""
    tensor.detach().copy_(elements.view(tensor.shape))

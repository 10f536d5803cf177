"""Where a call's elements lie. Other ranks do not know, so it must not change the way."""

from torch import Tensor

_ALIGNED = 16  # bytes that a kernel's copies take at once


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def fit(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it, dense and at a multiple of 16 bytes: a copy on the current
    stream where it is not.
    """
    dense = plain(tensor).contiguous()
    return dense.clone() if dense.data_ptr() % _ALIGNED or dense.is_neg() else dense

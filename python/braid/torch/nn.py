"""Linear layers whose weights are cut over the ranks of a comm, on braid.overlap.

ColumnParallelLinear has rows of the whole weight [N, K], N / size on each rank; RowParallelLinear
columns, K / size. One behind the other they are a block of a model with tensor parallelism.

With sequence_parallel the activations outside of such a block are cut along their first axis: a
column-parallel layer gathers them, a row-parallel one scatters its sum, forwards and backwards.
Without, they are whole on every rank, and the sum is an all-reduce.

Inputs are [rows, ..., features]; their leading axes are taken together as rows. All ranks call the
same layers in the same order, forwards and backwards. Under torch.autocast they compute in its
type, as torch's own linear layer does, and gradients have the types of what was given.

copy.deepcopy() of a model, as averages of weights make one, has layers of the same comm.
torch.save() of a model saves each layer's part without its comm, as DistributedDataParallel is
saved without its group; a loaded layer computes once it was given one: `layer.comm = comm`. A
state_dict() has weights alone.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from braid.comm import Comm
from braid.errors import InvalidArgument
from braid.overlap import ag_gemm, gemm_ar, gemm_rs
from braid.overlap.kinds import check_comm, check_tensor
from braid.torch.layer_arguments import check_place, features, flag, part


class _ColumnParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, comm: Comm, is_cut: bool
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.comm, ctx.is_cut, ctx.has_bias = comm, is_cut, bias is not None
        if is_cut:
            return ag_gemm(x, w, comm, bias=bias)
        return torch.nn.functional.linear(x, w, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        reduce = gemm_rs if ctx.is_cut else gemm_ar
        dx = reduce(dy, w, ctx.comm, layout="kn") if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = dy.t() @ (ctx.comm.all_gather(x.detach()) if ctx.is_cut else x)
        return dx, dw, dy.sum(0) if ctx.has_bias else None, None, None


class _RowParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, comm: Comm, is_cut: bool
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.comm, ctx.is_cut, ctx.has_bias = comm, is_cut, bias is not None
        return (gemm_rs if is_cut else gemm_ar)(x, w, comm, bias=bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            dx = ag_gemm(dy, w, ctx.comm, layout="kn") if ctx.is_cut else dy @ w
        whole = ctx.comm.all_gather(dy.detach()) if ctx.is_cut else dy
        dw = whole.t() @ x if ctx.needs_input_grad[1] else None
        return dx, dw, whole.sum(0) if ctx.has_bias else None, None, None


def _autocast(tensor: Tensor) -> Tensor:
    """In autocast's type where that is on, which leaves float64 alone. Differentiable."""
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensor
    if tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


class _Seat:
    """Where a layer has its comm. Copies of the layer share it; pickled, it has none."""

    def __init__(self, comm: Comm | None = None) -> None:
        self.comm = comm

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Seat":
        return self

    def __reduce__(self) -> tuple[type["_Seat"], tuple[()]]:
        return _Seat, ()


class _Parallel(torch.nn.Module):
    function: Any

    def __init__(
        self,
        weight_shape: tuple[int, int],
        has_bias: bool,
        comm: Comm,
        sequence_parallel: bool,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        has_bias = flag(name, "bias", has_bias)
        self._part = comm.rank, comm.size
        self.comm = comm
        self.sequence_parallel = flag(name, "sequence_parallel", sequence_parallel)
        check_place(name, device, dtype)
        make = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(*weight_shape, **make))
        bias = torch.nn.Parameter(torch.zeros(weight_shape[0], **make)) if has_bias else None
        self.register_parameter("bias", bias)

    @property
    def comm(self) -> Comm:
        """Of the ranks that have the other parts. InvalidArgument: a layer from a file has none."""
        if self._seat.comm is None:
            raise InvalidArgument(
                f"{type(self).__name__}: was unpickled, without its comm; give it one of"
                f" {self._part[1]} ranks: layer.comm = comm"
            )
        return self._seat.comm

    @comm.setter
    def comm(self, comm: Comm) -> None:
        check_comm(type(self).__name__, comm)
        if (comm.rank, comm.size) != self._part:
            rank, size = self._part
            raise InvalidArgument(
                f"{type(self).__name__}: has the weights of rank {rank} of {size}; the comm's rank"
                f" is {comm.rank} of {comm.size}"
            )
        self._seat = _Seat(comm)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        rows = _autocast(x).reshape(-1, x.shape[-1]).contiguous()
        weight = _autocast(self.weight)
        bias = None if self.bias is None else _autocast(self.bias)
        y = self.function.apply(rows, weight, bias, self.comm, self.sequence_parallel)
        return y.reshape(self._first(x.shape[0]), *x.shape[1:-1], y.shape[-1])

    def _first(self, first: int) -> int:
        """Of the result, the length of the first axis, which x has as `first`."""
        return first

    def _check(self, x: Tensor) -> None:
        """What this rank can see, before anything is sent."""
        name, depth = type(self).__name__, self.weight.shape[1]
        check_tensor(name, "x", x)
        shape = tuple(x.shape)
        if x.dim() < 2:
            raise InvalidArgument(f"{name}: x of shape {shape}; [rows, ..., features]")
        if shape[-1] != depth:
            raise InvalidArgument(f"{name}: x of shape {shape}; {depth} on the last axis")
        if 0 in shape:
            raise InvalidArgument(
                f"{name}: x of shape {shape}: axis {shape.index(0)} is empty, so nothing to do"
            )


class ColumnParallelLinear(_Parallel):
    """y = x W.T + b, of which this rank makes out_features / size columns.

    x [s / size, ..., in_features] with sequence_parallel, else [s, ..., in_features]; y [s, ...,
    out_features / size]. Weight [out_features / size, in_features], the caller's to initialise:
    rank r has rows r * out_features / size and on.
    """

    function = _ColumnParallel

    def _first(self, first: int) -> int:
        return first * self.comm.size if self.sequence_parallel else first

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Comm,
        *,
        bias: bool = True,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        in_features = features(name, "in_features", in_features)
        mine = part(name, "out_features", out_features, comm)
        super().__init__((mine, in_features), bias, comm, sequence_parallel, device, dtype)
        bound = in_features**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)


class RowParallelLinear(_Parallel):
    """y = x W.T + b, for which this rank has in_features / size columns of x and W.

    x [s, ..., in_features / size]; y [s / size, ..., out_features] with sequence_parallel, else
    [s, ..., out_features]. Weight [out_features, in_features / size]; the bias is alike on all
    ranks and added once.
    """

    function = _RowParallel

    def _first(self, first: int) -> int:
        return first // self.comm.size if self.sequence_parallel else first

    def _check(self, x: Tensor) -> None:
        super()._check(x)
        if self.sequence_parallel and x.shape[0] % self.comm.size:
            raise InvalidArgument(
                f"{type(self).__name__}: x of shape {tuple(x.shape)}: {x.shape[0]} on the first"
                f" axis do not divide among {self.comm.size} ranks"
            )

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Comm,
        *,
        bias: bool = True,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        out_features = features(name, "out_features", out_features)
        mine = part(name, "in_features", in_features, comm)
        super().__init__((out_features, mine), bias, comm, sequence_parallel, device, dtype)
        bound = in_features**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)

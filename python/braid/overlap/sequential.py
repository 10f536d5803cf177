"""The way that always works: a collective of braid, and torch's product."""

import torch

from braid import _braid
from braid.by_address import current_stream
from braid.comm import Comm
from braid.overlap.fit import fit, plain
from braid.overlap.shapes import Op, Shape


def product(x: torch.Tensor, w: torch.Tensor, is_kn: bool) -> torch.Tensor:
    # linear() is the same product, and its view of w costs the host less than w.t() does.
    return x @ w if is_kn else torch.nn.functional.linear(x, w)


def run(
    comm: Comm, op: Op, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, is_kn: bool
) -> torch.Tensor:
    """Partial products are rounded to the dtype, then summed in the order of the ranks."""
    if comm.size == 1:
        made = product(x, w, is_kn)
    elif op is Op.AG_GEMM:
        made = product(comm.all_gather(x.contiguous()), w, is_kn)
    else:
        parts = product(x, w, is_kn).contiguous()
        made = comm.reduce_scatter(parts) if op is Op.GEMM_RS else comm.all_reduce(parts)
    return made if bias is None else made + bias


class Anywhere:
    """Calls of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._op, self._is_kn = shape.op, shape.is_kn

    def run(
        self, comm: Comm, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        b = None if bias is None else plain(bias)
        return run(comm, self._op, plain(x), plain(w), b, self._is_kn)


class Gathered:
    """Calls of one shape of several ranks on a GPU, of which kernels could take as well: but for
    addresses all is known, so they cost the host about what their parts by themselves do.
    """

    def __init__(self, shape: Shape, gpu: int) -> None:
        self._is_kn, self._gpu, self._code = shape.is_kn, gpu, _code_of(shape)
        self._whole, self._count = (shape.result_rows, shape.depth), shape.rows * shape.depth
        self._enqueue = _braid.all_gather_on

    def run(
        self, comm: Comm, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        x, w, gpu = fit(x), fit(w), self._gpu
        whole = x.new_empty(*self._whole)
        comm._calls.run(
            "all_gather", self._enqueue, comm._core, gpu, x.data_ptr(), whole.data_ptr(),
            self._count, self._code, current_stream(gpu),
        )  # fmt: skip
        made = product(whole, w, self._is_kn)
        return made if bias is None else made + fit(bias)


class Summed:
    """The same where sums come behind the product."""

    def __init__(self, shape: Shape, gpu: int) -> None:
        self._is_kn, self._gpu, self._code = shape.is_kn, gpu, _code_of(shape)
        self._dtype, self._op = shape.dtype, _braid.redop_code("sum")
        self._shard, self._is_cut = (shape.result_rows, shape.columns), shape.op is Op.GEMM_RS
        self._count = shape.result_rows * shape.columns
        self._name = "reduce_scatter" if self._is_cut else "all_reduce"
        self._enqueue = _braid.reduce_scatter_on if self._is_cut else _braid.all_reduce_on

    def run(
        self, comm: Comm, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        parts, gpu = product(fit(x), fit(w), self._is_kn), self._gpu
        if parts.dtype is self._dtype:
            made = parts.new_empty(*self._shard) if self._is_cut else parts
            comm._calls.run(
                self._name, self._enqueue, comm._core, gpu, parts.data_ptr(), made.data_ptr(),
                self._count, self._code, self._op, current_stream(gpu),
            )  # fmt: skip
        else:  # under autocast
            made = comm.reduce_scatter(parts) if self._is_cut else comm.all_reduce(parts)
        return made if bias is None else made + fit(bias)


def _code_of(shape: Shape) -> int:
    return _braid.dtype_code(str(shape.dtype).removeprefix("torch."))


def on_gpu(shape: Shape, gpu: int) -> Gathered | Summed:
    """Of dense tensors, or what fit() makes of them."""
    return (Gathered if shape.op is Op.AG_GEMM else Summed)(shape, gpu)

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


class OnGpu:
    """Those of several ranks that kernels could take as well: but for addresses all is known, so
    they cost the host no more than their parts by themselves.
    """

    def __init__(self, shape: Shape, gpu: int) -> None:
        self._op, self._is_kn, self._dtype, self._gpu = shape.op, shape.is_kn, shape.dtype, gpu
        self._code = _braid.dtype_code(str(shape.dtype).removeprefix("torch."))
        self._sum = _braid.redop_code("sum")
        is_gathered = shape.op is Op.AG_GEMM
        self._got = shape.result_rows, shape.depth if is_gathered else shape.columns
        self._count = shape.rows * shape.depth if is_gathered else self._got[0] * self._got[1]

    def run(
        self, comm: Comm, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        x, w = fit(x), fit(w)
        if self._op is Op.AG_GEMM:
            made = product(self._gathered(comm, x), w, self._is_kn)
        else:
            made = self._summed(comm, product(x, w, self._is_kn).contiguous())
        return made if bias is None else made + fit(bias)

    def _gathered(self, comm: Comm, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(*self._got)
        comm._calls.run(
            "all_gather", _braid.all_gather_on, comm._core, self._gpu, x.data_ptr(),
            out.data_ptr(), self._count, self._code, current_stream(self._gpu),
        )  # fmt: skip
        return out

    def _summed(self, comm: Comm, parts: torch.Tensor) -> torch.Tensor:
        is_cut = self._op is Op.GEMM_RS
        if parts.dtype is not self._dtype:  # the product's under autocast
            return comm.reduce_scatter(parts) if is_cut else comm.all_reduce(parts)
        out = parts.new_empty(*self._got) if is_cut else parts
        numbers = self._count, self._code, self._sum, current_stream(self._gpu)
        on = comm._core, self._gpu, parts.data_ptr(), out.data_ptr()
        if is_cut:
            comm._calls.run("reduce_scatter", _braid.reduce_scatter_on, *on, *numbers)
        else:
            comm._calls.run("all_reduce", _braid.all_reduce_on, *on, *numbers)
        return out

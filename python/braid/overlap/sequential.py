"""The way that always works: a collective of braid, and torch's product."""

import torch

from braid.comm import Comm
from braid.overlap.shapes import Op


def product(x: torch.Tensor, w: torch.Tensor, is_kn: bool) -> torch.Tensor:
    return x @ w if is_kn else x @ w.t()


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

"""torch's reduce operators in braid's words.

braid sums, multiplies, averages and compares integers and floats. What torch has besides:
  bool          as bytes 0 and 1: sum and max are "or", product and min are "and"
  complex       sum and average of pairs of floats
  PREMUL_SUM    every rank scales its own part, in the tensor's type, before the sum
  BAND BOR BXOR parts are exchanged and combined here (collectives.py)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

from braid.torch.errors import Unsupported

PLAIN_OPS = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg"}
_ON_BOOL = {
    "SUM": "max",
    "MAX": "max",
    "BOR": "max",
    "PRODUCT": "min",
    "MIN": "min",
    "BAND": "min",
}
_BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
REDUCIBLE = {
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
}


@dataclass(frozen=True)
class Reduction:
    """One reduction of rows of one element type."""

    op: str
    """braid's name: sum, prod, min, max, avg; what `combine` does: band, bor, bxor."""
    factor: Any = None
    """Every rank's part is multiplied by this first: a number, a tensor of one element, or None."""
    combine: Any = None
    """Of two parts, for what braid's operators cannot do."""

    def numbers(self, elements: torch.Tensor) -> torch.Tensor:
        """The same memory as numbers that braid reduces."""
        if elements.dtype == torch.bool:
            return elements.view(torch.uint8)
        return torch.view_as_real(elements).view(-1) if elements.is_complex() else elements

    def part(self, elements: torch.Tensor) -> torch.Tensor:
        """This rank's part as numbers: scaled in a copy, else the row's own memory."""
        if self.factor is None:
            return self.numbers(elements)
        factor = self.factor
        if isinstance(factor, torch.Tensor):
            factor = factor.to(device=elements.device, dtype=elements.dtype)
        return self.numbers(elements * factor)


def reduction_of(function: str, op: Any, dtype: torch.dtype) -> Reduction:
    """What `op` (a ReduceOp) means for elements of `dtype`. Unsupported says what to do."""
    whole = ReduceOp(op) if isinstance(op, ReduceOp.RedOpType) else op
    kind, factor = whole.__getstate__()  # the only way from Python to PREMUL_SUM's factor
    name = str(kind.name)
    if dtype == torch.bool:
        if name in _ON_BOOL:
            return Reduction(_ON_BOOL[name])
        if name == "BXOR":
            return Reduction("bxor", combine=torch.bitwise_xor)
    elif dtype.is_complex and dtype != torch.complex32:
        if name in ("SUM", "AVG", "PREMUL_SUM"):
            return Reduction(PLAIN_OPS.get(name, "sum"), factor)
    elif dtype in REDUCIBLE:
        if name in PLAIN_OPS:
            return Reduction(PLAIN_OPS[name])
        # torch has no product of float8.
        if name == "PREMUL_SUM" and dtype.is_floating_point and dtype.itemsize > 1:
            return Reduction("sum", factor)
        if name in _BITWISE and not dtype.is_floating_point:
            return Reduction(name.lower(), combine=_BITWISE[name])
    raise Unsupported(
        f"{function}: asked for {name} of {dtype}, which braid cannot reduce; convert the tensor to"
        " a type and operator that have it (docs/torch.md lists them)"
    )

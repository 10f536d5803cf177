"""A case between CPUs: an operation with its buffers, its data and the result that it must have.

Data is position dependent, so that a wrong offset shows, and made of small integers, so that
every order of summation gives the same bits and `wrong` can mean bytes. The pattern's period is a
prime number of elements, which no cell, slot or block size divides.

Sizes are those of nccl-tests, `total_bytes`: the buffer for all_reduce and broadcast, the sum over
ranks for the others. On GPUs they are asked for otherwise: see braid.cases.gpu.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from braid.plan.formulas.collectives import PER_RANK
from braid.sizes import format_size

if TYPE_CHECKING:
    import braid

DTYPES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_BLOCK_OPS = (*PER_RANK, "all_to_all")  # bytes are the sum over ranks
_PERIOD = 1048573
_STALE = 0xA5  # what receive buffers hold before a checked call

Array = NDArray[Any]


def pattern(rank: int, count: int, dtype: np.dtype[Any], redop: str = "sum") -> Array:
    """Rank's data: integers from -4 to 3, or 1 and 2 for products."""
    index = np.arange(_PERIOD, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(rank * 7919)
    digits = ((index >> np.uint64(13)) & np.uint64(7)).astype(np.int8)
    period = (digits & 1) + 1 if redop == "prod" else digits - 4
    return np.resize(period.astype(dtype), count)


def _unit(op: str, dtype: np.dtype[Any], ranks: int) -> int:
    """Bytes of one element of every block."""
    return dtype.itemsize * (ranks if op in _BLOCK_OPS else 1)


def measured_bytes(op: str, total_bytes: int, dtype: str, ranks: int) -> int:
    """What a case has that is asked for so many bytes: whole elements, one at the least."""
    unit = _unit(op, np.dtype(dtype), ranks)
    return max(1, total_bytes // unit) * unit


@dataclass(frozen=True)
class Case:
    """One operation at one size on this rank."""

    op: str
    count: int
    """Elements of one block for all_gather, reduce_scatter and all_to_all; of the buffer for the
    others.
    """
    dtype: np.dtype[Any]
    redop: str
    rank: int
    ranks: int
    asked_root: int | None = None
    """Broadcast's root, if one was asked for."""

    @classmethod
    def of(
        cls,
        op: str,
        total_bytes: int,
        dtype: str,
        redop: str,
        comm: "braid.Comm",
        root: int | None = None,
    ) -> "Case":
        """The case whose size comes nearest to `total_bytes` from below, one element at least."""
        kind = np.dtype(dtype)
        unit = _unit(op, kind, comm.size)
        return cls(op, max(1, total_bytes // unit), kind, redop, comm.rank, comm.size, root)

    @property
    def name(self) -> str:
        """For people: the operation and its size."""
        return f"{self.op} {format_size(self.total_bytes)}"

    @property
    def total_bytes(self) -> int:
        """The size as nccl-tests counts it."""
        parts = self.ranks if self.op in _BLOCK_OPS else 1
        return self.count * self.dtype.itemsize * parts

    @property
    def root(self) -> int:
        """Broadcast's root; if none was asked for the last rank, so that rank 0, which reports, is
        one that receives.
        """
        return self.ranks - 1 if self.asked_root is None else self.asked_root

    def data(self, rank: int) -> Array:
        """What `rank` sends."""
        parts = self.ranks if self.op in ("reduce_scatter", "all_to_all") else 1
        return pattern(rank, self.count * parts, self.dtype, self.redop)

    def expected(self) -> Array:
        """What this rank must have afterwards."""
        if self.op == "broadcast":
            return self.data(self.root)
        block = slice(self.rank * self.count, (self.rank + 1) * self.count)
        if self.op in ("all_gather", "all_to_all"):
            mine = slice(None) if self.op == "all_gather" else block
            return self._side_by_side(mine)
        return self._reduced(slice(None) if self.op == "all_reduce" else block)

    def _side_by_side(self, mine: slice) -> Array:
        """That part of every rank's data. One rank's at a time is in memory."""
        whole = np.empty(self.count * self.ranks, dtype=self.dtype)
        for r, row in enumerate(whole.reshape(self.ranks, self.count)):
            row[:] = self.data(r)[mine]
        return whole

    def _reduced(self, mine: slice) -> Array:
        """The numbers contract on data whose sums are exact: order does not matter here."""
        combine = _COMBINE[self.redop]
        total = self.data(0)[mine].copy()
        for r in range(1, self.ranks):
            combine(total, self.data(r)[mine], out=total)
        return _divide(total, self.ranks) if self.redop == "avg" else total


_COMBINE = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum
}  # fmt: skip


def _divide(total: Array, ranks: int) -> Array:
    """One division; integers truncate toward zero."""
    if total.dtype.kind == "f":
        wide = np.dtype(np.float64 if total.dtype.itemsize == 8 else np.float32)
        return np.asarray(np.divide(total, ranks, dtype=wide).astype(total.dtype))
    quotient = np.abs(total.astype(object)) // ranks * np.sign(total.astype(object))
    return np.asarray(quotient.astype(total.dtype))


class Buffers:
    """The memory of one case: made once, used by every contestant."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.send = case.data(case.rank)
        self.expected = case.expected()
        self.out = np.empty_like(self.expected)

    def soil(self) -> None:
        """Fills the receive buffer with bytes of no result; broadcast's root gets the data."""
        self.out.view(np.uint8)[:] = _STALE
        if self.case.op == "broadcast" and self.case.rank == self.case.root:
            self.out[:] = self.send

    def wrong_bytes(self) -> int:
        """Bytes of the receive buffer that are not what they must be."""
        return int(np.count_nonzero(self.out.view(np.uint8) != self.expected.view(np.uint8)))

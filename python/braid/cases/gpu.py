"""A case on GPUs: an operation, a size, a type, and whether a graph holds the calls.

Sizes are those of the rank's own part, as torch's calls take it: what a rank sends (all_gather),
its result (reduce_scatter), its buffer (the others). nccl-tests prints size x ranks for the first
two: `total_bytes` is that number, `own_bytes` the former. Bandwidths are made of total_bytes.
"""

from dataclasses import dataclass

from braid.cases.operations import OPS, busbw_factor
from braid.plan.formulas.collectives import PER_RANK
from braid.sizes import format_size

DTYPES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
MODES = ("eager", "graph")
CONVENTION = (
    "bytes per rank: what it sends (all_gather), its result (reduce_scatter), its buffer (others)"
)
_ALIGNMENT = 16  # of blocks: what every library's fast path takes


@dataclass(frozen=True)
class GpuCase:
    """One operation at one size on `ranks` GPUs."""

    op: str
    count: int
    """Elements of the rank's own part."""
    dtype: str
    ranks: int
    mode: str = "eager"
    asked_root: int | None = None
    """Broadcast's root, if one was asked for."""

    @classmethod
    def of(
        cls,
        op: str,
        own_bytes: int,
        dtype: str,
        ranks: int,
        mode: str = "eager",
        root: int | None = None,
    ) -> "GpuCase":
        """The case whose size comes nearest to `own_bytes` from below, made of whole aligned
        blocks; one block at the least.
        """
        if op not in OPS or mode not in MODES:
            raise ValueError(f"no such case: {op}, {mode}")
        unit = _ALIGNMENT // DTYPES[dtype] * (ranks if op == "all_to_all" else 1)
        count = max(own_bytes // DTYPES[dtype] // unit, 1) * unit
        return cls(op, count, dtype, ranks, mode, root)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype]

    @property
    def name(self) -> str:
        """For people: the operation, and the rank's own part."""
        return f"{self.op} {format_size(self.own_bytes)}"

    @property
    def own_bytes(self) -> int:
        """The size of the rank's own part."""
        return self.count * self.itemsize

    @property
    def total_bytes(self) -> int:
        """The size as nccl-tests counts it."""
        return self.own_bytes * (self.ranks if self.op in PER_RANK else 1)

    @property
    def send_count(self) -> int:
        """Elements that a rank hands in; 0 for broadcast, which has one buffer."""
        if self.op == "broadcast":
            return 0
        return self.count * (self.ranks if self.op == "reduce_scatter" else 1)

    @property
    def out_count(self) -> int:
        """Elements that a rank gets."""
        return self.count * (self.ranks if self.op == "all_gather" else 1)

    @property
    def root(self) -> int:
        """Broadcast's root; if none was asked for the last rank, so that rank 0, which reports, is
        one that receives.
        """
        return self.ranks - 1 if self.asked_root is None else self.asked_root

    def busbw_gbps(self, time_us: float) -> float:
        """Bus bandwidth as nccl-tests defines it."""
        return self.total_bytes / time_us / 1e3 * busbw_factor(self.op, self.ranks)


@dataclass(frozen=True)
class Segment:
    """A stretch of a result: `count` elements from `start` on, which are those of a source (a
    rank's data, or the sum over ranks) from `source_start` on.
    """

    start: int
    count: int
    source: int
    source_start: int


_FLOATS = {"bfloat16": (8, 127), "float16": (11, 15), "float32": (24, 127), "float64": (53, 1023)}
"""Bits of a significand, and the largest exponent."""


def growth(case: GpuCase, calls: int) -> int | None:
    """Of a sum that was made in place so many times: what it is of a sum made once, where the type
    holds all of it exactly in every order of adding; None where rounding or overflow would decide.
    Integers wrap. The data's numbers are below 8 in size: braid.cases.host.pattern.
    """
    factor: int = case.ranks ** (calls - 1)
    if case.dtype not in _FLOATS:
        return factor
    bits, exponent = _FLOATS[case.dtype]
    first = 8 * case.ranks
    is_power = case.ranks & (case.ranks - 1) == 0
    if first * factor <= 1 << bits or (
        is_power and first * case.ranks <= 2 << bits and first * factor < 1 << exponent
    ):
        return factor
    return None


SUM = -1  # the source that is the sum over ranks


def expected(case: GpuCase, rank: int) -> list[Segment]:
    """What `rank` must have afterwards."""
    n, whole = case.ranks, case.count
    if case.op == "all_gather":
        return [Segment(r * whole, whole, r, 0) for r in range(n)]
    if case.op == "broadcast":
        return [Segment(0, whole, case.root, 0)]
    if case.op == "all_to_all":
        part = whole // n
        return [Segment(r * part, part, r, rank * part) for r in range(n)]
    if case.op == "reduce_scatter":
        return [Segment(0, whole, SUM, rank * whole)]
    return [Segment(0, whole, SUM, 0)]


def pieces(segment: Segment, period: int) -> list[tuple[int, int, int]]:
    """(start, source place within the period, count) of the parts of a segment that do not cross
    a period's end.
    """
    found = []
    done = 0
    while done < segment.count:
        place = (segment.source_start + done) % period
        count = min(period - place, segment.count - done)
        found.append((segment.start + done, place, count))
        done += count
    return found

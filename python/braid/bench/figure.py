"""One figure of a suite: what is required, what was reached."""

from dataclasses import dataclass

from braid.ratio import Interval
from braid.record.gpu import GpuRecord, GpuResult

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """One figure on one number of GPUs."""

    work: str
    ranks: int
    required: str
    reached: str
    is_reached: bool | None
    """None: not measured; `reached` says why."""
    ratio: float | None = None
    """Of somebody else's time to braid's, where the figure is one: above 1 braid is faster."""
    span: Interval | None = None
    """Where that ratio lies with 95 % confidence."""


def find(record: GpuRecord, op: str, nbytes: int, mode: str) -> GpuResult | None:
    """The case whose size is the asked one, up to the rounding to whole blocks."""
    for result in record.results:
        if (result.op, result.mode) == (op, mode) and 0 <= nbytes - result.bytes < 0.02 * nbytes:
            return result
    return None


def row(
    work: str, ranks: int, required: str, value: float | None, text: str, is_reached: bool,
    ratio: float | None = None, span: Interval | None = None,
) -> Row:  # fmt: skip
    """A figure; without a value `text` says why there is none."""
    if value is None:
        return Row(work, ranks, required, f"{NOT_MEASURED}: {text}", None)
    return Row(work, ranks, required, text, is_reached, ratio, span)

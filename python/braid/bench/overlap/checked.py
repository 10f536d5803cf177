"""Contestants that were compared with float64, and what a record says of each."""

import math

from braid.record.probe import Series, times_of

MOST_ERROR = 4e-3
_ONE_ROUNDING = 1.7e-3
"""Of random numbers rounded to bf16 once."""
WARM = 3
"""Calls of each before it is timed."""


def most_error_of_a_ring(ranks: int) -> float:
    """What a sum may have that is rounded at every rank of a ring, as NCCL's: the parts, each
    rounded, then n - 1 sums, of which the k-th has k / n of the last one's squares. A quarter more.
    """
    return max(MOST_ERROR, 1.25 * _ONE_ROUNDING * math.sqrt((ranks + 1) / 2 + 1))


def series_of(
    group: str, name: str, nbytes: int, flops: float, error: float, samples: list[float],
    said: str = "", most_error: float = MOST_ERROR,
) -> Series:  # fmt: skip
    """`said` comes behind the error, of which there may be less than `most_error`."""
    is_right = error < most_error
    note = f"error {error:.2e} of float64{said}"
    if not samples:
        return Series(group, name, 0, None, None, note=note)
    times = times_of(samples)
    note += f"; {flops / times.p50_us / 1e6:.0f} TFLOP/s"
    return Series(
        group, name, nbytes, times, None,
        verdict="ok" if is_right else "wrong data", wrong_bytes=0 if is_right else 1, note=note,
    )  # fmt: skip

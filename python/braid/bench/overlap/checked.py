"""Contestants that were compared with float64, and what a record says of each."""

from braid.record.probe import Series, times_of

MOST_ERROR = 4e-3
WARM = 3
"""Calls of each before it is timed."""


def series_of(
    group: str, name: str, nbytes: int, flops: float, error: float, samples: list[float],
    said: str = "",
) -> Series:  # fmt: skip
    """`said` comes behind the error."""
    is_right = error < MOST_ERROR
    note = f"error {error:.2e} of float64{said}"
    if not samples:
        return Series(group, name, 0, None, None, note=note)
    times = times_of(samples)
    note += f"; {flops / times.p50_us / 1e6:.0f} TFLOP/s"
    return Series(
        group, name, nbytes, times, None,
        verdict="ok" if is_right else "wrong data", wrong_bytes=0 if is_right else 1, note=note,
    )  # fmt: skip

"""Whether samples of one thing vary more than those of a quiet machine. Pure.

A shared network, other jobs and clocks that change make times vary; their median then says less
than its digits.
"""

from collections.abc import Sequence
from statistics import fmean, stdev

MOST = 0.05
"""Standard deviation by mean (C38): above, samples are noisy."""
MARK = "~"
"""Behind the median of noisy samples."""
LEGEND = f"{MARK} noisy: the samples vary by more than {MOST:.0%} (standard deviation by mean)"


def variation(samples_us: Sequence[float]) -> float | None:
    """Standard deviation by mean; None where there is one sample, or none."""
    if len(samples_us) < 2 or not fmean(samples_us) > 0:
        return None
    return round(stdev(samples_us) / fmean(samples_us), 4)


def mark(samples_us: Sequence[float]) -> str:
    """MARK, or "" for samples that are quiet."""
    part = variation(samples_us)
    return MARK if part is not None and part > MOST else ""

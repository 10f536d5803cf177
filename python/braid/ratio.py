"""Ratios of times in words: what is slower never reads as equal, and what noise explains is neither
faster nor slower. Pure.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

EQUAL = 0.02
"""Within this part of 1 neither is called faster: as much as the suite takes for no worse."""
WIDE = 0.05
"""An interval around 1 that goes further says nothing, not even that both are equal."""
_DRAWS = 2000
_TAIL = 2.5
"""Percent of the draws on either side of an interval of 95 %."""

Interval = tuple[float, float]


def ratio_words(ratio: float) -> str:
    """Another's time by braid's, `1.32x`. Just below 1 it is cut, not rounded: 0.998x."""
    text = f"{ratio:.2f}"
    if ratio < 1 and text == "1.00":
        text = f"{math.floor(1000 * ratio) / 1000:.3f}"
    return f"{text}x"


def part_words(part: float) -> str:
    """Braid's time by another's. Just above 1: 1.003x."""
    text = f"{part:.2f}"
    if part > 1 and text == "1.00":
        text = f"{math.ceil(1000 * part) / 1000:.3f}"
    return f"{text}x"


def interval(theirs_us: Sequence[float], ours_us: Sequence[float]) -> Interval | None:
    """Where the ratio of medians lies with 95 % confidence, by bootstrap: both rows of samples are
    drawn anew, always by the same numbers. None where one has a single sample.
    """
    if min(len(theirs_us), len(ours_us)) < 2:
        return None
    return _interval(tuple(theirs_us), tuple(ours_us))


@functools.cache
def _interval(theirs_us: tuple[float, ...], ours_us: tuple[float, ...]) -> Interval:
    import numpy as np

    def medians(samples_us: tuple[float, ...], seed: int) -> Any:  # noqa: ANN401 - an array
        drawn = np.random.default_rng(seed).integers(0, len(samples_us), (_DRAWS, len(samples_us)))
        return np.median(np.array(samples_us)[drawn], axis=1)

    ratios = medians(theirs_us, 1) / medians(ours_us, 2)
    low, high = np.percentile(ratios, [_TAIL, 100 - _TAIL])
    return float(low), float(high)


def interval_words(found: Interval | None) -> str:
    """ "[1.06, 1.11]"; "" where there is none."""
    return f"[{found[0]:.2f}, {found[1]:.2f}]" if found else ""


def verdict(ratio: float, found: Interval | None = None) -> str:
    """Of another's time by braid's: equal within EQUAL, unless the interval is wide; faster or
    slower beyond it, if the interval leaves 1 out; else unclear. Without an interval the ratio
    alone decides, and whoever prints it says of how many samples it is.
    """
    if abs(ratio - 1) <= EQUAL:
        is_wide = found and (found[0] < 1 - WIDE or found[1] > 1 + WIDE)
        return "unclear" if is_wide else "equal"
    if found and found[0] <= 1 <= found[1]:
        return "unclear"
    return "faster" if ratio > 1 else "slower"

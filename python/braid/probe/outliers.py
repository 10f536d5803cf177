"""What does not fit among cases that should be alike. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from braid.record.probe import Series, Verdict

TOLERANCE = 0.03
"""Of the median. H100's published matrix has 5 cells of 56 beyond it; a good A100's has none."""


def judged(value: float, middle: float, tolerance: float = TOLERANCE) -> Verdict:
    """Bandwidth against that of its like."""
    if value < middle * (1 - tolerance):
        return "slow"
    return "fast" if value > middle * (1 + tolerance) else "ok"


def marked(series: Sequence[Series], tolerance: float = TOLERANCE) -> list[Series]:
    """The same, with a verdict for each that is alone in its group with its bandwidth. Groups of
    fewer than three have no outliers, and what went wrong keeps its verdict.
    """
    rates: dict[str, list[float]] = {}
    for one in series:
        if one.verdict == "ok" and one.gbps:
            rates.setdefault(one.group, []).append(one.gbps)
    found = []
    for one in series:
        like = rates.get(one.group, [])
        if one.verdict == "ok" and one.gbps and len(like) > 2:
            one = replace(one, verdict=judged(one.gbps, median(like), tolerance))
        found.append(one)
    return found

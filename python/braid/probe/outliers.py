"""What does not fit among cases that should be alike. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from braid.probe.record import Series, Verdict

TOLERANCE = 0.03
"""Of the median. H100's published matrix has 5 cells of 56 beyond it; a good A100's has none."""
STRAGGLER = 0.10
"""A rank that takes so much longer than the median rank holds the others up."""


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


def stragglers(by_rank_us: dict[str, float], tolerance: float = STRAGGLER) -> list[str]:
    """Ranks that are slower than the median rank, slowest first."""
    if len(by_rank_us) < 2:
        return []
    limit = median(by_rank_us.values()) * (1 + tolerance)
    late = [name for name, us in by_rank_us.items() if us > limit]
    return sorted(late, key=lambda name: -by_rank_us[name])

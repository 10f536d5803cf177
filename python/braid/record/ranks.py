"""Who holds the others up: every rank's own times of the same samples. Pure.

A rank that is last has made all others wait. Somebody always is, so it is counted how often a rank
was, and whether chance alone would do that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, lgamma, log
from statistics import median, quantiles

from braid.record.parts import RankTimes

CHANCE = 0.01
"""Of some rank being slowest so often, were all alike: below, a rank is said to be late."""
LEAST = 0.01
"""Of the median: who is last by less costs nothing worth a table."""
STRAGGLER = 0.10
"""A rank that takes so much longer than the median rank holds the others up."""


def of_samples(rows: Sequence[Sequence[float]]) -> list[RankTimes]:
    """Of every rank's times, sample by sample. In a sample that two share, nobody is slowest."""
    leads: list[list[float]] = [[] for _ in rows]
    for times in zip(*rows, strict=True):
        *_, next_us, slowest_us = (0.0, *sorted(times))
        if len(times) > 1 and slowest_us > next_us:
            leads[times.index(slowest_us)].append(slowest_us - next_us)
    return [_times_of(row, lead) for row, lead in zip(rows, leads, strict=True) if row]


def _times_of(times_us: Sequence[float], leads_us: Sequence[float]) -> RankTimes:
    """`leads_us`: how much longer than the next it took, where it was the slowest."""
    p95_us = quantiles(times_us, n=20, method="inclusive")[-1] if len(times_us) > 1 else times_us[0]
    behind_us = median(leads_us) if leads_us else 0.0
    return RankTimes(
        p50_us=round(median(times_us), 3),
        p95_us=round(p95_us, 3),
        slowest=len(leads_us),
        behind_us=round(behind_us, 3),
    )


def chance_of(times: int, samples: int, ranks: int) -> float:
    """That a given one of `ranks` (two or more, all alike) is slowest in `times` samples
    or more.
    """
    often, seldom = -log(ranks), log(1 - 1 / ranks)
    # By logarithms: of more than 1,029 samples the number of ways is more than a float has.
    whole = lgamma(samples + 1)
    return sum(
        exp(whole - lgamma(k + 1) - lgamma(samples - k + 1) + k * often + (samples - k) * seldom)
        for k in range(times, samples + 1)
    )


def late(by_rank: Mapping[str, RankTimes], samples: int) -> list[str]:
    """Who is slowest more often than chance explains, and by how much matters; worst first."""
    ranks = len(by_rank)
    if ranks < 2 or not samples:
        return []
    middle = median(one.p50_us for one in by_rank.values())
    found = [
        name
        for name, one in by_rank.items()
        if one.behind_us >= LEAST * middle
        and ranks * chance_of(min(one.slowest, samples), samples, ranks) < CHANCE
    ]
    return sorted(found, key=lambda name: -by_rank[name].slowest)


def divided(by_rank: Mapping[str, RankTimes], by: float) -> dict[str, RankTimes]:
    """Times of one of `by` things that were done in a row."""
    return {
        name: replace(
            one,
            p50_us=round(one.p50_us / by, 3),
            p95_us=round(one.p95_us / by, 3),
            behind_us=round(one.behind_us / by, 3),
        )
        for name, one in by_rank.items()
    }


def named(by_rank: Sequence[RankTimes]) -> dict[str, RankTimes]:
    """Those of a record of collectives, by name."""
    return {f"rank {i}": one for i, one in enumerate(by_rank)}


def stragglers(by_rank_us: dict[str, float], tolerance: float = STRAGGLER) -> list[str]:
    """Ranks that are slower than the median rank, slowest first."""
    if len(by_rank_us) < 2:
        return []
    limit = median(by_rank_us.values()) * (1 + tolerance)
    late = [name for name, us in by_rank_us.items() if us > limit]
    return sorted(late, key=lambda name: -by_rank_us[name])

"""What a result says: braid's ratio to NCCL as it comes, to NCCL at its best, and to the best of
all others. Above 1 braid is faster.
"""

from dataclasses import dataclass

from braid.bench.contestant import MSCCLPP
from braid.record.gpu import GpuResult, Run

BRAID, NCCL = "braid", "nccl"


@dataclass(frozen=True)
class Verdict:
    """Ratios of medians; None where somebody was absent or wrong."""

    to_nccl: float | None
    to_nccl_best: float | None
    nccl_best: str
    """Who NCCL at its best was here; its default counts too."""
    to_others: float | None
    """Against the fastest of NCCL and torch's symmetric memory."""
    fastest_other: str
    to_mscclpp: float | None


def _fastest(result: GpuResult, families: tuple[str, ...]) -> Run | None:
    runs = [run for run in result.runs if run.family in families and not run.wrong]
    return min(runs, key=lambda run: run.median_us, default=None)


def _ratio(ours: Run | None, theirs: Run | None) -> float | None:
    if ours is None or theirs is None or ours.wrong or theirs.wrong:
        return None
    return theirs.median_us / ours.median_us


def judge(result: GpuResult) -> Verdict:
    """Braid, on registered results and as it plans, against the others."""
    ours = result.run_of(BRAID)
    best = _fastest(result, ("nccl", "nccl-best"))
    other = _fastest(result, ("nccl", "nccl-best", "symm"))
    return Verdict(
        to_nccl=_ratio(ours, result.run_of(NCCL)),
        to_nccl_best=_ratio(ours, best),
        nccl_best=best.who if best else "",
        to_others=_ratio(ours, other),
        fastest_other=other.who if other else "",
        to_mscclpp=_ratio(ours, result.run_of(MSCCLPP)),
    )


def wrong_bytes(results: list[GpuResult]) -> int:
    """Of everybody."""
    return sum(run.wrong for result in results for run in result.runs)

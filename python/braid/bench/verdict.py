"""What a result says: braid's ratio to NCCL as it comes, to NCCL at its best, and to the best of
all others. Above 1 braid is faster.
"""

from dataclasses import dataclass, field

from braid.bench.contestant import MSCCLPP
from braid.ratio import Interval, interval, verdict
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
    runs: dict[str, tuple[Run, Run]] = field(default_factory=dict)
    """Braid's and the other's, by the name of their ratio."""

    def words(self, name: str) -> str:
        """Of a ratio: faster, equal, slower or unclear; "" where there is none."""
        ratio = self.ratio(name)
        return "" if ratio is None else verdict(ratio, self.span(name))

    def span(self, name: str) -> Interval | None:
        """Where a ratio lies with 95 % confidence; None: not known. Reckoned when it is asked for:
        it takes milliseconds.
        """
        return span_of(*self.runs[name]) if name in self.runs else None

    def ratio(self, name: str) -> float | None:
        """By name: "to_nccl"."""
        found: float | None = getattr(self, name)
        return found


def _fastest(result: GpuResult, families: tuple[str, ...]) -> Run | None:
    runs = [run for run in result.runs if run.family in families and not run.wrong]
    return min(runs, key=lambda run: run.median_us, default=None)


def _ratio(ours: Run | None, theirs: Run | None) -> float | None:
    if ours is None or theirs is None or ours.wrong or theirs.wrong:
        return None
    return theirs.median_us / ours.median_us


def span_of(ours: Run | None, theirs: Run | None) -> Interval | None:
    """Of the ratio of their time to ours."""
    if ours is None or theirs is None:
        return None
    return interval(theirs.samples_us, ours.samples_us)


def judge(result: GpuResult) -> Verdict:
    """Braid, on registered results and as it plans, against the others."""
    ours = result.run_of(BRAID)
    best = _fastest(result, ("nccl", "nccl-best"))
    other = _fastest(result, ("nccl", "nccl-best", "symm"))
    beside = {
        "to_nccl": result.run_of(NCCL),
        "to_nccl_best": best,
        "to_others": other,
        "to_mscclpp": result.run_of(MSCCLPP),
    }
    ratios = {name: _ratio(ours, run) for name, run in beside.items()}
    return Verdict(
        **ratios,
        nccl_best=best.who if best else "",
        fastest_other=other.who if other else "",
        runs={name: (ours, run) for name, run in beside.items() if ours and run and ratios[name]},
    )


def wrong_bytes(results: list[GpuResult]) -> int:
    """Of everybody."""
    return sum(run.wrong for result in results for run in result.runs)

"""The figures of this tool: predictions of sizes that were left out."""

from pathlib import Path

import pytest

from braid.plan import records, trial
from braid.plan.wrong import PlanError

RECORDS = Path(__file__).parents[3] / "records"
H200 = [RECORDS / "gpu_large_2.json", RECORDS / "gpu_small_2.json"]


def curves(who="nccl", ops=("all_reduce", "all_gather")):
    found = [c for path in H200 for c in records.curves(records.load(path), who, path.name)]
    return [curve for curve in found if curve.op in ops]


def test_half_of_nccl_s_sizes_predict_the_other_half():
    answer = trial.left_out(curves(), 1, "nccl")
    assert len(answer.rows) >= 12
    assert answer.value("median_error") <= 0.05
    assert answer.value("worst_error") <= 0.15


def test_the_other_half_is_harder_and_stays_within_bounds():
    """Sizes are four or more times apart, and NCCL changes its protocol between two of them."""
    answer = trial.left_out(curves(), 2, "nccl")
    assert answer.value("median_error") <= 0.08
    assert answer.value("worst_error") <= 0.16


def test_published_figures_agree():
    answer, misses = trial.published("")
    assert misses == 0
    assert not answer.warnings
    assert answer.value("figures") == len(answer.rows) > 300


def test_one_figure_may_be_asked_for():
    answer, _ = trial.published("f17")
    assert {row.name for row in answer.rows} == {"F17"}


def test_refused():
    with pytest.raises(PlanError, match="'F99' is no published figure"):
        trial.published("F99")
    with pytest.raises(PlanError, match="it is 1 or 2"):
        trial.left_out(curves(), 3, "nccl")
    with pytest.raises(PlanError, match="three sizes"):
        trial.left_out([], 1, "nccl")

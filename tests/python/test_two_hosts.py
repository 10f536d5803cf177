"""Two hosts over three shaped rails, small: the full measurement is tests/two_hosts/measure.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "two_hosts"))

import measure
import rails


@pytest.mark.skipif(rails.why_not() is not None, reason=f"skipped: {rails.why_not()}")
def test_rails_slow_down_are_cut_and_come_back() -> None:
    """No error and no wrong element throughout; shares follow what happens to the rails."""
    record = measure.measure(4 << 20, window=3, calls=6, tune_time="3s")
    assert record["wrong"] == 0
    before, lost, back = record["verdict"]["share_of_cut_rail_before_after_back"]
    assert before > 0.15
    assert lost == 0
    assert back > 0
    slowed = record["slowed"]["after"]["shares"]
    assert slowed[2] < record["together"]["shares"][2]
    assert record["verdict"]["together_of_sum_alone"] > 0.5  # a loaded machine may be slow

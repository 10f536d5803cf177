"""Two hosts over three shaped rails and no other network: a rail is cut under load and restored.

The share that is reached is `braid bench engine --hosts`'; here nothing may be lost. The control
connection runs on the rail that is cut.
"""

import pytest

from braid.bench.engine import network
from braid.bench.engine.hosts import Plan, measure

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(network.why_not() is not None, reason=f"skipped: {network.why_not()}"),
]


@pytest.mark.parametrize("end", [network.SOURCE, network.TARGET], ids=["source", "target"])
def test_a_rail_is_cut_under_load_and_restored(end: int) -> None:
    """No page is lost, torn or counted twice, and the rail carries again."""
    outcome = measure(Plan(steady_s=1.0, cut_s=2.0, restored_s=3.0, end=end))
    assert outcome.troubles == []
    assert outcome.wrong_bytes == 0
    assert outcome.miscounted == 0
    assert outcome.counted_twice == 0
    assert outcome.transfers > 0
    assert outcome.stats["rails_fenced"] > 0, "the cut was not felt, so nothing was tried"
    assert outcome.stats["peers_lost"] == 0
    assert outcome.share["cut"] > 0, "the other rails carried nothing while one was cut"
    rail = next(line for line in outcome.health if "'target'" in line).split("; ")[1]
    assert "rail0 up" in rail

"""A few ranks killed at random; hundreds by scripts/kill_ranks."""

import kill_ranks
import pytest


@pytest.mark.parametrize("lane", sorted(kill_ranks.LANES))
def test_killed_ranks_hang_nobody(lane):
    tally = kill_ranks.Tally()
    for seed in range(4):
        kill_ranks.trial(lane, 1000 + seed, tally)
    assert not tally.failures, tally.failures
    assert tally.trials == 4
    assert sum(tally.ends.values()) >= 4

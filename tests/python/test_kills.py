"""A few ranks killed at random; hundreds by scripts/kill_ranks."""

import kill_ranks
import pytest


@pytest.mark.parametrize("lane", sorted(kill_ranks.LANES))
def test_killed_ranks_hang_nobody(lane):
    tally = kill_ranks.Tally(lane)
    for seed in range(4):
        tally.trials.append(kill_ranks.lose_ranks(lane, 1000 + seed))
    assert not tally.failures, tally.failures
    assert sum(tally.ends.values()) >= 4


def test_a_record_keeps_every_trial():
    tally = kill_ranks.Tally("shm")
    tally.trials.append(
        kill_ranks.Trial(7, 3, [1], ["PeerLost", "nothing"], 0.25, ["rank 2 is there"])
    )
    run = tally.as_run(1.0)
    assert run["failed"] == 1
    assert run["survivors"] == {"PeerLost": 1, "nothing": 1}
    assert run["slowest_s"] == 0.25
    assert run["trials"][0]["killed"] == [1]

"""Kinds that make calls, with players that only remember."""

import pytest
from gpu_fakes import Alone
from probe_fakes import FakePlayer

from braid.probe import call_kinds
from braid.probe.call_kinds import Team
from braid.probe.effort import Effort
from braid.probe.job import Runner
from braid.probe.player import Call
from braid.probe.worker import HostWorker
from braid.record.probe import Series, times_of
from braid.terminal.reporter import Reporter

CALL = Call("all_reduce", 1 << 20, "float32")


def run(jobs, stop=lambda: False):
    runner = Runner(Effort(3, 2.0, 1, stop), Reporter())
    runner.run(jobs, lambda: None)
    return runner.series


def timed(group, case, us, gbps=None):
    return Series(group, case, 1, times_of([us]), gbps)


def test_one_call_against_many():
    player = FakePlayer()
    one, many = run(call_kinds.latency(Team(Alone(2)), [player], CALL, 16))
    assert (one.group, many.group) == ("1 x 1 MiB", "16 x 64 KiB")
    assert {call.total_bytes for call in player.ran} == {1 << 20, 1 << 16}
    assert one.bytes == many.bytes == 1 << 20
    assert one.by_rank_us.keys() == one.by_rank.keys() == {"rank 0", "rank 1"}
    assert one.by_rank["rank 1"].p50_us == one.by_rank_us["rank 1"] == one.times.p50_us
    found = call_kinds.gain([timed("a", "braid", 1, 300.0), timed("b", "braid", 1, 100.0)])
    assert found == {"braid: one call by many": 3.0}


def test_nccls_rate_on_the_wire():
    players = [FakePlayer("braid"), FakePlayer("nccl")]
    series = run(call_kinds.latency(Team(Alone(8)), players, CALL, 2))
    parts = {one.case: one.wire_gbps / one.gbps for one in series}
    assert parts == pytest.approx({"braid": 1.75, "nccl": 1.125}, rel=0.01)


def test_a_trace_is_played_in_order():
    gather = Call("all_gather", 64, "float32")
    player, other = FakePlayer(), FakePlayer("gloo", wrong=2)
    series = run(call_kinds.replay(Team(Alone(2)), [player, other], [CALL, gather, CALL]))
    assert player.ran[:3] == [CALL, gather, CALL]
    assert [one.group for one in series[:3]] == [
        "whole trace, 3 calls",
        "all_reduce 1 MiB float32, 2 in the trace",
        "all_gather 64 B float32, 1 in the trace",
    ]
    assert series[3].wrong_bytes == 4
    assert len(call_kinds.to_first(series)) == 3
    ratio = call_kinds.to_first([timed("x", "braid", 2.0), timed("x", "gloo", 5.0)])
    assert ratio == {"x: gloo by braid": 2.5}


def test_overlap():
    series = run(call_kinds.overlap(Team(Alone(1)), [FakePlayer()], CALL, HostWorker(16)))
    assert [one.group for one in series] == ["call alone", "work alone", "both"]
    assert series[1].gbps is None
    told = [timed("call alone", "b", 10.0), timed("work alone", "b", 8.0), timed("both", "b", 12.0)]
    assert call_kinds.hidden(told) == {
        "b: part hidden": 0.75,
        "b: effective communication time, us": 4.0,
    }


def test_what_a_call_raises_comes_back():
    def call():
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        HostWorker(4).beside(call, 1)


def test_stopped_before_the_first_sample():
    jobs = call_kinds.latency(Team(Alone(2)), [FakePlayer()], CALL, 4)
    assert run(jobs, stop=lambda: True) == []

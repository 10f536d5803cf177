"""Lanes, fake and real: what is timed together, beside others, in pieces, in children."""

import os
import time
from functools import partial
from typing import ClassVar

import pytest
from probe_fakes import FakeLane

from braid.probe import child, lane_kinds, pairs, twin
from braid.probe.effort import Effort
from braid.probe.job import Runner, lanes_together
from braid.probe.lane import Busy, together_us
from braid.probe.memory_lane import MemoryLane
from braid.record.probe import Series, times_of
from braid.terminal.reporter import Reporter

SETTINGS = pairs.Settings(1 << 16, 3, 20.0)


def run(jobs, samples=3, stop=lambda: False):
    """All series of some jobs."""
    saved = []
    runner = Runner(Effort(samples, 5.0, 1, stop), Reporter())
    runner.run(jobs, lambda: saved.append(len(runner.series)))
    runner.saved = saved
    return runner


def test_the_slowest_lane_counts():
    lanes = [FakeLane("a", 10.0), FakeLane("b", 40.0)]
    (one,) = run([lanes_together("both", "ab", lanes, 1000)]).series
    assert one.times.p50_us == 40
    assert one.gbps == 2 * 1000 / 40 / 1e3
    assert one.by_rank_us == {"a": 10.0, "b": 40.0}
    assert [times.slowest for times in one.by_rank.values()] == [0, 3]
    assert one.by_rank["b"].behind_us == 30.0


def test_wrong_bytes_are_a_verdict():
    (one,) = run([lanes_together("one way", "a", [FakeLane("a", wrong=3)], 8)]).series
    assert (one.verdict, one.wrong_bytes) == ("wrong data", 3)


def test_others_are_asked_for_more_until_they_last():
    other = FakeLane("other", over_below=30)
    assert Busy([other]).sample_us(FakeLane("a", 5.0), 4) == 5
    assert other.started == [8, 16, 32]
    with pytest.raises(RuntimeError, match="however much"):
        Busy([FakeLane("never", over_below=1 << 40)]).sample_us(FakeLane("a"), 1)


def test_a_lane_that_cannot_be_kept_busy_is_a_line():
    lanes = [FakeLane("a"), FakeLane("b", over_below=1 << 60)]
    series = run(lane_kinds.interference(lanes, 64)).series
    assert series[0].verdict == "unsupported"
    assert "however much" in series[0].note
    assert lane_kinds.kept(series) == {"b beside a": 1.0}


def test_interference_has_every_pair_and_all_others():
    lanes = [FakeLane(name) for name in "abc"]
    series = run(lane_kinds.interference(lanes, 64)).series
    assert len(series) == 2 * (3 * 2 + 3)
    assert "a beside all others" in lane_kinds.kept(series)


def test_host_has_each_gpu_and_all_at_once():
    ways = [
        lane_kinds.Ways(f"gpu{i}", FakeLane("d"), FakeLane("h")) for i in range(2)
    ]  # fmt: skip
    series = run(lane_kinds.host(ways, [1 << 10, 1 << 20])).series
    assert len(series) == 2 * (2 * 3 + 3)
    assert series[0].group == "d2h 1 KiB"
    assert [one.case for one in series if one.group == "all both 1 MiB"] == ["2 at once"]


def test_engine_says_what_pages_cost():
    lane = MemoryLane("d2h thread0")
    runner = run(lane_kinds.engine([lane], [1 << 12], 1 << 18))
    assert [one.group for one in runner.series] == ["one piece", "pages of 4 KiB"]
    assert len(lane_kinds.page_cost(runner.series)) == 1
    assert not any(one.wrong_bytes for one in runner.series)


@pytest.mark.parametrize(("nbytes", "slots"), [(1, 1), (4096, 1), (1000, 33)])
def test_memory_is_really_copied(nbytes, slots):
    lane = MemoryLane("a", seed=3)
    lane.resize(nbytes, slots)
    assert lane.wrong_bytes() == 0
    lane._target[slots // 2, 0] ^= 1
    assert (lane._target != lane._source[lane._order]).sum() == 1
    assert together_us([lane, MemoryLane("b")], 3)[0] > 0


def test_stopping_keeps_what_was_measured():
    stops = iter([False, False, False, True, True])
    jobs = [lanes_together("one way", name, [FakeLane(name)], 8) for name in "ab"]
    runner = run(jobs, samples=3, stop=lambda: next(stops))
    assert [one.case for one in runner.series] == ["a"]
    assert runner.stopped == "interrupted in case 1 of 2"
    assert runner.saved == [1]


def test_nothing_is_said_of_a_case_without_samples():
    jobs = [lanes_together("one way", "a", [FakeLane("a")], 8)]
    assert run(jobs, stop=lambda: True).series == []


# --- pairs in children ---------------------------------------------------------------------------


def fine(a, b, settings, budget_s):
    there, back = FakeLane(f"gpu{a}>gpu{b}"), FakeLane(f"gpu{b}>gpu{a}", 20.0)
    return pairs.measure(there, back, settings, budget_s)


def hang(_a, _b, _settings, _budget_s):
    time.sleep(60)


def crash(_a, _b, _settings, _budget_s):
    os._exit(9)


def fail(_a, _b, _settings, _budget_s):
    raise RuntimeError("peer access\nis broken")


def test_every_pair_both_directions():
    series = run(pairs.jobs(3, SETTINGS, fine)).series
    assert len(series) == 3 * 5
    one_way = {(one.start, one.end): one.gbps for one in series if one.group == "one way"}
    assert len(one_way) == 6
    assert one_way["gpu0", "gpu1"] == 2 * one_way["gpu1", "gpu0"]
    assert all(one.gbps is None for one in series if one.group == "latency")


@pytest.mark.parametrize(
    ("probe", "timeout_s", "verdict", "said"),
    [
        (hang, 0.3, "hang", "within 0.3 s"),
        (crash, 20.0, "failed", "code 9"),
        (fail, 20.0, "failed", "RuntimeError: peer access is broken"),
    ],
)
def test_a_pair_that_does_not_come_back(probe, timeout_s, verdict, said):
    began = time.monotonic()
    series = run(pairs.jobs(2, pairs.Settings(64, 3, timeout_s), probe)).series
    assert [(one.start, one.end) for one in series] == [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    assert {one.verdict for one in series} == {verdict}
    assert said in series[0].note
    assert time.monotonic() - began < 20


def test_the_child_is_another_process():
    assert child.run(os.getpid, (), 20.0).value != os.getpid()


def prepared(folder, a, b):
    (folder / f"{a}{b}").touch()
    time.sleep(0.5)
    if (a, b) == (1, 2):
        raise RuntimeError("no context")


def as_many_as_prepared(folder, a, b, _settings, _budget_s):
    count = len(list(folder.iterdir()))
    return [Series("one way", f"{a}{b}", 8, times_of([1.0]), float(count), start="x", end="y")]


def test_pairs_make_ready_together_and_are_measured_one_by_one(tmp_path):
    """All of a few are ready before the first is measured; one that cannot be is a verdict."""
    probe, prepare = partial(as_many_as_prepared, tmp_path), partial(prepared, tmp_path)
    jobs = pairs.jobs(4, pairs.Settings(64, 3, 20.0), probe, prepare=prepare)
    began = time.monotonic()
    series = run(jobs).series
    assert time.monotonic() - began < 0.5 * len(jobs)  # not one after the other
    assert [one.gbps for one in series if one.case in ("01", "02", "03")] == [4.0] * 3
    assert [one.gbps for one in series if one.case in ("13", "23")] == [6.0] * 2
    assert ["no context" in one.note for one in series if one.verdict == "failed"] == [True] * 2


def one_hangs_while_it_prepares(a, _b):
    time.sleep(60 if a == 0 else 0)


def test_pairs_that_do_not_get_ready_had_the_whole_time(tmp_path):
    """Three of them, side by side; the others are measured."""
    probe = partial(as_many_as_prepared, tmp_path)
    settings = pairs.Settings(64, 3, 1.0)
    began = time.monotonic()
    series = run(pairs.jobs(4, settings, probe, prepare=one_hangs_while_it_prepares)).series
    assert time.monotonic() - began < 10
    assert {one.note for one in series if one.verdict == "hang"} == {"nothing came back within 1 s"}
    assert [one.verdict for one in series].count("hang") == 2 * 3
    assert [one.verdict for one in series].count("ok") == 3


class TimedChild:
    """A pair as it was on H200, in a clock of its own: 15 s for six of them one after the other.
    Half of what opening two GPUs lasts is the driver's, which opens one after the other.
    """

    OPEN_S, DRIVER_S, MEASURE_S = 1.0, 1.0, 0.5
    clock_s = driver_free_s = 0.0
    runs: ClassVar[list[tuple[float, float]]] = []
    opens: ClassVar[list[tuple[float, float]]] = []

    def __init__(self, *_):
        begin_s = TimedChild.clock_s
        TimedChild.driver_free_s = max(TimedChild.driver_free_s, begin_s) + self.DRIVER_S
        self.ready_s = TimedChild.driver_free_s + self.OPEN_S
        self.opens.append((begin_s, self.ready_s))

    def make_ready(self, *_):
        TimedChild.clock_s = max(TimedChild.clock_s, self.ready_s)
        return child.Outcome("ok")

    def run(self, *_):
        begin_s = TimedChild.clock_s
        TimedChild.clock_s += self.MEASURE_S
        self.runs.append((begin_s, TimedChild.clock_s))
        return child.Outcome("ok", [])


@pytest.mark.parametrize(("at_once", "is_soon_enough"), [(pairs.AT_ONCE, True), (1, False)])
def test_eight_gpus_take_less_than_a_minute(monkeypatch, at_once, is_soon_enough):
    """28 pairs, and while one is measured no other is at work."""
    fake = TimedChild
    fake.clock_s = fake.driver_free_s = 0.0
    fake.runs, fake.opens = [], []
    monkeypatch.setattr(child, "Child", fake)
    monkeypatch.setattr(pairs, "AT_ONCE", at_once)
    run(pairs.jobs(8, SETTINGS, pairs.gpu_pair, prepare=pairs.open_gpus))
    assert len(fake.runs) == len(fake.opens) == 28
    assert (fake.clock_s < 60) is is_soon_enough
    every = sorted([*fake.runs, *fake.opens])
    for begin_s, end_s in fake.runs:
        assert [one for one in every if one[0] < end_s and one[1] > begin_s] == [(begin_s, end_s)]


def test_a_child_that_nobody_asks_for_ends():
    made = child.Child(os.getpid)
    assert made.make_ready(time.monotonic() + 20, 20.0).verdict == "ok"
    made.close()
    assert not made._process.is_alive()


# --- braid's links -------------------------------------------------------------------------------


def test_a_pair_over_a_link():
    series = twin.pair_over("shm", 0, 1, SETTINGS, 1.0)
    assert [one.group for one in series] == [
        "shm one way", "shm one way", "shm both ways", "shm latency", "shm latency",
    ]  # fmt: skip
    assert not any(one.wrong_bytes for one in series)
    assert series[0].start == "rank0"
    assert "RANK" not in os.environ


def test_links_beside_each_other():
    with twin.lanes([twin.Way("shm", 0), twin.Way("staged", 0)], (0, 1)) as lanes:
        series = run(lane_kinds.interference(lanes, 1 << 16)).series
    assert len(series) == 4
    assert len(lane_kinds.kept(series)) == 2


def test_a_link_copies_one_buffer():
    with twin.lanes([twin.Way("shm", 1)], (0, 1)) as (lane,):
        assert (lane.start_name, lane.end_name) == ("rank1", "rank0")
        with pytest.raises(ValueError, match="one buffer"):
            lane.resize(8, 2)

"""Measuring a block with a clock that is told: what is run in which order, what is predicted."""

import pytest
from gpu_fakes import Alone
from probe_fakes import FakePlayer

from braid.plan.curve import Curve
from braid.plan.parallel.block import ATTENTION, MLP, Shape
from braid.probe import block_kind
from braid.probe.block import Block
from braid.probe.call_kinds import Team
from braid.probe.effort import Effort
from braid.probe.job import Runner
from braid.probe.player import Call
from braid.record.probe import Series, times_of
from braid.terminal.reporter import Reporter

CALL = Call("all_reduce", 1 << 20, "bfloat16")
SHAPE = Shape(1, 1, 1, 1, 1, 1)
US = {"norm": 1, "qkv": 20, "attention": 30, "out": 10, "up": 60, "activation": 5, "down": 40}


class ToldTeam(Team):
    """A clock that moves by what is done."""

    now = 0.0

    def timed_us(self, do):
        start = self.now
        do()
        return self.now - start


class ToldBlock(Block):
    """Parts take US, and every wait 7 us."""

    def __init__(self, team, layers):
        super().__init__(SHAPE, layers)
        self.team, self.ran = team, []

    def run(self, part, layer):
        self.team.now += US[part]
        self.ran.append((part, layer))


class ToldPlayer(FakePlayer):
    """A call takes 10 us and 1 us for every 8 KiB."""

    def __init__(self, team, log, name="braid"):
        super().__init__(name)
        self.team, self.log = team, log

    def run(self, call):
        super().run(call)
        self.team.now += 10 + call.total_bytes / 8192
        self.log.append(("call", call.total_bytes))

    def wait(self):
        pass


def measured(layers=2, names=("braid",), stop=lambda: False):
    team = ToldTeam(Alone(2))
    block = ToldBlock(team, layers)
    players = [ToldPlayer(team, block.ran, name) for name in names]
    runner = Runner(Effort(3, 2.0, 1, stop), Reporter())
    runner.run(block_kind.jobs(team, players, block, CALL), lambda: None)
    return runner.series, block


def test_times_are_those_of_one_part_one_call_one_block():
    series, _ = measured(layers=3)
    found = {(one.group, one.case): one.times.p50_us for one in series}
    for part, us in US.items():
        assert found[part, "compute"] == pytest.approx(us)
    assert found["all_reduce 256 KiB", "braid"] == pytest.approx(42)
    assert found["all_reduce at its size", "braid"] == pytest.approx(138)
    assert found["block", "braid"] == pytest.approx(sum(US.values()) + 1 + 2 * 138)


def test_the_block_calls_after_attention_and_after_the_mlp():
    _, block = measured(layers=2)
    last = block.ran[-2 * 10 :]
    wanted = []
    for layer in (0, 1):
        for parts in (ATTENTION, MLP):
            wanted += [*((part, layer) for part in parts), ("call", CALL.total_bytes)]
    assert last == wanted


def test_prediction_does_not_use_the_size_itself():
    series, _ = measured(names=("braid", "nccl"))
    forecast = block_kind.Forecast(2, CALL)
    figures = forecast.figures(series)
    assert figures["compute, us"] == pytest.approx(sum(US.values()) + 1)
    for who in ("braid", "nccl"):
        one = figures[f"{who}: one all_reduce predicted, us"]
        assert one == pytest.approx(138, rel=0.03)
        assert one != pytest.approx(138, rel=1e-4)  # 0.5 and 2 MiB were its points
        assert figures[f"{who}: block predicted, us"] == pytest.approx(167 + 2 * one, abs=0.01)
        error = figures[f"{who}: block predicted, us"] / figures[f"{who}: block measured, us"] - 1
        assert figures[f"{who}: error"] == pytest.approx(error, abs=1e-3)
    assert block_kind.errors(figures).keys() == {"braid", "nccl"}
    without = [one for one in series if one.group != "all_reduce at its size"]
    assert forecast.figures(without) == figures


def test_records_come_first_where_they_have_the_size():
    series, _ = measured()
    near = Curve.of("all_reduce", 2, [(1 << 20, 500.0)], "measured", "r.json")
    far = Curve.of("all_reduce", 2, [(1 << 30, 500.0)], "measured", "r.json")
    told = block_kind.Forecast(2, CALL, {"braid": [near]})
    assert told.figures(series)["braid: one all_reduce predicted, us"] == 500.0
    own = block_kind.Forecast(2, CALL, {"braid": [far]})
    assert own.from_records_us("braid") is None
    assert own.figures(series) == block_kind.Forecast(2, CALL).figures(series)


def test_nothing_is_predicted_of_a_run_that_was_stopped():
    series = [Series("norm", "compute", 0, times_of([1.0]), None)]
    assert block_kind.Forecast(2, CALL).figures(series) == {}
    whole, _ = measured()
    early = [one for one in whole if one.group != "block"]
    assert block_kind.errors(block_kind.Forecast(2, CALL).figures(early)) == {}


def test_sizes_around():
    sizes = [call.total_bytes for call in block_kind.around(CALL)]
    assert sizes == [1 << 18, 1 << 19, 1 << 21, 1 << 22]
    assert all(
        call.total_bytes % 16 == 0 for call in block_kind.around(Call("all_reduce", 1000, "x"))
    )

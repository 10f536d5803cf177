"""Layouts of a training step: all of them, each legal, each step the sum of its parts."""

import math
from itertools import product

import pytest

from braid.plan import hardware, layouts, models, network, ranking
from braid.plan.predict import Request, predict
from braid.plan.wrong import PlanError

H200 = hardware.find("h200-nvlink4")
NICS = network.find("ib-ndr-8x400")


def job(**changes):
    asked = {"model": models.find("llama3-8b"), "hardware": H200, "gpus": 8, "nodes": 1,
             "network": None, "sequence": 4096, "batch": 64}  # fmt: skip
    return layouts.Job(**{**asked, **changes})


@pytest.mark.parametrize(
    ("gpus", "nodes", "batch"), [(1, 1, 1), (8, 1, 64), (8, 4, 64), (4, 3, 36)]
)
def test_every_division_once(gpus, nodes, batch):
    asked = job(gpus=gpus, nodes=nodes, batch=batch, network=NICS)
    heads, layers, ranks = asked.model.heads, asked.model.layers, gpus * nodes
    every = {
        (tp, pp, dp)
        for tp, pp, dp in product(range(1, ranks + 1), repeat=3)
        if tp * pp * dp == ranks and heads % tp == 0 and pp <= layers and batch % dp == 0
    }
    found = [(one.tp, one.pp, one.dp) for one in layouts.layouts(asked)]
    assert set(found) == every
    assert len(found) == len(every)


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_step_is_the_sum_of_its_parts(nodes):
    asked = job(nodes=nodes, network=NICS if nodes > 1 else None)
    found = layouts.by_layout(asked, 100)
    work = 6 * asked.model.active_parameters * 4096 * 64 / (8 * nodes)
    for row, strip in zip(found.report.rows, found.strips, strict=True):
        cells = {name: cell.value for name, cell in row.cells.items()}
        assert all(math.isfinite(value) and value >= 0 for value in cells.values())
        assert cells["computation"] == pytest.approx(work / (H200.peak_tflops * 1e12 * 0.5))
        parts = cells["computation"] + cells["waiting"] + cells["communication"]
        assert cells["step"] == pytest.approx(parts)
        assert strip.end_s == pytest.approx(cells["step"])
        tp, pp, dp = (int(word[2:]) for word in row.name.split())
        slots = 64 // dp + pp - 1
        assert cells["waiting"] == pytest.approx(cells["computation"] * (pp - 1) / (64 // dp))
        assert slots >= pp
        assert (cells["TP"] == 0) is (tp == 1)
        assert (cells["PP"] == 0) is (pp == 1)
        assert (cells["DP"] == 0) is (dp == 1)
        need = asked.model.parameters / tp / pp * (6 + 12 / dp)
        assert cells["memory"] == pytest.approx(need)
        assert bool(row.note) is (need > H200.memory_gb * 1e9)


QWEN = models.find("qwen3-235b-a22b")


def test_experts_are_divided_over_a_stage_s_gpus():
    asked = job(model=QWEN, nodes=2, network=NICS)
    every = {
        (tp, pp, dp, ep)
        for tp, pp, dp in product((1, 2, 4, 8, 16), repeat=3)
        if tp * pp * dp == 16
        for ep in range(1, 17)
        if tp * dp % ep == 0 and QWEN.experts.count % ep == 0
    }
    found = layouts.layouts(asked)
    assert {(one.tp, one.pp, one.dp, one.ep) for one in found} == every
    assert len(found) == len(every)
    assert {one.ep for one in layouts.layouts(job())} == {1}
    names = {one.name for one in found}
    assert {"TP2 PP1 DP8", "TP2 PP1 DP8 EP16"} <= names


def test_what_dividing_experts_changes():
    """Counted by hand for one layout: 4 exchanges and 2 sums less per sparse layer."""
    asked = job(model=QWEN, nodes=2, network=NICS, batch=32)
    rows = {row.name: row for row in layouts.by_layout(asked, 1000).report.rows}
    whole, cut = rows["TP4 PP1 DP4"].cells, rows["TP4 PP1 DP4 EP8"].cells
    assert cut["TP"].value == pytest.approx(whole["TP"].value / 2)  # every layer has experts
    assert whole["EP"].value == 0
    routed = 4096 * 8 * QWEN.hidden * 2 / 4
    one = predict(Request("all_to_all", routed, 8), H200.paths[0]).time_us.value
    assert cut["EP"].value == pytest.approx(4 * QWEN.layers * (32 // 4) * one / 1e6)
    experts = QWEN.layers * 128 * QWEN.expert_parameters
    dense = QWEN.parameters - experts
    need = dense / 4 * (6 + 12 / 4) + experts / 8 * (6 + 12 / 2)
    assert cut["memory"].value == pytest.approx(need)
    parts = ("computation", "waiting", "communication")
    assert cut["step"].value == pytest.approx(sum(cut[name].value for name in parts))


def test_gradients_of_experts_go_to_those_who_have_them():
    """8 x 2 GPUs, EP 8: each expert is in both nodes, all else on all GPUs."""
    asked = job(model=QWEN, nodes=2, network=NICS, batch=32)
    rows = {row.name: row for row in layouts.by_layout(asked, 1000).report.rows}
    experts = QWEN.layers * 128 * QWEN.expert_parameters
    nic = network.given(400, "gpu")

    def us(nbytes, ranks, nodes):
        return predict(Request("all_reduce", nbytes, ranks, nodes), H200.paths[0], nic).time_us

    dense, own = us(2 * (QWEN.parameters - experts), 8, 2), us(2 * experts / 8, 1, 2)
    both = (dense.value + own.value) / 1e6
    assert rows["TP1 PP1 DP16 EP8"].cells["DP"].value == pytest.approx(both)
    once = us(2 * (QWEN.parameters - experts), 8, 2).value / 1e6
    assert rows["TP1 PP1 DP16 EP16"].cells["DP"].value == pytest.approx(once)


def test_what_fits_comes_first_and_is_sorted():
    asked = job(model=models.find("llama3-70b"), nodes=2, network=NICS)
    rows = layouts.by_layout(asked, 100).report.rows
    keys = [(bool(row.note), row.cells["step"].value) for row in rows]
    assert keys == sorted(keys)
    assert {bool(row.note) for row in rows} == {True, False}
    few = layouts.by_layout(asked, 3)
    assert few.report.rows == rows[:3]
    assert len(few.strips) == 3


def test_where_nothing_fits_one_warning_says_what_is_needed():
    answer = layouts.by_layout(job(model=models.find("llama3-70b"), gpus=4), 100).report
    assert answer.warnings == [
        "no layout fits in 141 GB per GPU: TP1 PP4 DP1 needs the least, 317.5 GB without"
        " activations; ordered by memory"
    ]
    assert not any(row.note for row in answer.rows)
    needed = [row.cells["memory"].value for row in answer.rows]
    assert needed == sorted(needed)
    assert not layouts.by_layout(job(), 100).report.warnings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 9}, "--gpus 9: h200-nvlink4 has 8 per node"),
        ({"gpus": 0}, "--gpus: asked for 0"),
        ({"nodes": 4097}, "--nodes: asked for 4097, it must be from 1 to 4,096"),
        ({"sequence": 0}, "--seq: asked for 0"),
        ({"batch": -1}, "--batch: asked for -1"),
        ({"mfu": 1.5}, "--mfu: asked for 1.5"),
    ],
)
def test_refused(change, said):
    with pytest.raises(PlanError, match=said):
        layouts.by_layout(job(**change), 5)


def test_hardware_by_its_pass():
    found = ranking.by_hardware(models.find("llama3-8b"), 8, 4096, [], 0.5)
    rows = found.report.rows
    times = [row.cells["pass"].value for row in rows]
    assert times == sorted(times)
    assert {row.name for row in rows} == {
        name for name in hardware.names() if hardware.find(name).gpus_per_node >= 8
    }
    for row, strip in zip(rows, found.strips, strict=True):
        cells = {name: cell.value for name, cell in row.cells.items()}
        assert cells["pass"] == pytest.approx(cells["computation"] + cells["communication"])
        assert cells["comm. part"] == pytest.approx(cells["communication"] / cells["pass"])
        assert cells["by the best"] == pytest.approx(cells["pass"] / times[0])
        assert strip.label == row.name
    with pytest.raises(PlanError, match="none of these machines has as many"):
        ranking.by_hardware(models.find("llama3-8b"), 16, 1, ["h200-nvlink4"], 0.5)

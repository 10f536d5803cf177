"""Rankings: best first, and what does not fit last."""

import pytest

from braid.plan import hardware, layouts, models, network, ranking
from braid.plan.basis import Basis
from braid.plan.wrong import PlanError

LLAMA = models.find("llama3-70b")


def job(**changes):
    asked = {
        "model": LLAMA,
        "hardware": hardware.find("h200-nvlink4"),
        "gpus": 8,
        "nodes": 4,
        "network": network.find("ib-ndr-8x400"),
        "sequence": 4096,
        "batch": 64,
    }
    return layouts.Job(**{**asked, **changes})


def test_hardware_is_ranked_by_the_whole_pass():
    found = ranking.by_hardware(LLAMA, 8, 4096, [], 0.5)
    times = [row.cells["pass"].value for row in found.report.rows]
    assert times == sorted(times)
    assert found.report.rows[0].cells["by the best"].value == 1
    assert [strip.label for strip in found.strips] == [row.name for row in found.report.rows]
    for row, strip in zip(found.report.rows, found.strips, strict=True):
        assert strip.end_s == pytest.approx(row.cells["pass"].value)


def test_heads_that_do_not_divide_are_said_once():
    found = ranking.by_hardware(models.find("llama3-8b"), 3, 1024, [], 0.5).report
    assert found.warnings == ["32 heads do not divide over 3 GPUs: engines refuse this"]
    assert ranking.by_hardware(LLAMA, 8, 4096, [], 0.5).report.warnings == []


def test_measured_hardware_says_so():
    found = ranking.by_hardware(LLAMA, 8, 4096, ["a100-nvlink3", "h100-nvlink4"], 0.5)
    basis = {row.name: row.cells["communication"].basis for row in found.report.rows}
    assert basis == {"a100-nvlink3": Basis.MEASURED, "h100-nvlink4": Basis.ASSUMED}


def test_machines_of_one_s_own_stand_beside_names():
    from dataclasses import replace

    own = replace(hardware.find("h100-nvlink4"), name="mine.json", peak_tflops=2000.0)
    small = replace(own, name="small.json", gpus_per_node=4)
    found = ranking.by_hardware(LLAMA, 8, 4096, ["h100-nvlink4", own, small], 0.5).report
    assert [row.name for row in found.rows] == ["mine.json", "h100-nvlink4"]
    assert found.notes == ["fewer than 8 GPUs in a node, left out: small.json (4 GPUs)"]


def test_too_few_gpus():
    with pytest.raises(PlanError, match="--tp 16: none"):
        ranking.by_hardware(LLAMA, 16, 4096, [], 0.5)


def test_layouts_use_every_gpu_once():
    found = layouts.layouts(job())
    assert all(each.tp * each.pp * each.dp == 32 for each in found)
    assert len(set(found)) == len(found)
    assert layouts.Layout(8, 1, 4) in found


def test_layouts_respect_heads_layers_and_batch():
    found = layouts.layouts(job(batch=6))
    assert {each.dp for each in found} == {1, 2}  # 6 sequences do not divide by 4
    few_heads = layouts.layouts(job(model=models.find("gpt3-175b")))
    assert max(each.tp for each in few_heads) == 32


def test_what_does_not_fit_comes_last():
    rows = layouts.by_layout(job(), 100).report.rows
    fits = [not row.note for row in rows]
    assert fits == sorted(fits, reverse=True)
    assert all((row.cells["memory"].value <= 141e9) is not bool(row.note) for row in rows)
    assert "TP1 PP1 DP32" in [row.name for row in rows if row.note]


def test_steps_add_up():
    for row in layouts.by_layout(job(), 100).report.rows:
        parts = ("computation", "waiting", "communication")
        total = sum(row.cells[name].value for name in parts)
        assert row.cells["step"].value == pytest.approx(total)


def test_tensor_parallelism_over_a_slow_network_costs_more():
    slow = network.given(100, "node")
    rows = {row.name: row for row in layouts.by_layout(job(network=slow), 100).report.rows}
    inside, outside = rows["TP8 PP1 DP4"].cells["TP"].value, rows["TP16 PP1 DP2"].cells["TP"].value
    assert outside > 5 * inside


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, "--gpus: asked for 0"),
        ({"gpus": 16}, "has 8 per node"),
        ({"batch": -1}, "--batch: asked for -1"),
        ({"mfu": 0}, "--mfu"),
        ({"model": models.find("llama3-8b"), "batch": 1, "nodes": 256}, "no layout"),
        ({"network": None}, "--nic-per"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        layouts.by_layout(job(**changes), 10)

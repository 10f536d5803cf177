"""DDP, ZeRO and FSDP: volumes exact, times from the right rate, overlap, verdicts."""

import pytest

from braid.plan import hardware, models, network
from braid.plan.basis import Basis
from braid.plan.parallel.data import ddp
from braid.plan.parallel.machines import Machines, Work
from braid.plan.parallel.sharded import fsdp, zero
from braid.plan.wrong import PlanError


def machines(name="a100-nvlink3", gpus=8, nodes=1, nics=None, algorithm="auto"):
    node = hardware.find(name)
    return Machines(node, node.path("auto"), gpus, nodes, nics, algorithm)


TWO_B = Work(2e9, 2048, 16, recompute=True)


def test_ddp_on_one_node():
    answer = ddp(machines(), TWO_B)
    assert answer.value("gradients_bytes") == 8e9
    assert answer.value("wire_bytes") == pytest.approx(14e9)
    assert answer.value("rough_s") == pytest.approx(0.0533, rel=0.005)
    assert answer.value("least_s") == pytest.approx(0.0467, rel=0.005)
    assert answer.value("compute_s") == pytest.approx(0.4201, rel=0.005)
    assert answer.value("exposed_s") == 0
    assert not answer.warnings


def test_ddp_buckets_take_the_measured_time_of_their_size():
    answer = ddp(machines(), TWO_B, bucket_bytes=4 << 20)
    assert answer.value("communication_s") == pytest.approx(0.1936, rel=0.005)
    lines = {line.name: line.quantity.basis for line in answer.lines}
    assert lines["communication_s"] is Basis.MEASURED


def test_ddp_over_nodes_is_told_who_has_the_nic():
    weak = Work(2e9, compute_s=0.42)
    node = ddp(machines(nodes=4, nics=network.given(200, "node")), weak)
    gpu = ddp(machines(nodes=4, nics=network.given(200, "gpu")), weak)
    assert node.value("rough_s") == pytest.approx(0.64)
    assert node.value("least_s") == pytest.approx(0.48, rel=0.005)
    assert gpu.value("least_s") == pytest.approx(0.06, rel=0.005)
    assert node.warnings == ["communication takes longer than computation: the links decide"]
    assert not gpu.warnings


def test_more_nodes_with_the_same_batch_leave_less_work():
    four = ddp(machines(nodes=4, nics=network.given(200, "node")), TWO_B)
    assert four.value("compute_s") == pytest.approx(0.105, rel=0.005)


def test_zero_stages():
    answer = zero(machines(), Work(10e9))
    volumes = {row.name: row.cells["volume"].value for row in answer.rows}
    assert volumes == {"ZeRO-0": 40e9, "ZeRO-1": 40e9, "ZeRO-2": 40e9, "ZeRO-3": 60e9}


def test_zero_needs_the_link_more_than_ddp_does():
    """C10: the same step on PCIe is exposed for longer with stage 3 than with DDP."""
    for name in ("a100-nvlink3", "a100-pcie4"):
        rows = {r.name: r.cells for r in zero(machines(name), Work(10e9, compute_s=0.15)).rows}
        assert rows["ZeRO-3"]["likely"].value > 1.4 * rows["ZeRO-0"]["likely"].value
    assert rows["ZeRO-3"]["exposed"].value > 1


@pytest.mark.parametrize(
    ("algorithm", "least_s", "likely_s"),
    [("ring", 0.0778, 0.09736), ("tree", 0.1, 0.12511), ("sharp", 0.05, 0.07145)],
)
def test_zero_0_is_one_all_reduce_of_the_algorithm(algorithm, least_s, likely_s):
    nics = network.choose("ib-ndr-8x400", 0.0, "")
    where = machines("h200-nvlink4", 8, 4, nics, algorithm)
    rows = zero(where, Work(10e9)).rows
    first = rows[0].cells
    assert first["likely"].value == pytest.approx(likely_s, rel=1e-3)
    assert first["at specified rate"].value == pytest.approx(least_s, rel=1e-3)
    assert first["likely"].value == where.time("all_reduce", 20e9).time_us.value / 1e6
    for row in rows:
        assert row.cells["likely"].value >= row.cells["at specified rate"].value


def test_fsdp_layer_and_step():
    answer = fsdp(machines("h200-nvlink4"), models.find("llama3-70b"), Work(70e9))
    assert answer.value("layer_bytes") == pytest.approx(1632 << 20, rel=0.001)
    assert answer.value("shard_bytes") == pytest.approx(204 << 20, rel=0.001)
    assert answer.value("step_bytes") == pytest.approx(423e9, rel=0.005)
    assert answer.value("communication_s") > answer.value("least_s")


@pytest.mark.parametrize(
    ("where", "work", "message"),
    [
        ({"gpus": 0}, TWO_B, "--gpus: asked for 0"),
        ({"gpus": 9}, TWO_B, "has 8 per node"),
        ({"nodes": 0}, TWO_B, "--nodes: asked for 0"),
        ({}, Work(-2e9), "parameters: asked for -2e"),
        ({}, Work(float("inf")), "parameters: asked for inf"),
        ({}, Work(2e9, -1, 16), "--seq: asked for -1"),
        ({}, Work(2e9, 2048, 16, mfu=2), "--mfu: asked for 2"),
        ({}, Work(2e9, compute_s=-1), "--compute-ms: asked for -1000,"),
    ],
)
def test_refused(where, work, message):
    with pytest.raises(PlanError, match=message):
        ddp(machines(**where), work)

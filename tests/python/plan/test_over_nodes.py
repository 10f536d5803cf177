"""Algorithms over several nodes: what each carries, what bounds it, and which one auto takes."""

import itertools

import pytest

from braid.plan import collective, hardware, network
from braid.plan.basis import Basis
from braid.plan.formulas import collectives
from braid.plan.predict import Request, predict
from braid.plan.wrong import PlanError

GIB = 1 << 30
H200 = hardware.find("h200-nvlink4").paths[0]
A100 = hardware.find("a100-nvlink3").paths[0]
NICS = network.find("ib-ndr-8x400")
EVERY = list(collectives.NODE_WAYS)


def found(algorithm, op="all_reduce", nbytes=4 * GIB, gpus=8, nodes=4, path=H200, nics=NICS):
    """A prediction."""
    return predict(Request(op, nbytes, gpus, nodes), path, nics, algorithm)


@pytest.mark.parametrize("op", collectives.OVER_NODES)
@pytest.mark.parametrize("algorithm", EVERY)
def test_bytes_by_rates_are_the_least(op, algorithm):
    for gpus, nodes, nbytes in itertools.product((1, 4, 8), (2, 3, 16), (4096, GIB)):
        one = found(algorithm, op, nbytes, gpus, nodes)
        inside, outside = one.legs
        nic = NICS.per_gpu(gpus).value
        assert inside.least_us.value == pytest.approx(inside.nbytes / 450e3)
        assert outside.least_us.value == pytest.approx(outside.nbytes / nic / 1e3)
        assert one.least_us.value == max(inside.least_us.value, outside.least_us.value)
        assert one.least_us.value <= one.time_us.value <= one.most_us.value
        assert (one.time_us.basis, one.least_us.basis) == (Basis.ASSUMED, Basis.SPECIFIED)


def test_four_nodes_of_eight_in_numbers():
    """4 GiB: 7 and 0.75 GiB are published (F18), 1.125 per byte is F17."""
    legs = {name: [leg.nbytes / GIB for leg in found(name).legs] for name in EVERY}
    assert legs == {
        "ring": [7, 0.75],
        "tree": [7, 1.0],
        "direct": [1.75, 6],
        "nvls": [4.5, 1.0],
        "sharp": [4.5, 0.5],
    }
    steps = {name: [leg.steps for leg in found(name).legs] for name in EVERY}
    assert steps == {
        "ring": [14, 6],
        "tree": [14, 4],
        "direct": [2, 2],
        "nvls": [2, 4],
        "sharp": [2, 2],
    }


def test_the_switch_inside_is_reached_less_of():
    """NCCL plans with 0.85 of what it has of NVLink where the switch adds."""
    inside = found("nvls", gpus=8, nodes=2, nics=network.given(1e6, "gpu")).legs[0]
    assert inside.likely_us == pytest.approx(inside.nbytes / (370.8 * 0.85) / 1e3)
    ring = found("ring").legs[0]
    assert ring.likely_us == pytest.approx(ring.nbytes / (450 * 0.8) / 1e3)


def test_sharp_without_a_switch_inside_takes_the_ring_there():
    one = found("sharp", path=A100)
    assert [leg.way for leg in one.legs] == ["ring", "sharp"]
    assert one.legs[0].nbytes == 7 * GIB


def test_a_measured_topology_says_what_the_least_rests_on():
    from dataclasses import replace

    guessed = replace(H200, basis=Basis.ASSUMED)
    assert found("ring", path=guessed).least_us.basis is Basis.ASSUMED
    assert found("ring", path=guessed, gpus=1).least_us.basis is Basis.SPECIFIED


def test_left_to_choose_small_sums_take_the_tree():
    small = found("auto", nbytes=64 << 10, nodes=64)
    assert small.algorithm == "tree"
    assert small.time_us.value < found("ring", nbytes=64 << 10, nodes=64).time_us.value / 2
    assert found("auto").algorithm == "hierarchical"
    assert found("auto").time_us == found("ring").time_us
    assert found("auto", "all_gather", 64 << 10, nodes=64).algorithm == "hierarchical"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"algorithm": "nvls", "path": A100}, "nvls needs NVSwitch of generation 3"),
        ({"algorithm": "sharp", "nodes": 1}, "sharp adds in the switches between nodes"),
        ({"algorithm": "sharp", "nics": network.find("efa-v2-32x100")}, "needs InfiniBand"),
        ({"algorithm": "tree", "op": "all_to_all"}, "planned for all_reduce, all_gather"),
        ({"algorithm": "tree", "nics": None}, "several nodes need the NICs' rate"),
    ],
)
def test_refused(asked, said):
    with pytest.raises(PlanError, match=said):
        found(**asked)


def test_a_row_for_each_says_both_halves():
    request = Request("all_gather", GIB, 8, 4)
    ways = collective.algorithms_for(request, H200, NICS)
    assert ways == ["auto", "ring", "tree", "direct", "nvls", "sharp"]
    efa = network.find("efa-v2-32x100")
    assert "sharp" not in collective.algorithms_for(request, H200, efa)
    assert "nvls" not in collective.algorithms_for(request, A100, NICS)
    rows = {row.name: row.cells for row in collective.report(request, H200, NICS, ways).rows}
    tree = rows["tree"]
    assert tree["NIC"].value == 0.75 * GIB / 8
    assert (tree["NIC"].basis, tree["NIC least"].basis) == (Basis.EXACT, Basis.SPECIFIED)
    assert tree["NIC steps"].value == 2
    assert tree["likely"].origin.startswith("ring inside, tree between nodes")
    assert rows["sharp"]["inside"].value == GIB


@pytest.mark.parametrize("asked", ["auto", "ring"])
def test_all_to_all_goes_between_all_pairs(asked):
    answer = found(asked, "all_to_all")
    assert answer.algorithm == "direct"
    assert [leg.way for leg in answer.legs] == ["direct", "direct"]
    assert answer.time_us.origin.startswith("direct inside, direct between nodes;")
    assert answer.legs[1].nbytes == 4 * GIB * 3 / 4


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_send_goes_through_one_nic(gpus):
    """Whoever else is on the nodes; as pipelines reckon with."""
    one = found("auto", "send", GIB, gpus, 2)
    inside, outside = one.legs
    assert (one.algorithm, inside.nbytes, inside.steps, outside.nbytes) == ("direct", 0, 0, GIB)
    assert one.least_us.value == pytest.approx(GIB / NICS.per_gpu(gpus).value / 1e3)
    assert "one GPU to another, through a NIC" in one.time_us.origin
    assert "ring" not in one.time_us.origin

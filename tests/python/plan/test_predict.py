"""Which source a prediction takes, and what it must not claim."""

import pathlib
from dataclasses import replace
from math import log

import pytest

from braid.plan import hardware, network, records
from braid.plan.basis import Basis
from braid.plan.curve import Curve
from braid.plan.formulas import collectives
from braid.plan.predict import Request, carry_factor, predict
from braid.plan.wrong import PlanError

RECORDS = pathlib.Path(__file__).parents[3] / "records"
MIB = 1 << 20
A100 = hardware.find("a100-nvlink3").paths[0]
H200 = hardware.find("h200-nvlink4").paths[0]
H100 = hardware.find("h100-nvlink4").paths[0]
MI300 = hardware.find("mi300x-xgmi").paths[0]


def test_a_measured_size_is_given_back():
    found = predict(Request("all_reduce", 64 * MIB, 8), A100)
    assert (found.time_us.value, found.time_us.basis) == (684.6, Basis.MEASURED)
    assert found.busbw_gbps == pytest.approx(171.54, rel=0.0013)


def test_the_nearest_rank_count_comes_first():
    assert predict(Request("all_reduce", 64 * MIB, 4), A100).time_us.value == 603


def test_other_ranks_are_carried_over_and_say_so():
    found = predict(Request("all_reduce", 2 * 1024 * MIB, 4), A100).time_us
    assert found.basis is Basis.ASSUMED
    assert "8 ranks" in found.origin
    assert found.value == pytest.approx(16240 * 1.5 / 1.75)


def test_where_the_switch_adds_its_bytes_carry_over():
    """H200, 4 GiB, 4 to 7 GPUs: published bus bandwidths against the curve of 8."""
    eight = next(c for c in H200.curves if (c.op, c.ranks) == ("all_reduce", 8))
    for ranks, busbw in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0)):
        us = eight.time_us(4096 * MIB) * carry_factor(eight, ranks)
        found = collectives.busbw_gbps("all_reduce", ranks, 4096 * MIB, us)
        assert found == pytest.approx(busbw, rel=0.025)


@pytest.mark.parametrize(
    ("file", "ranks", "mib"),
    [("curve_2.json", 2, 32), ("curve_4.json", 4, 16), ("curve_4.json", 4, 32)],
)
def test_a_ring_over_the_links_comes_before_slower_times_of_more_ranks_with_multicast(
    file, ranks, mib
):
    """Measured on 2 and 4 H200: 35 to 52 % below what 8 with NVLS tell, carried over."""
    request = Request("all_reduce", mib * MIB, ranks)
    found = predict(request, H200)
    eight = next(c for c in H200.curves if (c.op, c.ranks) == ("all_reduce", 8))
    carried = eight.time_us(request.nbytes) * carry_factor(eight, ranks)
    ring = predict(request, H200, algorithm="ring")
    assert (found.algorithm, found.time_us.value) == ("ring", ring.time_us.value)
    assert f"8 ranks carried over: {carried:,.1f} us" in found.time_us.origin
    times = records.curves(records.load(RECORDS / file), "nccl", file)
    (measured,) = (c.time_us(request.nbytes) for c in times if c.op == "all_reduce")
    assert abs(log(found.time_us.value / measured)) < abs(log(carried / measured))


def test_times_of_more_ranks_with_multicast_that_no_ring_beats_are_kept():
    eight = Curve.of("all_reduce", 8, [(64 * MIB, 200.0)], "nvlink", "a record")
    path = replace(H200, curves=(replace(eight, is_multicast=True),))
    found = predict(Request("all_reduce", 64 * MIB, 7), path)
    assert found.algorithm == "measured"
    assert found.time_us.value == pytest.approx(200 * (8 / 7) / (9 / 8))
    assert "8 ranks, carried over" in found.time_us.origin
    assert "ring over the links: " in found.time_us.origin


def test_a_ring_of_more_ranks_is_carried_over_whatever_the_links_promise():
    """They promise more than libraries reach; on the A100 a ring over them reads as faster."""
    request = Request("all_reduce", 2 * 1024 * MIB, 4)
    ring = predict(request, A100, algorithm="ring").time_us.value
    assert ring < predict(request, A100).time_us.value


def test_a_record_of_as_many_ranks_comes_first():
    own = Curve.of("all_reduce", 2, [(32 * MIB, 140.1)], "measured", "own.json")
    path = hardware.find("h200-nvlink4").with_curves([own]).paths[0]
    found = predict(Request("all_reduce", 32 * MIB, 2), path)
    assert (found.algorithm, found.time_us.value) == ("measured", 140.1)
    assert found.time_us.basis is Basis.MEASURED


def test_beyond_the_measured_sizes_is_assumed():
    found = predict(Request("all_reduce", 32 * 1024 * MIB, 8), A100).time_us
    assert found.basis is Basis.ASSUMED
    slope = collectives.bus_factor("all_reduce", 8) / 235.3 / 1e3
    assert found.value == pytest.approx(127997 + 16 * 1024 * MIB * slope, rel=0.005)


def test_without_measurements_the_links_decide():
    found = predict(Request("all_gather", 64 * MIB, 8), H100)
    assert found.time_us.basis is Basis.ASSUMED
    assert found.least_us.basis is Basis.SPECIFIED
    assert found.least_us.value == pytest.approx(64 * MIB * 7 / 8 / 450e3)
    assert found.time_us.value > found.least_us.value


@pytest.mark.parametrize("name", hardware.names())
@pytest.mark.parametrize("op", collectives.OPS)
@pytest.mark.parametrize("nbytes", [1, MIB, 1024 * MIB, 16384 * MIB])
def test_nothing_is_faster_than_the_specified_rate(name, op, nbytes):
    node = hardware.find(name)
    for ranks in range(2, node.gpus_per_node + 1):
        found = predict(Request(op, nbytes, ranks), node.paths[0])
        assert found.time_us.value >= found.least_us.value, found


def test_more_bytes_take_longer():
    times = [predict(Request("all_gather", 2**i, 8), H100).time_us.value for i in range(10, 35)]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["h200-nvlink4", "b200-nvlink5", "h100-nvlink4"])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_an_all_reduce_of_more_bytes_takes_longer_where_curves_begin_and_end(name, ranks):
    """Below and above the carried-over times the links tell: the tree there, too."""
    path = hardware.find(name).paths[0]
    times = [
        predict(Request("all_reduce", 2 ** (i / 4), ranks), path).time_us.value
        for i in range(40, 133)
    ]
    assert times == sorted(times)


def test_a_small_all_reduce_over_the_links_is_a_trees():
    found = predict(Request("all_reduce", 8 * 1024, 16), H200)
    tree = predict(Request("all_reduce", 8 * 1024, 16), H200, algorithm="tree")
    assert (found.algorithm, found.time_us) == ("tree", tree.time_us)


def test_a_small_group_on_a_mesh_has_few_links():
    two = predict(Request("all_gather", 1024 * MIB, 2), MI300)
    eight = predict(Request("all_gather", 1024 * MIB, 8), MI300)
    assert eight.busbw_gbps / two.busbw_gbps == pytest.approx(7, rel=0.05)


def test_one_link_is_one_link():
    assert MI300.specified(2).origin.endswith("; 1 link in use")
    assert MI300.specified(3).origin.endswith("; 2 links in use")


def test_the_switch_adds_for_all_reduce_only():
    ring = predict(Request("all_reduce", 1024 * MIB, 8), H100, algorithm="ring")
    nvls = predict(Request("all_reduce", 1024 * MIB, 8), H100, algorithm="nvls")
    assert ring.least_us.value / nvls.least_us.value == pytest.approx(1.556, rel=0.001)
    with pytest.raises(PlanError, match="helps all_reduce only"):
        predict(Request("all_gather", MIB, 8), H100, algorithm="nvls")
    with pytest.raises(PlanError, match="NVSwitch of generation 3"):
        predict(Request("all_reduce", MIB, 8), A100, algorithm="nvls")


def test_small_messages_like_few_steps():
    request = Request("all_reduce", 1024, 8)
    times = [
        predict(request, H100, algorithm=each).time_us.value for each in ("direct", "tree", "ring")
    ]
    assert times == sorted(times)


def test_nodes_need_a_network_with_a_scope():
    request = Request("all_reduce", 8e9, 8, 4)
    with pytest.raises(PlanError, match="--nic-per"):
        predict(request, H100)
    per_gpu = predict(request, H100, network.given(200, "gpu"))
    per_node = predict(request, H100, network.given(200, "node"))
    assert per_gpu.least_us.value == pytest.approx(0.06e6)
    assert per_node.least_us.value == pytest.approx(0.48e6)


def test_inside_and_outside_overlap_at_best():
    found = predict(Request("all_reduce", 4096 * MIB, 8, 4), H100, network.given(400, "gpu"))
    assert found.most_us is not None
    assert found.least_us.value < found.time_us.value < found.most_us.value
    assert found.least_us.value < 22050 < found.most_us.value  # measured


@pytest.mark.parametrize("path", [H100, MI300])
def test_one_gpu_per_node_uses_its_nic_alone(path):
    found = predict(Request("all_reduce", 1024 * MIB, 1, 4), path, network.given(400, "gpu"))
    assert found.least_us.value == pytest.approx(1.5 * 1024 * MIB / 50e3)


def test_one_rank_talks_to_nobody():
    found = predict(Request("all_reduce", MIB, 1), H100)
    assert (found.time_us.value, found.busbw_gbps) == (0, 0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("all_sum", MIB, 8), "'all_sum' is no operation"),
        (Request("all_reduce", 0, 8), "bytes: asked for 0"),
        (Request("all_reduce", -1, 8), "bytes: asked for -1"),
        (Request("all_reduce", float("nan"), 8), "bytes"),
        (Request("all_reduce", MIB, 0), "ranks: asked for 0"),
        (Request("all_reduce", MIB, 8, 0), "nodes: asked for 0"),
    ],
)
def test_refused(request_, message):
    with pytest.raises(PlanError, match=message):
        predict(request_, H100)


def test_unknown_algorithm():
    with pytest.raises(PlanError, match="'rings' is no algorithm"):
        predict(Request("all_reduce", MIB, 8), H100, algorithm="rings")


@pytest.mark.parametrize(
    ("name", "ranks", "way"),
    [("h100", 2, "ring"), ("h100", 3, "ring"), ("h100", 4, "nvls"), ("h100", 8, "nvls"),
     ("h800", 8, "nvls"), ("gb200", 4, "ring"), ("a100-nvlink3", 8, "ring")],
)  # fmt: skip
def test_large_all_reduces_go_as_nccl_sends_them(name, ranks, way):
    """Published: on H200 NVSwitch adds from 4 GPUs up, on B200 from 6; A100's cannot."""
    path = replace(hardware.find(name).paths[0], curves=())
    found = predict(Request("all_reduce", 4 << 30, ranks), path)
    assert found.algorithm == way
    assert bool(found.remark()) is (way == "nvls")


def test_on_b200_nvswitch_adds_from_six_gpus_up():
    path = replace(hardware.find("b200").paths[0], curves=())
    ways = [predict(Request("all_reduce", 4 << 30, n), path).algorithm for n in range(2, 9)]
    assert ways == ["ring"] * 4 + ["nvls"] * 3


def test_small_all_reduces_and_other_operations_do_not_go_through_nvls():
    path = replace(H100, curves=())
    assert predict(Request("all_reduce", 1 << 20, 8), path).algorithm == "tree"
    assert predict(Request("all_reduce", 16 << 20, 8), path).algorithm == "nvls"
    assert predict(Request("all_gather", 4 << 30, 8), path).algorithm == "ring"


def test_nvls_comes_near_the_published_480_and_says_what_is_left_without():
    found = predict(Request("all_reduce", 4 << 30, 8), replace(H100, curves=()))
    assert found.busbw_gbps == pytest.approx(480, rel=0.03)
    assert found.plain.busbw_gbps == pytest.approx(367, rel=0.01)
    (line,) = found.remark()
    assert "NCCL_NVLS_ENABLE=0 leaves the ring, 20.33 ms at 369.8 GB/s" in line


def test_a_time_that_was_measured_with_nvls_says_so():
    assert "leaves the ring" in predict(Request("all_reduce", 4 << 30, 8), H200).remark()[0]
    assert predict(Request("all_reduce", 1 << 20, 8), H200).remark() == []


def test_times_of_other_gpus_behind_the_same_links_are_lent_and_assumed():
    asked = Request("all_reduce", 4 << 30, 8)
    own, lent = predict(asked, H200).time_us, predict(asked, H100).time_us
    assert (lent.value, lent.basis) == (own.value, Basis.ASSUMED)
    assert "measured at this size on H200 SXM, NVLink 4, the same links" in lent.origin
    assert own.basis is Basis.MEASURED
    assert not any(c.lender for c in A100.curves)
    assert hardware.find("h100").path("host-staged").curves == ()


def test_over_two_nodes_nvls_goes_on_as_a_tree():
    path, nics = hardware.find("h100").paths[0], network.find("ib-ndr-8x400")
    found = predict(Request("all_reduce", 1 << 30, 8, 2), path, nics)
    assert found.algorithm == "nvls"
    assert "leaves the ring" in found.remark()[0]
    many = predict(Request("all_reduce", 1 << 30, 8, 8), path, nics)
    assert many.algorithm != "nvls"

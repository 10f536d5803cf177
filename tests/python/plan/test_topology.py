"""Saved topologies as machines."""

import pytest

from braid.plan import topology
from braid.plan.basis import Basis
from braid.plan.wrong import PlanError

GPUS = [{"name": f"GPU{i}", "model": "NVIDIA H100 80GB HBM3"} for i in range(4)]


def link(a, b, kind, gbps, **more):
    return {"a": a, "b": b, "kind": kind, "theoretical_gbps": gbps, **more}


def machine(links, gpus=GPUS):
    return topology.machine({"gpus": gpus, "links": links}, "saved")


def switched(rate=450.0, **more):
    return [link(gpu["name"], "NVSwitch", "nvlink", rate, **more) for gpu in GPUS]


def test_behind_a_switch_every_group_has_the_whole_rate():
    node = machine(switched(nccl_gbps=370.8, basis="specified"))
    path = node.path("nvlink")
    assert (path.shape, node.gpus_per_node, node.peak_tflops) == ("switched", 4, 989)
    assert path.specified(2).value == path.specified(4).value == 450
    assert path.achievable(4).value == 370.8


def test_the_slowest_gpu_decides():
    links = switched()
    links[2]["theoretical_gbps"] = 400.0
    assert machine(links).path("nvlink").rate_gbps == 400


def test_direct_links_are_a_mesh():
    links = [link(a["name"], b["name"], "xgmi", 64.0) for a in GPUS for b in GPUS if a is not b]
    path = machine(links).path("xgmi")
    assert path.specified(4).value == 192
    assert path.specified(2).value == 64


def test_measured_comes_before_specified():
    quantity = machine(switched(measured_gbps=390.0)).path("nvlink").specified(4)
    assert (quantity.value, quantity.basis) == (390, Basis.MEASURED)


def test_assumed_stays_assumed():
    assert machine(switched(basis="assumed")).path("nvlink").specified(4).basis is Basis.ASSUMED


def test_rows_of_nics_and_sockets_are_not_the_gpus():
    extra = [link("mlx5_0", "CPU", "pcie", 63.0), link("CPU", "CPU", "socket", 22.0)]
    assert [path.name for path in machine(switched() + extra).paths] == ["nvlink"]


def test_what_a_topology_does_not_tell_comes_from_our_tables():
    node = machine([], [{"name": "GPU0", "model": "NVIDIA L20"}])
    assert node.path("auto").rate_gbps == pytest.approx(31.5, rel=0.001)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"gpus": [], "links": []},
        {"gpus": GPUS},
        {"gpus": GPUS, "links": [{}]},
        {"gpus": [{"name": "GPU0", "model": "unheard of"}], "links": []},
        {"gpus": GPUS, "links": [link("GPU0", "NVSwitch", "nvlink", "fast")]},
        {"gpus": 3, "links": []},
    ],
)
def test_refused(document):
    with pytest.raises(PlanError, match="saved: "):
        topology.machine(document, "saved")

"""Saved topologies as machines."""

import pytest

from braid.plan import hardware, layouts, models, ranking, topology
from braid.plan.basis import Basis
from braid.plan.collective import algorithms_for
from braid.plan.curve import Curve
from braid.plan.predict import Request, predict
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
    found = machine(switched() + extra)
    assert [path.name for path in found.paths] == ["nvlink", "host-staged"]
    assert found.path("host-staged").rate_gbps == pytest.approx(63.02, rel=0.001)  # our table's


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


def pairwise(words, model="NVIDIA H100 NVL", each=25.0):
    """GPUs whose pairs have so many links: a row of the upper half for each GPU but the last."""
    count = len(words) + 1
    gpus = [{"name": f"GPU{i}", "model": model} for i in range(count)]
    links = []
    for i, row in enumerate(words):
        for j, number in enumerate(row, i + 1):
            if number:
                ends = (f"GPU{i}", f"GPU{j}")
                links += [link(a, b, "nvlink", number * each) for a, b in (ends, ends[::-1])]
    return topology.machine({"gpus": gpus, "links": links}, "saved")


BRIDGES = [[12, 0, 0], [0, 0], [12]]
CUBE = [
    [1, 1, 2, 2, 0, 0, 0], [2, 1, 0, 2, 0, 0], [2, 0, 0, 1, 0], [0, 0, 0, 1],
    [1, 1, 2], [2, 1], [2],
]  # fmt: skip
"""V100s as in a DGX-1: 12 of 28 pairs have no link."""


def test_bridges_between_pairs_join_two_gpus_and_no_more():
    node = pairwise(BRIDGES)
    assert node.path("auto", 2).name == "nvlink"
    assert node.path("nvlink", 2).specified(2).value == 300
    assert [node.path("auto", ranks).name for ranks in (3, 4)] == ["host-staged", "host-staged"]
    with pytest.raises(PlanError, match="no nvlink joins 4 of its GPUs for all_reduce; --path"):
        node.path("nvlink", 4)
    assert node.apart(2) == []
    assert node.apart(4) == ["nvlink joins no 4 of these GPUs: a group of them sends another way"]


def test_a_collective_over_bridges_goes_at_the_host_s_rate():
    node = pairwise(BRIDGES)
    asked = Request("all_reduce", 32 << 20, 4)
    expected = predict(asked, hardware.find("h100").path("host-staged"))
    found = predict(asked, node.path("auto", 4))
    assert found.time_us.value == expected.time_us.value == pytest.approx(2881, rel=0.001)
    with pytest.raises(PlanError, match="joins no 4 GPUs"):
        predict(asked, node.paths[0])


def test_rings_over_a_cube_that_has_no_link_between_some():
    """A ring of three links each way out of six: 150 GB/s, in 14 steps and not in 2."""
    path = pairwise(CUBE, "Tesla V100-SXM2-16GB").path("auto", 8)
    assert (path.name, path.is_mesh(8)) == ("nvlink", False)
    assert path.specified(8).value == 150
    found = predict(Request("all_reduce", 32 << 20, 8), path)
    assert found.algorithm == "ring"
    assert found.least_us.value == pytest.approx(56 * 1.048576 / 150 * 1e3)
    with pytest.raises(PlanError, match="direct needs equal links between all pairs"):
        predict(Request("all_reduce", 32 << 20, 8), path, algorithm="direct")
    assert "direct" not in algorithms_for(Request("all_reduce", 1, 8), path)


def test_an_uneven_mesh_goes_by_rings_too():
    """Four of the cube: every pair has a link, some have two; the slowest would hold direct up."""
    path = pairwise(CUBE, "Tesla V100-SXM2-16GB").path("auto", 4)
    assert (path.is_mesh(4), path.is_mesh(2)) == (False, True)
    assert path.specified(4).value == 100
    assert predict(Request("all_reduce", 32 << 20, 4), path).algorithm == "ring"


def test_an_uneven_mesh_of_all_gpus_goes_by_rings():
    path = pairwise([[1, 1, 2], [2, 1], [1]], "Tesla V100-SXM2-16GB").path("auto", 4)
    assert path.links is not None
    assert path.specified(4).value == 100
    assert predict(Request("all_reduce", 32 << 20, 4), path).algorithm == "ring"


def test_what_every_gpu_sends_to_every_other_needs_a_link_for_each_pair():
    node = pairwise(CUBE, "Tesla V100-SXM2-16GB")
    assert node.path("auto", 4, "all_to_all").name == "nvlink"
    assert node.path("auto", 8, "all_to_all").name == "host-staged"
    assert node.path("auto", 8, "all_gather").name == "nvlink"


def test_an_even_mesh_is_the_same_as_before():
    node = pairwise([[4, 4, 4], [4, 4], [4]], "NVIDIA A100-SXM4-40GB")
    path = node.path("auto", 4)
    assert (path.links, path.is_mesh(4), path.specified(4).value) == (None, True, 300)
    assert path.specified(3).value == 200


def test_switches_that_not_all_gpus_are_behind():
    links = [each for each in switched() if each["a"] != "GPU3"]
    node = machine(links)
    assert node.path("auto", 3).name == "nvlink"
    assert node.path("nvlink", 3).specified(3).value == 450
    assert node.path("auto", 4).name == "host-staged"


def test_no_path_for_a_group_is_said_in_one_line():
    node = pairwise([[4, 0, 0], [0, 0], [4]], "a card that no table has")
    with pytest.raises(PlanError, match=r"joins 4 of its GPUs .* rate of its PCIe is not known"):
        node.path("auto", 4)


def test_measured_times_belong_to_the_path_that_their_group_takes():
    curves = [Curve.of("all_reduce", ranks, [(1 << 20, 50.0)], "nccl", "rec") for ranks in (2, 4)]
    node = pairwise(BRIDGES).with_curves(curves)
    assert [curve.ranks for curve in node.path("nvlink").curves] == [2]
    assert [curve.ranks for curve in node.path("host-staged").curves] == [4]
    assert node.path("auto", 4).name == "host-staged"


def test_a_saved_switch_adds_where_nccl_has_it_add():
    path = machine(switched(nccl_gbps=370.8)).path("auto", 4)
    assert path.nvls_part == 0.85
    assert predict(Request("all_reduce", 1 << 30, 4), path).algorithm == "nvls"
    a100 = [{**gpu, "model": "NVIDIA A100-SXM4-80GB"} for gpu in GPUS]
    assert machine(switched(nccl_gbps=240.0), a100).path("nvlink").nvls_part == 0


def test_a_ranking_says_whose_links_join_no_such_group():
    found = ranking.by_hardware(models.find("llama3-8b"), 4, 4096, [pairwise(BRIDGES)], 0.5)
    assert found.report.warnings == [
        "saved: nvlink joins no 4 of these GPUs: a group of them sends another way"
    ]
    numbers = {name: cell.value for name, cell in found.report.rows[0].cells.items()}
    assert numbers["communication"] == pytest.approx(0.18441, rel=0.001)


def test_layouts_keep_tensor_parallelism_inside_pairs():
    """Groups of two neighbours have NVLink; those of GPUs further apart do not."""
    job = layouts.Job(models.find("llama3-8b"), pairwise(BRIDGES), 4, 1, None, 4096, 16)
    found = {row.name: row.cells for row in layouts.by_layout(job, 99).report.rows}
    assert found["TP2 PP1 DP2"]["TP"].value < found["TP4 PP1 DP1"]["TP"].value / 20
    assert "28% of PCIe 5" in found["TP2 PP1 DP2"]["DP"].origin

"""Machines, links and networks by name."""

import pytest

from braid.plan import catalogue, hardware, network, shipped
from braid.plan.basis import Basis
from braid.plan.wrong import PlanError


@pytest.mark.parametrize("name", hardware.names())
def test_every_machine_is_whole(name):
    node = hardware.find(name)
    assert node.paths
    assert node.peak().value > 0
    for path in node.paths:
        full = path.specified(8)
        assert full.basis is Basis.SPECIFIED
        assert 0 < path.pair_gbps <= path.rate_gbps
        assert 0 < path.achievable(8).value < full.value


@pytest.mark.parametrize("table", ["hardware", "links", "networks", "infiniband", "models"])
def test_every_row_has_a_source_with_a_date(table):
    for row in shipped.table(table).values():
        found = shipped.table("sources")[row["source"]]
        assert found["title"]
        assert found["date"]


@pytest.mark.parametrize("kind", ["curves", "steps"])
def test_every_measurement_has_a_source_and_a_machine(kind):
    for row in shipped.table("measured")[kind]:
        assert shipped.source(row["source"])
        assert row["path"] in [path.name for path in hardware.find(row["hardware"]).paths]


def test_of_gpu_knows_drivers_names():
    assert hardware.of_gpu("NVIDIA H200").name == "h200-nvlink4"
    assert hardware.of_gpu("NVIDIA A100-SXM4-80GB").name == "a100-nvlink3"
    assert hardware.of_gpu("Tesla K80") is None
    assert hardware.of_gpu("") is None


def test_unknown_names_bring_the_nearest():
    with pytest.raises(PlanError, match="did you mean h100-nvlink4"):
        hardware.find("h100-nvlink")
    with pytest.raises(PlanError, match="did you mean ib-ndr-8x400"):
        network.find("ndr-8x400")
    with pytest.raises(PlanError, match="did you mean nvlink"):
        hardware.find("a100-nvlink3").path("nvlnk")


def test_a_rate_of_nics_needs_its_scope():
    with pytest.raises(PlanError, match="of a GPU or of a node"):
        network.choose("", 200, "")
    with pytest.raises(PlanError, match="--nic-gbit: asked for 0"):
        network.choose("", 0, "gpu")
    with pytest.raises(PlanError, match="give one of them"):
        network.choose("ib-ndr-8x400", 200, "gpu")
    assert network.choose("", 0, "") is None


def test_scopes_differ_by_the_gpus_of_a_node():
    gpu, node = network.given(200, "gpu"), network.given(200, "node")
    assert (gpu.per_gpu(8).value, gpu.per_node(8).value) == (25, 200)
    assert (node.per_gpu(8).value, node.per_node(8).value) == (3.125, 25)


@pytest.mark.parametrize(
    "table", [catalogue.machines, catalogue.links, catalogue.networks, catalogue.models_table]
)
def test_tables_have_a_row_for_everything(table):
    answer = table()
    assert len(answer.rows) >= 6
    assert all(row.cells for row in answer.rows)


def test_a_given_peak_is_as_given():
    peak = hardware.find("h200-nvlink4").with_peak(700).peak()
    assert (peak.value, peak.origin) == (700, "as given")
    with pytest.raises(PlanError, match="--peak-tflops"):
        hardware.find("h200-nvlink4").with_peak(-1)


def test_the_beginning_of_a_name_is_enough_where_it_is_one_machine_s():
    assert hardware.find("H200").name == "h200-nvlink4"
    with pytest.raises(PlanError, match="'a100' is no hardware; did you mean a100-"):
        hardware.find("a100")
    with pytest.raises(PlanError, match="'h' is no hardware"):
        hardware.find("h")

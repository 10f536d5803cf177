"""Rates between two GPUs: each pair its own, with the kind of link that the topology tells."""

import json
from dataclasses import replace

import pytest

from braid.topo.document import document, to_json
from braid.topo.facts import CPU, SWITCH, Gpu, GpuLink, Machine, Path, PeerAccess, Source
from braid.topo.measured import Measured
from braid.topo.pairs import pair_rates
from braid.topo.rates import rates
from braid.topo.read import load
from braid.topo.show.html import page
from braid.topo.show.tables import pair_lines

GPUS = [Gpu(f"GPU{i}", "NVIDIA A100") for i in range(3)]
PATHS = [Path("GPU0", "GPU2", "PHB"), Path("GPU0", "GPU1", "PIX"), Path("GPU1", "GPU2", "SYS")]


def pair(a, b, gbps, how="p2p"):
    """One way from GPU `a` to GPU `b`."""
    return Measured("pair", gbps, how, f"GPU{a}", f"GPU{b}")


MEASURED = [pair(0, 1, 46.0), pair(1, 0, 47.0), pair(0, 2, 21.5), pair(2, 1, 9.0)]


@pytest.fixture
def bridged():
    """Two GPUs with a bridge of four NVLinks, a third on PCIe that one of them may not reach."""
    refused = PeerAccess("GPU1", "GPU2", "chipset not supported", "ok")
    links = [GpuLink("GPU0", "GPU1", "nvlink", 4)]
    return Machine(Source("live"), gpus=GPUS, gpu_links=links, paths=PATHS, peers=[refused])


def test_the_topology_says_what_a_pair_went_over(bridged):
    """All pairs were called NVLink."""
    found = {(x.a, x.b): (x.kind, x.word, x.measured_gbps) for x in pair_rates(bridged, MEASURED)}
    assert found == {
        ("GPU0", "GPU1"): ("nvlink", "NV4", 46.0),
        ("GPU1", "GPU0"): ("nvlink", "NV4", 47.0),
        ("GPU0", "GPU2"): ("pcie", "PHB", 21.5),
        ("GPU2", "GPU1"): ("host", "SYS", 9.0),
    }
    bare = pair_rates(replace(bridged, gpu_links=[], paths=[], peers=[]), MEASURED)
    assert {one.kind for one in bare} == {"unknown"}


def test_a_bundle_between_two_gpus_has_the_rate_of_its_pair(bridged):
    """A median of all pairs would mix NVLink and PCIe."""
    assert between(bridged) == {("GPU0", "GPU1"): 46.0, ("GPU1", "GPU0"): 47.0}
    over_pcie = {rate.a: rate.measured_gbps for rate in rates(bridged, MEASURED) if rate.b == CPU}
    assert over_pcie == {"GPU0": None, "GPU1": None, "GPU2": None}


def between(machine):
    """What was measured of links between GPUs."""
    found = rates(machine, MEASURED)
    return {(rate.a, rate.b): rate.measured_gbps for rate in found if rate.b != CPU}


def test_each_bundle_of_a_mesh_has_its_own_rate(bridged):
    links = [*bridged.gpu_links, GpuLink("GPU0", "GPU2", "nvlink", 2)]
    mesh = replace(bridged, gpu_links=links)
    assert between(mesh) == {
        ("GPU0", "GPU1"): 46.0,
        ("GPU1", "GPU0"): 47.0,
        ("GPU0", "GPU2"): 21.5,
        ("GPU2", "GPU0"): None,
    }


def test_links_to_switches_have_the_median_of_their_gpu(bridged):
    links = [GpuLink(gpu.name, SWITCH, "nvlink", 12) for gpu in GPUS]
    switched = replace(bridged, gpu_links=links)
    measured = [pair(0, 1, 270.0), pair(0, 2, 280.0), pair(1, 0, 240.0)]
    found = {rate.a: rate.measured_gbps for rate in rates(switched, measured)}
    assert found == {"GPU0": 275.0, "GPU1": 240.0, "GPU2": None}
    assert {one.kind for one in pair_rates(switched, measured)} == {"nvlink"}


def test_the_first_record_counts(bridged):
    links = [GpuLink(gpu.name, SWITCH, "nvlink", 12) for gpu in GPUS]
    switched = replace(bridged, gpu_links=links)
    gather = Measured("nvlink", 235.0, "all_gather")
    both = {
        order: [rate.measured_gbps for rate in rates(switched, measured)]
        for order, measured in (
            ("pairs first", [pair(0, 1, 270.0), gather]),
            ("pairs last", [gather, pair(0, 1, 270.0)]),
        )
    }
    assert both == {"pairs first": [270.0, 235.0, 235.0], "pairs last": [235.0] * 3}
    (one,) = pair_rates(switched, [pair(0, 1, 270.0, "first"), pair(0, 1, 99.0, "second")])
    assert (one.measured_gbps, one.measured_how) == (270.0, "first")


def test_said_as_a_matrix(bridged):
    lines = pair_lines(pair_rates(bridged, MEASURED))
    assert lines[0].startswith(
        "Measured from GPU (row) to GPU (column) over NVLink and PCIe and the host's memory: GB/s"
    )
    assert [line.split() for line in lines[1:3]] == [
        ["GPU0", "GPU1", "GPU2"],
        ["GPU0", "-", "46", "NV4", "21.5", "PHB"],
    ]
    assert lines[-1] == "measured: p2p"
    assert pair_lines([]) == []
    alike = pair_lines(pair_rates(bridged, MEASURED[:2]))
    assert "over NVLink: GB/s" in alike[0]
    assert not any("NV4" in line for line in alike)


def test_written_and_shown(bridged):
    whole = document(bridged, MEASURED)
    first = json.loads(to_json(whole))["measured_pairs"][0]
    assert first == {
        "a": "GPU0", "b": "GPU1", "kind": "nvlink", "word": "NV4", "measured_gbps": 46.0,
        "measured_how": "p2p",
    }  # fmt: skip
    assert "Measured between GPUs" in page(whole)
    assert "Measured between GPUs" not in page(document(bridged))


def test_pairs_of_every_saved_machine(saved):
    """Whatever the source tells or does not, each pair keeps its rate."""
    machine = load(saved)
    names = [gpu.name for gpu in machine.gpus]
    measured = [Measured("pair", 7.0, "x", a, b) for a in names for b in names if a != b]
    found = pair_rates(machine, measured)
    assert [(one.a, one.b) for one in found] == [(one.device, one.peer) for one in measured]
    kinds = {link.kind for link in machine.gpu_links} | {"pcie", "host", "unknown"}
    assert {one.kind for one in found} <= kinds

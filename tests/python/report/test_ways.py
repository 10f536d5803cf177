"""The ways between two GPUs: which curves there are, and what they rest on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from braid.record.probe import Series, from_json, times_of
from braid.report import probes, ways
from braid.topo.document import document
from braid.topo.read import load as load_machine

REPOSITORY = Path(__file__).parents[3]
RECORDS = REPOSITORY / "records"
H200 = document(load_machine(RECORDS / "topo_h200_2.json"))
FIXTURES = REPOSITORY / "tests/python/fixtures/topo"
L20, MI300X = (document(load_machine(FIXTURES / f"{x}_x8.txt")) for x in ("l20", "mi300x"))
MIB = 1 << 20


def copies(group, nbytes, us):
    return Series(group, "gpu0", nbytes, times_of([us]), nbytes / us / 1e3)


PAIRS = [copies("one way", 256 * MIB, 671.0), replace(copies("latency", 16, 10.0), gbps=None)]
HOST = [
    copies("d2h 1 MiB", MIB, 20.0), copies("h2d 1 MiB", MIB, 22.0),
    copies("d2h 1 GiB", 1024 * MIB, 20e3), copies("h2d 1 GiB", 1024 * MIB, 20e3),
]  # fmt: skip


def by_name(found):
    return {way.name: (way.basis, dict(way.points)) for way in found}


def test_three_curves_of_a_machine_with_nvlink():
    found = by_name(ways.ways([PAIRS, HOST], H200))
    assert list(found) == ["NVLink 4", "PCIe 5 x16, from GPU to GPU", "the host's memory"]
    basis, points = found["NVLink 4"]
    rate = PAIRS[0].gbps
    assert basis == "from the measured latency and rate"
    assert points[256 * MIB] == rate
    assert points[MIB] == pytest.approx(MIB / (10 + MIB / rate / 1e3) / 1e3)
    assert found["PCIe 5 x16, from GPU to GPU"] == ("specified", {MIB: 63.015, 256 * MIB: 63.015})
    basis, points = found["the host's memory"]
    assert (basis, points[MIB]) == ("measured: out, then in", pytest.approx(MIB / 42e3))


def test_pairs_without_links_of_their_own_go_over_pcie():
    found = by_name(ways.ways([PAIRS], L20))
    assert [(name, basis) for name, (basis, _) in found.items()] == [
        ("PCIe 4 x16, by the model, from GPU to GPU", "from the measured latency and rate")
    ]


def test_a_pair_on_a_mesh_has_one_bundle():
    found = by_name(ways.ways([HOST], MI300X))
    assert found["xGMI"] == ("specified", {MIB: 64.0, 1024 * MIB: 64.0})


def section(*names):
    records = [from_json(json.loads((RECORDS / f"{name}.json").read_text())) for name in names]
    return "\n".join(ways.section([probes.of("x.json", one) for one in records], H200))


def test_the_picture_has_a_key_and_numbers():
    drawn = section("p2p_2", "host_2")
    assert drawn.count('class="curve c') == 2 * 3
    assert "NVLink 4: from the measured latency and rate" in drawn
    assert "PCIe 5 x16, from GPU to GPU: specified" in drawn
    assert '<td>the host&#x27;s memory</td><td class="n">64 KiB</td>' in drawn


def test_records_of_other_gpus_are_left_out():
    record = from_json(json.loads((RECORDS / "p2p_2.json").read_text()))
    gpus = [replace(gpu, model="NVIDIA L20") for gpu in H200.machine.gpus]
    other = replace(H200, machine=replace(H200.machine, gpus=gpus))
    nameless = [replace(gpu, model="") for gpu in gpus]
    unknown = replace(H200, machine=replace(H200.machine, gpus=nameless))
    probed = [probes.of("x.json", record)]
    assert list(ways.section(probed, other)) == []
    assert list(ways.section(probed, H200))
    assert list(ways.section(probed, unknown))


@pytest.mark.parametrize(
    "bad", [{"verdict": "wrong data"}, {"verdict": "hang"}, {"wrong_bytes": 3}, {"bytes": 0}]
)
def test_what_is_wrong_is_no_way(bad):
    pairs = [*PAIRS, replace(copies("one way", 512 * MIB, 1.0), **bad)]
    host = [*HOST, *(replace(copies(f"{way} 4 KiB", 4096, 1.0), **bad) for way in ("d2h", "h2d"))]
    assert by_name(ways.ways([pairs, host], H200)) == by_name(ways.ways([PAIRS, HOST], H200))


def test_the_rate_is_that_of_the_largest_copies():
    small = copies("one way", MIB, 100.0)
    found = by_name(ways.ways([[small, small, *PAIRS]], H200))
    assert found["NVLink 4"][1][256 * MIB] == PAIRS[0].gbps


def test_bundles_to_switches_are_added():
    half = [replace(link, count=9) for link in H200.machine.gpu_links]
    machine = replace(H200.machine, gpu_links=half)
    (link,) = [
        one for one in document(machine).derived.links if (one.a, one.kind) == ("GPU0", "nvlink")
    ]
    both = replace(H200.derived, links=[link, link])
    found = by_name(ways.ways([HOST], replace(H200, derived=both)))
    assert found["NVLink 4"][1][MIB] == 450


def test_one_way_alone_is_no_comparison():
    alone = document(load_machine(FIXTURES / "h100_x8.txt"))
    record = from_json(json.loads((RECORDS / "p2p_2.json").read_text()))
    assert len(list(ways.ways([record.series], alone))) == 1
    assert list(ways.section([probes.of("x.json", record)], alone)) == []


def test_nothing_where_nothing_was_measured_of_it():
    assert section("overlap_2") == ""
    assert section("bench_host") == ""  # between CPUs

"""Records of copies as machines: what they have the rate of, and what they have not."""

import json
from pathlib import Path

import pytest

from braid.plan import probes
from braid.plan.basis import Basis
from braid.plan.predict import Request, predict
from braid.plan.wrong import PlanError

ROOT = Path(__file__).parents[3]
TIMES = {"samples_us": [1.0], "p5_us": 1.0, "p50_us": 1.0, "p95_us": 1.0, "p99_us": 1.0}


def record(kind, rates, device="4 x NVIDIA H200"):
    """A probe: rates are {(group, case): GB/s}; a pair's case is "gpu0>gpu1"."""
    series = []
    for (group, case), gbps in rates.items():
        start, _, end = case.partition(">")
        one = {"group": group, "case": case, "bytes": 1, "times": TIMES, "gbps": gbps}
        series.append(one | ({"start": start, "end": end} if end else {}))
    host = {"cpu": "", "cores": 1, "memory_gib": 1.0, "kernel": ""}
    return {
        "schema": "braid.probe/1", "kind": kind, "command": "", "date": "2026-11-21T00:00:00",
        "commit": "", "dirty": False, "device": device, "ranks": 0, "host": host, "versions": {},
        "settings": {}, "options": {}, "series": series,
    }  # fmt: skip


def pairs(gbps, slowest, device="4 x NVIDIA H200"):
    """Pairs of which one is slower."""
    rates = {("one way", "gpu0>gpu1"): gbps, ("one way", "gpu1>gpu0"): slowest}
    return probes.machine(record("p2p", rates, device), "p2p.json")


def test_pairs_of_a_saved_record():
    document = json.loads((ROOT / "records/p2p_4.json").read_text())
    node = probes.machine(document, "records/p2p_4.json")
    assert (node.title, node.gpus_per_node, node.peak_tflops) == ("NVIDIA H200", 4, 989)
    nvlink, host = node.paths
    assert (nvlink.name, nvlink.rate_gbps, nvlink.basis) == ("nvlink", 389.7, Basis.MEASURED)
    assert nvlink.origin == "the slowest of 12 pairs, braid bench p2p, records/p2p_4.json"
    assert (host.name, host.basis) == ("host-staged", Basis.SPECIFIED)
    found = predict(Request("all_gather", 1 << 30, 4), nvlink)
    assert found.least_us.basis is Basis.MEASURED
    assert found.least_us.value == pytest.approx(0.75 * (1 << 30) / 389.7e3)


@pytest.mark.parametrize("gbps", [-5.0, 0.0, float("nan"), float("inf")])
def test_a_rate_that_nobody_measured_is_refused(gbps):
    with pytest.raises(PlanError, match=r"p2p.json: record.series\[1\].gbps: asked for a "):
        pairs(390.0, gbps)


def test_the_slowest_pair_bounds_what_a_library_reaches():
    """NCCL plans with 370.8 GB/s of NVLink 4; a pair with 200 cannot do that."""
    nvlink = pairs(390.0, 200.0).paths[0]
    assert nvlink.achievable(4).value == 200
    assert nvlink.achievable(4).basis is Basis.ASSUMED
    assert pairs(390.0, 389.0).paths[0].achievable(4).value == pytest.approx(370.8)
    found = predict(Request("all_reduce", 1 << 30, 4), nvlink)
    assert found.time_us.value >= found.least_us.value


def test_pairs_that_are_no_faster_than_a_slot_went_over_pcie():
    node = pairs(52.0, 50.0, "2 x NVIDIA H100 PCIe")
    assert [(path.name, path.rate_gbps) for path in node.paths] == [
        ("pcie", 50.0),
        ("host-staged", pytest.approx(63.015, rel=1e-4)),
    ]
    unknown = pairs(52.0, 50.0, "2 x Some GPU")
    assert [(path.name, path.rate_gbps) for path in unknown.paths] == [("pcie", 50.0)]
    assert unknown.peak_tflops == 0


def test_a_mesh_has_a_link_for_each_peer():
    path = pairs(66.0, 60.0, "8 x AMD Instinct MI300X").paths[0]
    assert path.name == "pcie"  # no faster than the slot: a pair of MI300X is 64
    path = pairs(70.0, 68.0, "8 x AMD Instinct MI355X").paths[0]
    assert (path.name, path.pair_gbps, path.rate_gbps) == ("xgmi", 68.0, 7 * 68.0)


def test_the_way_to_the_host():
    rates = {("d2h 1 MiB", "gpu0"): 55.0, ("h2d 1 MiB", "gpu0"): 57.0, ("d2h 1 MiB", "gpu1"): 27.0}
    node = probes.machine(record("host", rates), "host.json")
    (path,) = node.paths
    assert (path.name, path.shape, path.rate_gbps) == ("host-staged", "host", 27.0)
    assert path.origin == "the slowest of 2 GPUs to or from the host, braid bench host, host.json"


@pytest.mark.parametrize(
    "document",
    [
        record("interference", {("alone", "gpu0>gpu1"): 9.0}),
        record("p2p", {}),
        record("host", {("d2h 1 MiB", "thread0"): 9.0}, device=""),
    ],
)
def test_without_a_link_s_rate(document):
    with pytest.raises(PlanError, match="without a rate of GPUs' links; braid plan takes those of"):
        probes.machine(document, "x.json")


def test_damaged():
    document = record("p2p", {("one way", "gpu0>gpu1"): 9.0})
    del document["host"]
    with pytest.raises(PlanError, match=r"x\.json: .*host"):
        probes.machine(document, "x.json")

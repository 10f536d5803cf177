"""Machines whose GPUs PCIe joins: what they go over and share is said; of others, nothing."""

from dataclasses import replace

import pytest

from braid.topo.document import document
from braid.topo.facts import SWITCH, Gpu, GpuLink, Machine, Path, PeerAccess, Source
from braid.topo.rates import rates
from braid.topo.read import load
from braid.topo.read.live import read_tree
from braid.topo.tables import model_known, pcie_of_model
from braid.topo.verdicts import verdicts


def machine(count, model, path, links=(), **more):
    """GPUs of one model; `path` is that of every two, or says it of two numbers."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    words = {(i, j): path(i, j) if callable(path) else path for i, j in pairs}
    paths = [Path(f"GPU{i}", f"GPU{j}", word) for (i, j), word in words.items() if word]
    gpus = [Gpu(f"GPU{i}", model) for i in range(count)]
    return Machine(Source("nvidia-smi"), gpus=gpus, paths=paths, gpu_links=list(links), **more)


def said(made):
    return {verdict.code: verdict for verdict in verdicts(made)}


@pytest.mark.parametrize(
    ("model", "is_said"),
    [("NVIDIA GeForce RTX 4090", True), ("NVIDIA GeForce RTX 5090 D", True), ("rtx 4090", True),
     ("NVIDIA GeForce RTX 3090", True), ("NVIDIA GeForce RTX 2080 Ti", True),
     ("NVIDIA TITAN RTX", True), ("NVIDIA RTX 5000 Ada Generation", False),
     ("NVIDIA RTX 6000 Ada Generation", False), ("Quadro RTX 8000", False), ("NVIDIA L40S", False),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", False), ("", False)],
)  # fmt: skip
def test_cards_without_peer_access(model, is_said):
    found = said(machine(2, model, "PHB"))
    assert ("no-p2p" in found) is is_said
    if is_said:
        assert found["no-p2p"].level == "note"
        assert found["no-p2p"].devices == ["GPU0", "GPU1"]


def test_bridged_cards_have_peer_access_over_the_bridge():
    link = [GpuLink("GPU0", "GPU1", "nvlink", 4)]
    card = "NVIDIA GeForce RTX 3090"
    assert "no-p2p" not in said(machine(2, card, "PHB", link))
    three = said(machine(3, card, "PHB", link))
    assert three["no-p2p"].devices == ["GPU0", "GPU1", "GPU2"]


def test_the_driver_knows_better():
    """A changed driver may give what NVIDIA's does not."""
    peers = [PeerAccess("GPU0", "GPU1", "ok", "ok")]
    made = machine(2, "NVIDIA GeForce RTX 4090", "PHB", peers=peers)
    assert "no-p2p" not in said(made)


def test_two_trees_of_five():
    made = machine(10, "NVIDIA L40S", lambda i, j: "PXB" if i // 5 == j // 5 else "SYS")
    uplinks = said(made)["shared-uplink"]
    assert uplinks.devices == [f"GPU{i}" for i in range(10)]
    assert "GPU0-4 and GPU5-9 each share one PCIe uplink" in uplinks.text
    assert "1/5" in uplinks.text
    one = said(machine(3, "NVIDIA L40S", "PIX"))["shared-uplink"]
    assert one.text.startswith("GPU0-2 share one PCIe uplink")
    trees = said(made)["pcie-trees"]
    assert trees.text.startswith("GPU0-4 and GPU5-9 meet across NUMA nodes")
    assert "(SYS)" in trees.text
    assert "below one switch" in trees.fix


def test_cards_in_ports_of_their_own():
    trees = said(machine(4, "NVIDIA L4", "NODE"))["pcie-trees"]
    assert trees.text.startswith("GPU0-3 meet across host bridges")
    assert trees.fix == ""


@pytest.mark.parametrize("path", ["PIX", "PXB", None])
def test_one_tree_has_nothing_to_meet(path):
    assert "pcie-trees" not in said(machine(4, "NVIDIA L40S", path))


def test_joined_gpus_do_not_care():
    links = [GpuLink(f"GPU{i}", SWITCH, "nvlink", 18) for i in range(4)]
    found = said(
        machine(4, "NVIDIA H100", lambda i, j: "PXB" if i // 2 == j // 2 else "SYS", links)
    )
    assert not found.keys() & {"shared-uplink", "pcie-trees", "nvlink-partial"}


def test_bridged_pairs_meet_over_pcie():
    links = [GpuLink("GPU0", "GPU1", "nvlink", 12), GpuLink("GPU2", "GPU3", "nvlink", 12)]
    made = machine(4, "NVIDIA H100 NVL", lambda i, j: "PXB" if i // 2 == j // 2 else "SYS", links)
    found = said(made)
    assert "a group across them runs at the PCIe rate" in found["nvlink-partial"].text
    assert found["pcie-trees"].text.startswith("GPU0, GPU1 and GPU2, GPU3 meet")
    pcie = [rate for rate in rates(made) if rate.kind == "pcie"]
    assert {(rate.name, rate.theoretical_gbps, rate.basis) for rate in pcie} == {
        ("PCIe 5 x16, by the model", 63.015, "assumed")
    }


def test_partial_meshes_that_rings_join():
    cube = (
        "01",
        "02",
        "13",
        "45",
        "46",
        "57",
        "26",
        "37",
        "03",
        "04",
        "12",
        "15",
        "23",
        "47",
        "56",
    )
    links = [GpuLink(f"GPU{a}", f"GPU{b}", "nvlink", 1) for a, b in (*cube, "67")]
    found = said(machine(8, "Tesla V100-SXM2-16GB", "SYS", links))
    assert "rings over NVLink join all 8" in found["nvlink-partial"].text
    assert "PCIe rate" not in found["nvlink-partial"].text
    assert "pcie-trees" not in found
    amd = [GpuLink(link.a, link.b, "xgmi", 1) for link in links]
    partial = said(machine(8, "AMD Instinct MI100", "SYS", amd))["nvlink-partial"]
    assert "have no xGMI" in partial.text


def test_sources_that_know_of_no_links_say_nothing_of_them(fixture_path, box):
    """Eight A100 by their PCI class alone have NVSwitches that the file does not tell."""
    ours = {"no-p2p", "shared-uplink", "pcie-trees"}
    for name in ("cloud_by_class_x8.xml", "cloud_by_number_x8.xml"):
        assert not said(load(fixture_path(name))).keys() & ours
    assert not said(read_tree(box().root)).keys() & ours
    card = machine(2, "NVIDIA GeForce RTX 4090", "SYS")
    assert not said(replace(card, source=Source("hwloc"))).keys() & ours
    told = [replace(gpu, arch="sm_89") for gpu in card.gpus]
    assert said(replace(card, source=Source("live"), gpus=told)).keys() == {"no-p2p", "pcie-trees"}


@pytest.mark.parametrize(
    ("model", "gbps", "nccl"),
    [("Tesla T4", 15.754, 12), ("NVIDIA L40S", 31.508, 24), ("NVIDIA H100 PCIe", 63.015, 48)],
)
def test_what_nccl_reckons_with_over_pcie(model, gbps, nccl):
    (rate,) = [r for r in rates(machine(2, model, "PHB")) if r.a == "GPU0"]
    assert (rate.theoretical_gbps, rate.nccl_gbps) == (gbps, nccl)


def test_the_document_has_them():
    found = document(machine(2, "NVIDIA L40S", "SYS")).derived.verdicts
    assert [verdict.code for verdict in found] == ["pcie-trees"]


@pytest.mark.parametrize(
    ("model", "generation"),
    [("NVIDIA A10G", 4), ("NVIDIA A2", None), ("Tesla V100S-PCIE-32GB", 3), ("Tesla P40", 3),
     ("NVIDIA TITAN RTX", 3), ("Quadro RTX 8000", 3), ("NVIDIA GeForce RTX 2080 Ti", 3),
     ("NVIDIA GeForce RTX 3060", 4), ("NVIDIA GeForce RTX 4070 Ti", 4),
     ("NVIDIA GeForce RTX 4060 Ti", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
     ("NVIDIA RTX 6000 Ada Generation", 4), ("NVIDIA RTX A5000", 4),
     ("NVIDIA GeForce RTX 5070 Ti", 5), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 5),
     ("AMD Instinct MI100", 4), ("AMD Instinct MI210", 4), ("AMD Instinct MI300X", 5)],
)  # fmt: skip
def test_slots_of_cards(model, generation):
    """With 16 lanes: cards of eight (A2, RTX 4060) are left out, and so are laptops."""
    assert pcie_of_model(model) == generation


@pytest.mark.parametrize(
    ("model", "gbps"),
    [("NVIDIA TITAN RTX", 25), ("Quadro RTX 8000", 25), ("NVIDIA GeForce RTX 2080 Ti", 25),
     ("NVIDIA RTX A5000", 14.0625), ("NVIDIA RTX A6000", 14.0625), ("Tesla V100S-PCIE-32GB", 25)],
)  # fmt: skip
def test_bridges_of_cards(model, gbps):
    assert model_known(model).gbps_each == gbps

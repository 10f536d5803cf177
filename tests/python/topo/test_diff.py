"""What differs between two machines."""

from dataclasses import replace

from braid.topo.diff import Difference, diff
from braid.topo.facts import GpuLink
from braid.topo.read import load
from braid.topo.read.live import read_tree


def test_same(saved):
    machine = load(saved)
    assert diff(machine, machine) == []
    assert diff(machine, replace(machine, name="another")) == []


def test_a_slot(box):
    a = read_tree(box().root)
    narrow = [
        replace(d, link=replace(d.link, width=8)) if d.address == a.gpus[1].pci else d
        for d in a.pci
    ]
    b = replace(a, pci=narrow)
    found = {one.what: (one.a, one.b) for one in diff(a, b)}
    assert found["GPU1, PCIe"] == (
        "PCIe 5 x16, 63.0 GB/s",
        "PCIe 5 x8 of x16, 31.5 GB/s",
    )
    assert "warning pcie-width" in found


def test_a_link_and_a_nic(fixture_path):
    a = load(fixture_path("h100_x8.xml"))
    links = [replace(a.gpu_links[0], count=17), *a.gpu_links[1:]]
    found = diff(a, replace(a, gpu_links=links, nics=a.nics[:-1]))
    assert Difference("GPU0 to GPU1", "NV18", "NV17") in found
    assert Difference("mlx5_7", "InfiniBand 400 Gbit/s", "") in found
    assert isinstance(links[0], GpuLink)


def test_other_machines(fixture_path):
    found = diff(load(fixture_path("h100_x8.xml")), load(fixture_path("laptop.xml")))
    assert Difference("GPUs", "8", "0") in found

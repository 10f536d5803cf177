"""/sys of machines that are made up: the PCIe tree, NICs, access control, what cannot be read."""

import pytest

from braid.topo.facts import PcieLink
from braid.topo.look import View
from braid.topo.read import live, load, nvml
from braid.topo.read.live import read_tree
from braid.topo.read.sysfs_pci import _redirects


def test_server(server):
    machine = load(server.root)
    assert machine.cpu.model == "Intel Xeon 8480C"
    assert (machine.cpu.sockets, machine.cpu.socket_gbps) == (2, 22)
    assert [(n.index, n.memory_gib, n.socket) for n in machine.numa] == [(0, 512, 0), (1, 512, 1)]
    nics = {nic.name: nic for nic in machine.nics}
    assert sorted(nics) == ["eno1", "ens1f0"]  # not lo
    assert (nics["ens1f0"].gbit, nics["ens1f0"].pci) == (100, "0000:16:00.0")
    assert nics["ens1f0"].has_default_route
    assert not nics["eno1"].has_default_route
    assert {d.kind for d in machine.pci} == {"root_port", "nic", "nvme"}
    assert not machine.gpus


def test_tree_of_switches(box):
    machine = read_tree(box().root)
    kinds = {device.address: device.kind for device in machine.pci}
    assert kinds["0000:15:01.0"] == "root_port"
    assert kinds["0000:16:00.0"] == "switch"
    assert kinds["0000:17:00.0"] == "port"
    view = View(machine)
    assert view.path("GPU0", "mlx5_0") == "PIX"
    assert view.path("GPU0", "GPU1") == "SYS"
    assert [gpu.cpus for gpu in machine.gpus] == ["0-47", "48-95"]
    assert machine.nics[0].lanes == "4X NDR"
    assert view.pci["0000:18:00.0"].link == PcieLink(32, 16, 32, 16)


def test_bond_reaches_outside(fake_sys):
    """The default route is the bond's; the NICs that it is made of carry it."""
    device = fake_sys.pci("pci0000:00", "0000:00:03.0", code="0x020000", vendor="0x15b3")
    fake_sys.net("bond0")
    fake_sys.net("ens3", device, 100000)
    fake_sys.write("/sys/class/net/bond0/bonding/slaves", "ens3 ens4")
    fake_sys.default_route("bond0")
    assert {n.name: n.has_default_route for n in read_tree(fake_sys.root).nics} == {
        "bond0": True,
        "ens3": True,
    }


def test_rdma_device_and_its_interface_are_one_nic(fake_sys):
    device = fake_sys.pci("pci0000:00", "0000:00:03.0", code="0x020000", vendor="0x15b3")
    fake_sys.rdma("mlx5_0", device, "100 Gb/sec (4X EDR)", "Ethernet", "1: DOWN")
    fake_sys.write(f"{device}/net/ens3/speed", 100000)
    fake_sys.net("ens3", device, 100000)
    (nic,) = read_tree(fake_sys.root).nics
    assert (nic.name, nic.kind, nic.is_up) == ("mlx5_0", "roce", False)
    assert nic.interfaces == ["ens3"]


def test_unknown_links(fake_sys):
    """Virtual machines answer "Unknown" and 255 lanes, and no NUMA node."""
    path = fake_sys.pci("pci0000:00", "0000:00:05.0", code="0x030200", numa=-1)
    fake_sys.write(f"{path}/current_link_speed", "Unknown")
    fake_sys.write(f"{path}/current_link_width", "255")
    machine = read_tree(fake_sys.root)
    assert machine.pci[0].link == PcieLink(0, 0, 32, 16)
    assert machine.gpus[0].numa is None


def test_iommu(fake_sys):
    path = fake_sys.pci("pci0000:00", "0000:00:05.0", code="0x030200")
    assert read_tree(fake_sys.root).iommu is None
    fake_sys.write("/sys/kernel/iommu_groups/7/type", "DMA-FQ")
    fake_sys.link(f"{path}/iommu_group", "/sys/kernel/iommu_groups/7")
    assert read_tree(fake_sys.root).iommu is True


@pytest.mark.parametrize("vendor", ["0x10de", "0x1002", "0x8086"])
def test_display_adapters_are_no_gpus(fake_sys, vendor):
    fake_sys.pci("pci0000:00", "0000:00:02.0", code="0x030000", vendor=vendor)
    assert len(read_tree(fake_sys.root).gpus) == (vendor == "0x10de")


def test_empty_and_odd_trees(fake_sys):
    fake_sys.write("/sys/class/net/eth0/speed", "fast")
    fake_sys.write("/proc/net/route", "x\nonly-one-word\n")
    machine = read_tree(fake_sys.root)
    assert not machine.pci
    assert machine.source.gaps


def test_hwloc_where_sysfs_is_hidden(fake_sys, fixture_path, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "lstopo-no-graphics"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "--of xml" ] && exec cat {fixture_path("laptop.xml")}')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    machine = live.read(fake_sys.root, nvml.find_library())
    assert machine.cpu.model.startswith("12th Gen")
    program.write_text("#!/bin/sh\nexit 1")
    assert live.read(fake_sys.root).pci == []


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (bytes(64), None),  # no more than an ordinary user may read
        (bytes(4096), False),
        (bytes(0x100) + b"\x0d\x00\x01\x00\x00\x00\x04\x00", True),
        (bytes(0x100) + b"\x0d\x00\x01\x00\x00\x00\x13\x00", False),
        (bytes(0x100) + b"\x01\x00\x01\x10" + bytes(60), False),  # leads to itself
    ],
)
def test_access_control(config, answer):
    assert _redirects(config) is answer

"""Facts that do not fit together are refused before anything is drawn or computed."""

from dataclasses import replace
from itertools import pairwise

import pytest

from braid.topo.check import checked
from braid.topo.errors import BadTopology
from braid.topo.facts import (
    CPU,
    SWITCH,
    Cpu,
    Gpu,
    GpuLink,
    Machine,
    Nic,
    Numa,
    Path,
    PciDevice,
    PcieLink,
    PeerAccess,
    Source,
)

BRIDGE, DEVICE = "0000:15:01.0", "0000:16:00.0"
WHOLE = Machine(
    Source("live", {"driver": "580"}),
    name="node",
    cpu=Cpu("Xeon", 2),
    numa=[Numa(0, "0-3", 16.0, 0), Numa(1, "4-7", 16.0, 1)],
    pci=[PciDevice(BRIDGE, "root_port"), PciDevice(DEVICE, "gpu", BRIDGE)],
    gpus=[Gpu("GPU0", pci=DEVICE, cpus="0-3"), Gpu("GPU1")],
    gpu_links=[GpuLink("GPU0", SWITCH, "nvlink", 18), GpuLink("GPU0", CPU, "c2c", 1, 450.0)],
    nics=[Nic("mlx5_0", "infiniband", gbit=400.0)],
    paths=[Path("GPU0", "mlx5_0", "PIX")],
    peers=[PeerAccess("GPU0", "GPU1", "ok", "ok")],
)


def test_a_whole_machine_comes_back():
    assert checked(WHOLE) is WHOLE


def link(**changes):
    return [WHOLE.pci[0], replace(WHOLE.pci[1], link=PcieLink(**changes))]


def chain(length):
    """A device below so many bridges."""
    names = [f"0001:{bus:02x}:00.0" for bus in range(length + 1)]
    devices = [PciDevice(names[0], "root_port")]
    devices += [PciDevice(b, "port", a) for a, b in pairwise(names)]
    return devices


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "a\nb"}, "is too long, or no text"),
        ({"name": "x" * 1001}, "is too long"),
        ({"source": Source("live", {"driver\x07": "1"})}, "no text for people"),
        ({"source": Source("live", {}, ["\x1b[2J"])}, "no text for people"),
        ({"cpu": Cpu("Xeon\u202e", 1)}, "no text for people"),
        ({"peers": [PeerAccess("GPU0", "GPU1", "o\tk", "ok")]}, "no text for people"),
        ({"gpus": [Gpu("GPU0", mig=["1g\n"])]}, "no text for people"),
        ({"numa": [Numa(0), Numa(0)]}, "NUMA node 0 is there twice"),
        ({"numa": [Numa(0, "3-1")]}, "NUMA node 0: '3-1' is no list of processors"),
        ({"numa": [Numa(i) for i in range(257)]}, "257 NUMA nodes are more than the 256"),
        ({"numa": [Numa(0, socket=-1)]}, "socket: -1 is out of reach"),
        ({"numa": [Numa(0, socket=257)]}, "socket: 257 is out of reach"),
        ({"cpu": Cpu("Xeon", 1000)}, "socket: 1000 is out of reach"),
        ({"gpus": [Gpu("GPU0", cpus="one")]}, "GPU0: 'one' is no list of processors"),
        ({"pci": [*WHOLE.pci, PciDevice(DEVICE, "nic")]}, f"PCI device {DEVICE} is there twice"),
        ({"pci": [PciDevice("", "gpu")]}, "PCI device has a name of 0 characters"),
        ({"pci": [PciDevice("x" * 201, "gpu")]}, "has a name of 201 characters"),
        ({"pci": [PciDevice(DEVICE, "gpu", "0000:99:00.0")]}, "there is no bridge 0000:99:00.0"),
        ({"pci": [PciDevice(DEVICE, "gpu", DEVICE)]}, "is its own bridge, or too deep"),
        ({"pci": [*WHOLE.pci, *chain(65)]}, "is its own bridge, or too deep"),
        ({"pci": link(gts=-1.0)}, "speed: -1 is out of reach"),
        ({"pci": link(max_gts=1025.0)}, "speed: 1025 is out of reach"),
        ({"pci": link(gbps=float("inf"))}, "speed: inf is out of reach"),
        ({"pci": link(width=33)}, "lanes: 33 is out of reach"),
        ({"pci": link(max_width=-16)}, "lanes: -16 is out of reach"),
        ({"gpus": [Gpu("GPU0", pci="0000:77:00.0")]}, "GPU0: there is no PCI device 0000:77:00.0"),
        ({"gpus": [Gpu("mlx5_0")]}, "device mlx5_0 is there twice"),
        ({"nics": [Nic(f"n{i}") for i in range(257)]}, "257 NICs are more than the 256"),
        ({"nics": [Nic("n0", gbit=1e7)]}, r"n0, Gbit/s: 1e\+07 is out of reach"),
        ({"nics": [Nic("n0", gbit=float("nan"))]}, "n0, Gbit/s: nan is out of reach"),
        ({"nics": [Nic("mlx5_0", ports=65)]}, "mlx5_0, ports: 65 is out of reach"),
        ({"gpu_links": [GpuLink("GPU0", "GPU0", "nvlink", 1)]}, "not from a GPU to another"),
        ({"gpu_links": [GpuLink(SWITCH, "GPU0", "nvlink", 1)]}, "not from a GPU to another"),
        ({"gpu_links": [GpuLink("GPU0", "GPU1", "nvlink", 1025)]}, "links: 1025 is out of reach"),
        ({"gpu_links": [GpuLink("GPU0", "GPU1", "nvlink", 1, inactive=-1)]}, "down: -1 is out"),
        ({"gpu_links": [GpuLink("GPU0", "GPU1", "nvlink", 1, -5.0)]}, "GB/s: -5 is out of reach"),
        ({"paths": [Path("GPU0", "GPU7", "PIX")]}, "path GPU0 to GPU7: no two devices"),
        ({"paths": [Path("GPU0", "GPU0", "PIX")]}, "path GPU0 to GPU0: no two devices"),
        ({"peers": [PeerAccess("GPU9", "GPU1", "ok", "ok")]}, "path GPU9 to GPU1: no two devices"),
    ],
)
def test_the_first_thing_that_does_not_fit(change, said):
    with pytest.raises(BadTopology, match=said) as caught:
        checked(replace(WHOLE, **change))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"numa": [Numa(0, socket=256)]},
        {"pci": [*WHOLE.pci, *chain(64)]},
        {"pci": link(gts=1024.0, width=32)},
        {"nics": [Nic("mlx5_0", gbit=1e6, ports=64)]},
        {"gpu_links": [GpuLink("GPU0", "GPU1", "nvlink", 1024)]},
        {"name": "é" * 1000},
        {"pci": [], "gpus": [Gpu("GPU0", pci="0000:77:00.0"), Gpu("GPU1")]},
    ],
)
def test_the_last_that_does(change):
    made = replace(WHOLE, **change)
    assert checked(made) is made

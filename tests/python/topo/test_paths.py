"""From a PCIe tree to words, and from words to NCCL's words."""

import pytest

from braid.topo.facts import CPU, SWITCH, Gpu, GpuLink, Machine, Nic, Path, PciDevice, Source
from braid.topo.matrix import matrix
from braid.topo.paths import path_kind


def device(address, kind="gpu", bridge=None, numa=0):
    return PciDevice(address, kind, host_bridge=bridge, numa=numa)


def chain(*kinds, at="a", bridge="pci0", numa=0):
    """A device and the bridges above it. Bridges named alike in two chains are one."""
    return [device(name, kind, bridge, numa) for name, kind in kinds] or [device(at)]


SWITCH_1 = [("u1", "switch"), ("r1", "root_port")]


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (
            [("a", "gpu"), ("p1", "port"), *SWITCH_1],
            [("b", "nic"), ("p2", "port"), *SWITCH_1],
            "PIX",
        ),
        (
            [("a", "gpu"), *SWITCH_1],
            [("b", "nic"), *SWITCH_1],
            "PIX",
        ),  # ports left out, as NCCL does
        (
            [("a", "gpu"), ("p5", "port"), ("u2", "switch"), ("p1", "port"), *SWITCH_1],
            [("b", "nic"), ("p2", "port"), *SWITCH_1],
            "PXB",
        ),
        ([("a", "nic"), ("r1", "root_port")], [("b", "nic"), ("r1", "root_port")], "PIX"),
        ([("a", "gpu"), ("r1", "root_port")], [("b", "nic"), ("r2", "root_port")], "PHB"),
    ],
)
def test_below_one_host_bridge(a, b, kind):
    assert path_kind(chain(*a), chain(*b)) == kind
    assert path_kind(chain(*b), chain(*a)) == kind


@pytest.mark.parametrize(
    ("bridge", "numa", "kind"),
    [
        ("pci1", 0, "NODE"),
        ("pci1", 1, "SYS"),
        (None, 0, "PHB"),
        (None, 1, "SYS"),
        ("pci1", None, None),
    ],
)
def test_through_the_cpu(bridge, numa, kind):
    a, b = chain(("a", "gpu")), chain(("b", "gpu"), bridge=bridge, numa=numa)
    assert path_kind(a, b) == kind


def machine(**parts):
    return Machine(Source("live"), **parts)


def word(of, a, b, vocabulary="nccl"):
    found = matrix(of, vocabulary)
    return found.words[found.devices.index(a)][found.devices.index(b)]


def test_nvlink_through_another_gpu():
    gpus = [Gpu(f"GPU{i}") for i in range(4)]
    links = [GpuLink("GPU0", "GPU1", "nvlink", 2), GpuLink("GPU1", "GPU2", "nvlink", 2)]
    of = machine(gpus=gpus, gpu_links=links, paths=[Path("GPU0", "GPU3", "NODE")])
    assert word(of, "GPU0", "GPU1") == "NVL"
    assert word(of, "GPU0", "GPU2") == "NVB"
    assert word(of, "GPU0", "GPU3") == "PHB"
    assert word(of, "GPU1", "GPU3") == "DIS"
    assert word(of, "GPU1", "GPU3", "nvidia") == "-"


def test_around_the_cpu():
    gpus = [Gpu("GPU0"), Gpu("GPU1")]
    links = [GpuLink(gpu.name, SWITCH, "nvlink", 18) for gpu in gpus]
    paths = [Path("GPU0", "ib0", "SYS"), Path("GPU1", "ib0", "PIX")]
    of = machine(gpus=gpus, gpu_links=links, nics=[Nic("ib0")], paths=paths)
    assert word(of, "GPU0", "ib0") == "PXN"
    assert word(of, "ib0", "GPU1") == "PIX"


def test_over_chip_to_chip():
    links = [GpuLink("GPU0", CPU, "c2c", 5)]
    paths = [Path("GPU0", "ib0", "NODE")]
    of = machine(gpus=[Gpu("GPU0")], gpu_links=links, nics=[Nic("ib0")], paths=paths)
    assert word(of, "GPU0", "ib0") == "P2C"
    assert word(of, "GPU0", "ib0", "nvidia") == "NODE"


def test_fewer_of_two_ends():
    gpus = [Gpu("GPU0"), Gpu("GPU1")]
    links = [GpuLink("GPU0", SWITCH, "nvlink", 18), GpuLink("GPU1", SWITCH, "nvlink", 17)]
    assert word(machine(gpus=gpus, gpu_links=links), "GPU0", "GPU1", "nvidia") == "NV17"

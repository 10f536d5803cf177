"""A machine out of /sys and /proc alone: NUMA nodes, processors, the PCIe tree, NICs."""

import re
from dataclasses import replace

from braid.topo.facts import Cpu, Gpu, Machine, Nic, Numa, PciDevice, Source
from braid.topo.numbers import number, spans
from braid.topo.pci_class import is_accelerator
from braid.topo.pci_ids import gpu_name
from braid.topo.read.sysfs_nic import read_nics
from braid.topo.read.sysfs_pci import read_pci
from braid.topo.read.tree import Tree
from braid.topo.tables import socket_gbps

_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"


def read(tree: Tree) -> Machine:
    """What the kernel says. Paths are not yet in it."""
    pci = read_pci(tree)
    numa = _numa(tree)
    source = Source("sysfs", {"kernel": tree.read("/proc/sys/kernel/osrelease")})
    if not numa and not pci:
        source.gaps.append("sysfs: neither NUMA nodes nor PCI devices can be seen")
    return Machine(
        source,
        name=tree.read("/proc/sys/kernel/hostname"),
        cpu=_cpu(tree, numa),
        iommu=_iommu(tree, pci),
        numa=numa,
        pci=pci,
        gpus=_gpus(pci, {node.index: node.cpus for node in numa}),
        nics=_nics(tree, pci),
    )


def _numa(tree: Tree) -> list[Numa]:
    indexes = [
        int(m[1]) for name in tree.names(_NODES) if (m := re.fullmatch(r"node(\d{1,6})", name))
    ]
    return [_node(tree, index) for index in sorted(indexes)]


def _node(tree: Tree, index: int) -> Numa:
    base = f"{_NODES}/node{index}"
    cpus = tree.read(f"{base}/cpulist")
    runs = spans(cpus)
    total = re.search(r"MemTotal:\s*(\d{1,15}) kB", tree.read(f"{base}/meminfo"))
    gib = round(int(total[1]) / 2**20, 1) if total else None
    return Numa(
        index, cpus if runs is not None else "", gib, _socket(tree, runs[0][0]) if runs else None
    )


def _socket(tree: Tree, cpu: int) -> int | None:
    package = tree.integer(f"{_CPUS}/cpu{cpu}/topology/physical_package_id")
    return package if package is not None and package >= 0 else None


def _cpu(tree: Tree, numa: list[Numa]) -> Cpu:
    fields: dict[str, str] = {}
    for line in tree.read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = number(fields.get("model"))
    vendor = fields.get("vendor_id", "")
    arch = "arm64" if "CPU implementer" in fields else ""
    sockets = len({node.socket for node in numa if node.socket is not None})
    name = fields.get("model name", "")
    between = socket_gbps(arch, vendor, int(model) if model is not None else None)
    return Cpu(name, sockets or None, arch, between)


def _iommu(tree: Tree, pci: list[PciDevice]) -> bool | None:
    """Of the groups that GPUs and NICs are in: "identity" passes addresses through."""
    found = [
        kind
        for device in pci
        if device.kind in ("gpu", "nic")
        and (kind := tree.read(f"/sys/bus/pci/devices/{device.address}/iommu_group/type"))
    ]
    return any(kind.startswith("DMA") for kind in found) if found else None


def _gpus(pci: list[PciDevice], cpus: dict[int, str]) -> list[Gpu]:
    ours = sorted(
        (d for d in pci if is_accelerator(d.class_code, d.vendor)), key=lambda d: d.address
    )
    return [
        Gpu(
            f"GPU{i}",
            model=gpu_name(d.vendor, d.device),
            pci=d.address,
            numa=d.numa,
            cpus="" if d.numa is None else cpus.get(d.numa, ""),
        )
        for i, d in enumerate(ours)
    ]


def _nics(tree: Tree, pci: list[PciDevice]) -> list[Nic]:
    """NICs; one on a PCI device of a class that braid does not follow stands beside the tree."""
    followed = {device.address for device in pci}
    return [nic if nic.pci in followed else replace(nic, pci=None) for nic in read_nics(tree)]

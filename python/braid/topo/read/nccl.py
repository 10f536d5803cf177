"""NCCL's topology, as it writes it to NCCL_TOPO_DUMP_FILE and reads it from NCCL_TOPO_FILE.

    system > cpu > pci > ... > pci > gpu > nvlink, c2c     RCCL writes xgmi
                               pci > nic > net
    system > cpu > nic > net                               an interface that is not on PCI

A `pci` of class 0x0604 is a whole switch: NCCL leaves root ports and downstream ports out. An
interface that is not on PCI stands under every cpu; it is read once. The number of GPUs is that of
`dev`, not of ranks: several ranks may share one.
"""

import re
from dataclasses import dataclass, field

from braid.topo.errors import BadTopology
from braid.topo.facts import (
    CPU,
    SWITCH,
    Cpu,
    Gpu,
    GpuLink,
    GpuLinkKind,
    Machine,
    Nic,
    NicKind,
    Numa,
    PciDevice,
    PcieLink,
    Source,
)
from braid.topo.numbers import address, cpulist_of_mask, node, number, whole
from braid.topo.paths import with_paths
from braid.topo.pci_class import AMAZON, kind_of
from braid.topo.read.xml import Element, parse
from braid.topo.tables import socket_gbps

_VERSION = "1"
_SWITCH_CLASSES = ("0x0680",)


@dataclass
class _Found:
    """What was met so far."""

    numa: list[Numa] = field(default_factory=list)
    pci: list[PciDevice] = field(default_factory=list)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nics: dict[str, Nic] = field(default_factory=dict)
    links: list[tuple[str, Element]] = field(default_factory=list)
    """GPU and its nvlink, xgmi or c2c elements: targets may come later in the file."""


def read(text: str) -> Machine:
    """The machine that the XML describes."""
    root = parse(text)
    if root.tag != "system":
        raise BadTopology(f"the XML's root is <{root.tag:.20}>, NCCL's is <system>")
    if root.get("version", _VERSION) != _VERSION:
        raise BadTopology(
            f"NCCL topology of version {root.get('version'):.20}; braid reads version {_VERSION}"
        )
    found = _Found()
    cpus = [child for child in root if child.tag == "cpu"]
    for cpu in cpus:
        _read_cpu(found, cpu)
    if not found.gpus:
        raise BadTopology("0 GPUs: the NCCL topology has none")
    machine = Machine(
        Source("nccl"),
        cpu=_processor(cpus),
        numa=found.numa,
        pci=found.pci,
        gpus=sorted(found.gpus.values(), key=lambda gpu: int(gpu.name[3:])),
        gpu_links=_links(found),
        nics=list(found.nics.values()),
    )
    return with_paths(machine)


def _processor(cpus: list[Element]) -> Cpu:
    first = cpus[0]
    vendor, model = first.get("vendor", ""), whole(first.get("modelid"))
    name = " ".join(filter(None, (vendor, f"model {model}" if model is not None else "")))
    arch = first.get("arch", "")
    return Cpu(name, None, arch, socket_gbps(arch, vendor, model))


def _read_cpu(found: _Found, cpu: Element) -> None:
    numa = node(cpu.get("numaid"))
    if numa is not None:
        found.numa.append(Numa(numa, cpulist_of_mask(cpu.get("affinity", ""))))
    for child in cpu:
        if child.tag == "pci":
            _read_pci(found, child, None, numa)
        elif child.tag == "nic":
            _read_nic(found, child, None, numa)


def _read_pci(found: _Found, pci: Element, parent: str | None, numa: int | None) -> None:
    here = address(pci.get("busid"))
    if here is None:
        raise BadTopology(f"a pci element has the busid '{pci.get('busid', ''):.20}'")
    kind = kind_of(pci.get("class", ""), pci.get("vendor", ""))
    link = PcieLink(number(pci.get("link_speed")) or 0.0, whole(pci.get("link_width")) or 0)
    device = PciDevice(
        here,
        "switch" if kind == "bridge" else kind,
        parent,
        numa=numa,
        link=link,
        class_code=pci.get("class", ""),
        vendor=pci.get("vendor", ""),
        device=pci.get("device", ""),
    )
    found.pci.append(device)
    for child in pci:
        if child.tag == "pci":
            _read_pci(found, child, here, numa)
        elif child.tag == "gpu":
            _read_gpu(found, child, here, numa)
        elif child.tag == "nic":
            _read_nic(found, child, device, numa)


def _read_gpu(found: _Found, gpu: Element, here: str, numa: int | None) -> None:
    dev = whole(gpu.get("dev"))
    if dev is None or dev < 0:
        raise BadTopology(f"the GPU at {here} has the number '{gpu.get('dev', ''):.20}'")
    name = f"GPU{dev}"
    if name in found.gpus:  # another rank, or another part, of the same GPU
        return
    sm = gpu.get("sm", "")
    cpus = next((n.cpus for n in found.numa if n.index == numa), "")
    arch = gpu.get("gcn", "") or (f"sm_{sm}" if sm else "")
    found.gpus[name] = Gpu(name, arch=arch, pci=here, numa=numa, cpus=cpus)
    found.links += [(name, child) for child in gpu if child.tag in ("nvlink", "xgmi", "c2c")]


def _read_nic(found: _Found, nic: Element, pci: PciDevice | None, numa: int | None) -> None:
    for net in nic:
        name = net.get("name", "")
        if net.tag != "net" or not name:
            continue
        if name in found.nics:  # a further port, or an interface that stands under every cpu
            continue
        found.nics[name] = Nic(
            name,
            _kind(net, pci),
            pci.address if pci else None,
            numa if pci else None,
            (number(net.get("speed")) or 0.0) / 1000 or None,
            is_up=True,  # NCCL lists no others
        )


def _kind(net: Element, pci: PciDevice | None) -> NicKind:
    """What NCCL tells: RDMA devices have a guid. The PCI class tells InfiniBand's own."""
    if pci is None or _guid(net) == 0:
        return "ethernet"
    if pci.vendor == AMAZON:
        return "efa"
    return "infiniband" if pci.class_code.startswith("0x0207") else "roce"


def _guid(net: Element) -> int:
    text = net.get("guid", "").removeprefix("0x")
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{1,16}", text) else 0


def _links(found: _Found) -> list[GpuLink]:
    at = {gpu.pci: gpu.name for gpu in found.gpus.values()}
    counts: dict[tuple[str, str, GpuLinkKind], int] = {}
    each: dict[tuple[str, str, GpuLinkKind], float | None] = {}
    for gpu, element in found.links:
        kind: GpuLinkKind = element.tag  # type: ignore[assignment]  # _read_gpu keeps no others
        far = CPU if kind == "c2c" else _far_end(element, at)
        if far is None or far == gpu:
            continue
        key = (gpu, far, kind)
        counts[key] = counts.get(key, 0) + max(whole(element.get("count")) or 0, 0)
        each[key] = (number(element.get("bw")) or 0.0) / 1000 or None if kind == "c2c" else None
    # A link between two GPUs stands under both.
    return [
        GpuLink(a, b, kind, count, each[a, b, kind])
        for (a, b, kind), count in counts.items()
        if count and not ((b, a, kind) in counts and b < a)
    ]


def _far_end(link: Element, at: dict[str | None, str]) -> str | None:
    if link.get("tclass", "").startswith(_SWITCH_CLASSES):
        return SWITCH
    return at.get(address(link.get("target")))

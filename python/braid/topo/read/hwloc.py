"""hwloc's XML, from `lstopo --of xml` (hwloc 2).

    topology > object Machine > Package > NUMANode, Bridge > PCIDev > OSDev

The PCIe tree hangs below the package or NUMA node that is near to it. hwloc has no paths between
GPUs and no NVLinks of its own, so this source shows the tree; it is what there is where /sys
cannot be read.
"""

import re
from dataclasses import dataclass, field, replace

from braid.topo.errors import BadTopology
from braid.topo.facts import (
    Cpu,
    Gpu,
    Machine,
    Nic,
    NicKind,
    Numa,
    PciDevice,
    PcieLink,
    PciKind,
    Source,
)
from braid.topo.numbers import address, cpulist_of_mask, number, whole
from braid.topo.paths import with_paths
from braid.topo.pci_class import is_accelerator, kind_of
from braid.topo.pci_ids import gpu_name
from braid.topo.read.xml import Element, parse

_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_NETWORK, _OPENFABRICS = "2", "3"


@dataclass
class _Found:
    """What was met so far."""

    packages: list[Element] = field(default_factory=list)
    numa: dict[int, Numa] = field(default_factory=dict)
    pci: list[PciDevice] = field(default_factory=list)
    nics: dict[str, list[Element]] = field(default_factory=dict)
    """Network and OpenFabrics objects by PCI address."""
    name: str = ""


@dataclass(frozen=True)
class _Place:
    """Where in the tree we are."""

    socket: int | None = None
    numa: int | None = None
    host_bridge: str | None = None
    parent: str | None = None
    depth: int = 0
    """Bridges above, the host bridge left out."""


def read(text: str) -> Machine:
    """The machine that the XML describes."""
    root = parse(text)
    if root.tag != "topology":
        raise BadTopology(f"the XML's root is <{root.tag:.20}>, hwloc's is <topology>")
    if not root.get("version", "1.0").startswith(("2.", "3.")):
        raise BadTopology(
            f"hwloc XML of version {root.get('version', '1'):.10}; braid reads 2 and 3"
        )
    found = _Found()
    for child in root:
        _walk(found, child, _Place())
    if not found.numa and not found.pci:
        raise BadTopology("the hwloc XML has neither NUMA nodes nor PCI devices")
    model = next((_infos(package).get("CPUModel", "") for package in found.packages), "")
    return with_paths(
        Machine(
            Source("hwloc"),
            name=found.name,
            cpu=Cpu(model, len(found.packages) or None),
            numa=[found.numa[index] for index in sorted(found.numa)],
            pci=found.pci,
            gpus=_gpus(found.pci),
            nics=[_nic(found, at, systems) for at, systems in found.nics.items()],
        )
    )


def _infos(element: Element) -> dict[str, str]:
    return {child.get("name"): child.get("value") for child in element if child.tag == "info"}


def _walk(found: _Found, element: Element, place: _Place) -> None:
    if element.tag != "object":
        return
    enter = {
        "Package": _package,
        "NUMANode": _numa,
        "Bridge": _bridge,
        "PCIDev": _device,
        "OSDev": _system,
    }.get(element.get("type"))
    if enter is not None:
        place = enter(found, element, place)
    found.name = found.name or _infos(element).get("HostName", "")
    # Memory objects come first, so that siblings below know their node.
    children = sorted(element, key=lambda child: child.get("type") != "NUMANode")
    for child in children:
        _walk(found, child, place)
        if child.get("type") == "NUMANode" and place.numa is None:
            place = replace(place, numa=whole(child.get("os_index")))


def _package(found: _Found, element: Element, _: _Place) -> _Place:
    found.packages.append(element)
    return _Place(whole(element.get("os_index")))


def _numa(found: _Found, element: Element, place: _Place) -> _Place:
    index = whole(element.get("os_index"))
    if index is not None and index >= 0:
        memory = number(element.get("local_memory"))
        gib = round(memory / 2**30, 1) if memory else None
        cpus = cpulist_of_mask(element.get("cpuset"))
        found.numa[index] = Numa(index, cpus, gib, place.socket)
    return place


def _bridge(found: _Found, element: Element, place: _Place) -> _Place:
    if element.get("bridge_type").startswith("0-"):  # the host's own
        name = "pci" + element.get("bridge_pci").partition(":[")[0]
        first = element.get("bridge_pci").partition("[")[2][:2]
        return replace(place, host_bridge=f"{name}:{first}")
    kinds: tuple[PciKind, ...] = ("root_port", "switch", "port")
    kind = kinds[0] if place.depth == 0 else kinds[1 if place.depth % 2 else 2]
    device = _pci(element, kind, place)
    found.pci.append(device)
    return replace(place, parent=device.address, depth=place.depth + 1)


def _device(found: _Found, element: Element, place: _Place) -> _Place:
    match = _PCI_TYPE.match(element.get("pci_type"))
    code, vendor = (f"0x{match[1]}", f"0x{match[2]}") if match else ("", "")
    device = _pci(element, kind_of(code, vendor), place)
    found.pci.append(device)
    return replace(place, parent=device.address)


def _pci(element: Element, kind: PciKind, place: _Place) -> PciDevice:
    here = address(element.get("pci_busid"))
    if here is None:
        raise BadTopology(f"a PCI object has the busid '{element.get('pci_busid'):.20}'")
    match = _PCI_TYPE.match(element.get("pci_type"))
    code, vendor, device = (f"0x{part.lower()}" for part in match.groups()) if match else ("",) * 3
    name = _infos(element).get("PCIDevice", "")
    numa, bridge = place.numa, place.host_bridge
    link = PcieLink(gbps=max(number(element.get("pci_link_speed")) or 0.0, 0.0))
    return PciDevice(here, kind, place.parent, bridge, numa, link, code, vendor, device, name)


def _system(found: _Found, element: Element, place: _Place) -> _Place:
    if element.get("osdev_type") in (_NETWORK, _OPENFABRICS) and place.parent:
        found.nics.setdefault(place.parent, []).append(element)
    return place


def _gpus(devices: list[PciDevice]) -> list[Gpu]:
    """Accelerators only: a laptop's or a server's display adapter runs no collective."""
    ours = [d for d in devices if is_accelerator(d.class_code, d.vendor)]
    return [
        Gpu(f"GPU{i}", _model(device), pci=device.address, numa=device.numa)
        for i, device in enumerate(ours)
    ]


def _model(device: PciDevice) -> str:
    """As the driver says it; hwloc's own name has the chip's in it: "GH100 [H100 SXM5 80GB]"."""
    return gpu_name(device.vendor, device.device) or device.name


def _nic(found: _Found, at: str, systems: list[Element]) -> Nic:
    """One per PCI device, named by its RDMA device where it has one."""
    device = next(device for device in found.pci if device.address == at)
    rdma = [x.get("name") for x in systems if x.get("osdev_type") == _OPENFABRICS]
    plain = [x.get("name") for x in systems if x.get("osdev_type") == _NETWORK]
    kind: NicKind = "ethernet"
    if rdma:
        kind = "infiniband" if device.class_code.startswith("0x0207") else "roce"
    name = (rdma or plain)[0] or at
    return Nic(name, kind, at, device.numa, interfaces=plain if rdma else [])

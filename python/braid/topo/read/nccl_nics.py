"""NICs in NCCL's topology: what kind each is, ports, and devices that NCCL made one of."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from braid.topo.facts import Nic, NicKind, PciDevice
from braid.topo.numbers import number
from braid.topo.pci_class import AMAZON, MELLANOX, SLINGSHOT
from braid.topo.read.xml import Element

_BY_NAME: tuple[tuple[re.Pattern[str], NicKind], ...] = (
    (re.compile(r"rdmap|efa", re.IGNORECASE), "efa"),
    (re.compile(r"ib[ps]\d|hfi", re.IGNORECASE), "infiniband"),
    (re.compile(r"roce", re.IGNORECASE), "roce"),
)
_MOST_GBIT = 10_000.0
_LARGEST_COUNT = 0xFFFF
"""A guid up to here, at port 0, is the number of a socket's interface, which has no guid."""


@dataclass
class Nics:
    """What was met so far."""

    by_name: dict[str, Nic] = field(default_factory=dict)
    _ports: dict[str, set[str]] = field(default_factory=dict)

    def add_element(self, nic: Element, pci: PciDevice | None, numa: int | None) -> None:
        """The interfaces below a nic element; one that is not on PCI stands under every cpu."""
        for net in nic:
            if net.tag != "net":
                continue
            for name, gbit in _parts(net):
                self._add(name, gbit, net, pci, numa)

    def _add(
        self, name: str, gbit: float, net: Element, pci: PciDevice | None, numa: int | None
    ) -> None:
        port, at = net.get("port"), pci.address if pci else None
        known = self.by_name.get(name)
        if known is None:
            near = numa if pci else None
            kind = _kind(net, name, pci)
            # NCCL lists none that is down.
            self.by_name[name] = Nic(name, kind, at, near, gbit or None, is_up=True)
        elif at is not None and known.pci == at and port not in self._ports[name]:
            total = (known.gbit or 0.0) + gbit
            self.by_name[name] = replace(known, gbit=total or None, ports=known.ports + 1)
        self._ports.setdefault(name, set()).add(port)

    def add_device(self, pci: PciDevice, numa: int | None) -> None:
        """A NIC of which only the PCI device is told: it is named by its address."""
        self.by_name.setdefault(pci.address, Nic(pci.address, _kind_on_pci(pci), pci.address, numa))


def _parts(net: Element) -> Iterator[tuple[str, float]]:
    """Name and Gbit/s of each device: "mlx5_0+mlx5_1" are two that NCCL made one of."""
    names = [part for part in net.get("name").split("+") if part]
    for name in names:
        yield name, _gbit(net) / len(names)


def _gbit(net: Element) -> float:
    """NCCL writes Mbit/s; more than any NIC has are kbit/s, as some plugins write."""
    gbit = max(number(net.get("speed")) or 0.0, 0.0) / 1000
    return gbit if gbit <= _MOST_GBIT else gbit / 1000


def _kind(net: Element, name: str, pci: PciDevice | None) -> NicKind:
    """What the device, its name and its numbers say. Unknown: RDMA, or at least memory that GPUs
    and the NIC both reach, and no more is told.
    """
    told = _kind_on_pci(pci) if pci else "unknown"
    if told in ("efa", "infiniband", "ethernet"):
        return told
    if named := next((kind for pattern, kind in _BY_NAME if pattern.match(name)), None):
        return named
    guid, has_port, is_direct = _guid(net), net.get("port") != "0", net.get("gdr") == "1"
    if guid > _LARGEST_COUNT or (guid and has_port):
        return "roce" if pci and pci.vendor != SLINGSHOT else "unknown"
    return told if is_direct else "ethernet"


def _kind_on_pci(pci: PciDevice) -> NicKind:
    if pci.vendor == AMAZON and pci.device:
        return "efa" if pci.device.startswith("0xefa") else "ethernet"
    if pci.class_code.startswith("0x0207"):
        return "infiniband"
    return "roce" if pci.vendor == MELLANOX else "unknown"


def _guid(net: Element) -> int:
    text = net.get("guid").removeprefix("0x")
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{1,16}", text) else 0

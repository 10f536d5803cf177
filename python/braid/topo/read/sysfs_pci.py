"""PCI devices out of /sys/bus/pci: those that move data, and the bridges above them.

The resolved path of a device is its place in the tree:
/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 is a device
below a downstream port, an upstream port (the switch) and a root port. What kind of port a bridge
is, its configuration space would tell, but only root may read that: counting from the root port
says the same, as a switch is always two bridges deep.
"""

import struct

from braid.topo.facts import PciDevice, PcieLink, PciKind
from braid.topo.numbers import address, node, number
from braid.topo.pci_class import kind_of
from braid.topo.read.tree import Tree

_DEVICES = "/sys/bus/pci/devices"
_MOVES_DATA = {"gpu", "nic", "nvswitch", "nvme"}
_MOST_LANES = 32

# PCI Express base specification: extended capabilities, and access control services.
_FIRST_EXTENDED = 0x100
_ACS = 0x000D
_ACS_CONTROL = 6
_REDIRECTS = 0x4 | 0x8  # requests, completions


def read_pci(tree: Tree) -> list[PciDevice]:
    """Devices and bridges, bridges before what hangs on them."""
    found: dict[str, PciDevice] = {}
    for name in tree.names(_DEVICES):
        code, vendor = tree.read(f"{_DEVICES}/{name}/class"), tree.read(f"{_DEVICES}/{name}/vendor")
        if kind_of(code, vendor) in _MOVES_DATA and address(name):
            _add_with_bridges(tree, name, found)
    return list(found.values())


def _add_with_bridges(tree: Tree, name: str, found: dict[str, PciDevice]) -> None:
    parts = tree.resolve(f"{_DEVICES}/{name}").split("/")
    chain = [part for part in parts if address(part)] or [name]
    host_bridge = next((part for part in parts if part.startswith("pci")), None)
    parent = None
    for depth, part in enumerate(chain):
        here = address(part) or part
        if here not in found:
            found[here] = _device(tree, part, parent, host_bridge, depth)
        parent = here


def _device(
    tree: Tree, name: str, parent: str | None, host_bridge: str | None, depth: int
) -> PciDevice:
    base = f"{_DEVICES}/{name}"
    code, vendor = tree.read(f"{base}/class"), tree.read(f"{base}/vendor")
    kind = kind_of(code, vendor)
    return PciDevice(
        address(name) or name,
        _port_kind(depth) if kind == "bridge" else kind,
        parent,
        host_bridge,
        node(tree.read(f"{base}/numa_node")),
        read_link(tree, base),
        code,
        vendor,
        tree.read(f"{base}/device"),
        redirects_peers=_redirects(tree.read_bytes(f"{base}/config")) if kind == "bridge" else None,
    )


def _port_kind(depth: int) -> PciKind:
    return "root_port" if depth == 0 else "switch" if depth % 2 else "port"


def read_link(tree: Tree, base: str) -> PcieLink:
    """A device's link; the kernel says "Unknown" and 255 lanes where there is none."""

    def lanes(which: str) -> int:
        width = tree.integer(f"{base}/{which}_link_width") or 0
        return width if 0 < width <= _MOST_LANES else 0

    def speed(which: str) -> float:
        return max(number(tree.read(f"{base}/{which}_link_speed")) or 0.0, 0.0)

    return PcieLink(speed("current"), lanes("current"), speed("max"), lanes("max"))


def _redirects(config: bytes) -> bool | None:
    """Whether access control redirects peers; None when only the first part could be read."""
    if len(config) <= _FIRST_EXTENDED:
        return None
    offset, steps = _FIRST_EXTENDED, 0
    while offset and offset + 8 <= len(config) and steps < 64:
        header = struct.unpack_from("<I", config, offset)[0]
        if header & 0xFFFF == _ACS:
            return bool(struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0] & _REDIRECTS)
        offset, steps = header >> 20, steps + 1
    return False

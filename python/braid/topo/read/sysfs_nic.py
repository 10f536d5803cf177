"""NICs out of /sys/class: RDMA devices first, then interfaces that belong to none of them."""

import re

from braid.topo.facts import Nic, NicKind
from braid.topo.numbers import address, node, number
from braid.topo.read.tree import Tree

_INFINIBAND = "/sys/class/infiniband"
_NET = "/sys/class/net"
_ROUTES = "/proc/net/route"
_ACTIVE = 4
_LANES = re.compile(r"\((.*)\)")
_EVERYWHERE = "00000000"


def read_nics(tree: Tree) -> list[Nic]:
    """Every NIC. Of virtual interfaces only the one with the default route counts."""
    outward = _default_interfaces(tree)
    rdma = [_rdma(tree, name, outward) for name in tree.names(_INFINIBAND)]
    taken = {interface for nic in rdma for interface in nic.interfaces}
    plain = [
        _plain(tree, name, outward)
        for name in tree.names(_NET)
        if name not in taken and (name in outward or tree.exists(f"{_NET}/{name}/device"))
    ]
    known = {nic.name for nic in rdma}
    return rdma + [nic for nic in plain if nic.name not in known]


def _default_interfaces(tree: Tree) -> set[str]:
    """The interface of the default route, and what a bond of that name is made of."""
    rows = [line.split() for line in tree.read(_ROUTES).splitlines()[1:]]
    found = {row[0] for row in rows if len(row) > 1 and row[1] == _EVERYWHERE}
    for name in list(found):
        found.update(tree.read(f"{_NET}/{name}/bonding/slaves").split())
    return found


def _pci(tree: Tree, base: str) -> str | None:
    """The PCI device behind a class entry; virtio and others stand one level below theirs."""
    parts = tree.resolve(f"{base}/device").split("/")
    return next((found for part in reversed(parts) if (found := address(part))), None)


def _rdma(tree: Tree, name: str, outward: set[str]) -> Nic:
    base = f"{_INFINIBAND}/{name}"
    ports = [f"{base}/ports/{port}" for port in tree.names(f"{base}/ports")]
    up = [port for port in ports if (number(tree.read(f"{port}/state")) or 0) == _ACTIVE]
    rates = [tree.read(f"{port}/rate") for port in (up or ports)]
    lanes = _LANES.search(rates[0]) if rates else None
    interfaces = tree.names(f"{base}/device/net")
    return Nic(
        name,
        _rdma_kind(tree, base, ports),
        _pci(tree, base),
        node(tree.read(f"{base}/device/numa_node")),
        sum(number(rate) or 0.0 for rate in rates) or None,
        max(len(up), 1),
        lanes[1] if lanes else "",
        bool(up),
        any(interface in outward for interface in interfaces),
        interfaces,
    )


def _rdma_kind(tree: Tree, base: str, ports: list[str]) -> NicKind:
    if tree.resolve(f"{base}/device/driver").endswith("/efa"):
        return "efa"
    layer = tree.read(f"{ports[0]}/link_layer") if ports else ""
    return "infiniband" if layer == "InfiniBand" else "roce" if layer == "Ethernet" else "unknown"


def _plain(tree: Tree, name: str, outward: set[str]) -> Nic:
    base = f"{_NET}/{name}"
    mbit = tree.integer(f"{base}/speed") or 0  # -1 where the driver has none
    return Nic(
        name,
        "ethernet",
        _pci(tree, base),
        node(tree.read(f"{base}/device/numa_node")),
        mbit / 1000 if mbit > 0 else None,
        is_up=tree.read(f"{base}/operstate") in ("up", "unknown"),
        has_default_route=name in outward,
    )

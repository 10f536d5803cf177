"""Where each GPU and NIC is: its NUMA node, and which devices it shares PCIe switches with.

Sources without a PCIe tree tell paths, and seldom a NIC's node. Devices that meet below the CPU
(PIX, PXB) hang on the same switches; a device without a node is on that of its nearest neighbour,
unless only the link between sockets leads there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braid.topo.facts import Gpu, Nic
from braid.topo.look import View
from braid.topo.words import distance

_ONE_SWITCH = distance("PIX")
_BELOW_CPU = distance("PXB")
_SAME_NODE = distance("NODE")


@dataclass(frozen=True)
class Place:
    """Of one device."""

    device: str
    numa: int | None
    """The node that is told, else the one that paths lead to."""
    is_told: bool
    switches: int | None
    """The number of a set of PCIe switches, the same for all devices that meet there; None: the
    device shares none."""


def places(view: View) -> list[Place]:
    """Of every device, GPUs first."""
    found = {}
    count = 0
    for group in groups(view):
        numa, switches = node_of(view, group), count if len(group) > 1 else None
        count += len(group) > 1
        for end in group:
            found[end.name] = Place(end.name, numa, end.numa is not None, switches)
    return [found[end.name] for end in view.machine.ends]


def groups(view: View, ends: Sequence[Gpu | Nic] | None = None) -> list[list[Gpu | Nic]]:
    """Devices that meet below the CPU, in order of their first one; all devices, or these."""
    return _joined(view, view.machine.ends if ends is None else ends, _BELOW_CPU)


def below_one_switch(view: View, group: Sequence[Gpu | Nic]) -> list[list[Gpu | Nic]]:
    """A group's parts whose members meet at a single switch."""
    return _joined(view, group, _ONE_SWITCH)


def _joined(view: View, ends: Sequence[Gpu | Nic], most: int) -> list[list[Gpu | Nic]]:
    """Sets of devices that are no farther apart, directly or over others: where NVLink joins two
    GPUs, nvidia-smi hides their path, and only the NICs below their switch tell of it.
    """
    found: list[list[Gpu | Nic]] = []
    for end in ends:
        near = [g for g in found if any(distance(view.path(end.name, x.name)) <= most for x in g)]
        if not near:
            found.append([end])
            continue
        near[0].append(end)
        for other in near[1:]:
            near[0].extend(other)
            found.remove(other)
    order = {end.name: i for i, end in enumerate(view.machine.ends)}
    return [sorted(group, key=lambda end: order[end.name]) for group in found]


def node_of(view: View, group: Sequence[Gpu | Nic]) -> int | None:
    """The NUMA node of devices that hang on the same switches."""
    told = next((end.numa for end in group if end.numa is not None), None)
    if told is not None:
        return told
    if len(view.machine.numa) == 1:  # then everything is near to it, told or not
        return view.machine.numa[0].index
    known = [end for end in view.machine.ends if end.numa is not None]
    ways = [(distance(view.path(a.name, b.name)), b.numa) for a in group for b in known]
    nearest = min(ways, key=lambda way: way[0], default=None)
    return nearest[1] if nearest and nearest[0] <= _SAME_NODE else None

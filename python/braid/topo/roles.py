"""Which network a NIC belongs to.

A machine has up to four: the backend carries collectives, the frontend the outside world, storage
its own traffic, and the out-of-band network the machine's management. No file says which NIC is
which, so it is concluded: a NIC that shares a PCIe switch with a GPU was put there for it, and so
was the nearest one of a GPU that shares a switch with none; the default route is the frontend's;
1 Gbit/s is management; RDMA that no GPU needs is storage.
"""

import re
from collections.abc import Sequence

from braid.topo.facts import Gpu, Nic, NicRole
from braid.topo.look import View
from braid.topo.words import distance

_MANAGEMENT_GBIT = 1.0
_INTERFACES = re.compile(r"(eth|en[opsxPX]|em\d|bond\d|wl|veth|lo$)")
"""How the kernel names network interfaces, which are no RDMA devices."""
_NEAR = distance("PXB")
_SAME_NODE = distance("NODE")


def is_rdma(nic: Nic) -> bool:
    """By kind. Sources that tell none list RDMA devices, whatever their makers call them."""
    return nic.kind != "ethernet" and not (nic.kind == "unknown" and _INTERFACES.match(nic.name))


def is_near(view: View, nic: Nic) -> bool:
    """Whether the NIC and some GPU meet below the CPU."""
    return any(distance(view.path(gpu.name, nic.name)) <= _NEAR for gpu in view.machine.gpus)


def role(view: View, nic: Nic) -> NicRole:
    """The network of one NIC."""
    if nic.gbit is not None and nic.gbit <= _MANAGEMENT_GBIT:
        return "out-of-band"
    if not is_rdma(nic) and not (nic.kind == "unknown" and is_near(view, nic)):
        return "frontend"  # of an unknown kind and near: GPUs reach it directly, as Google's do
    if is_near(view, nic):
        return "backend"
    if nic.has_default_route or "bond" in nic.name:
        return "frontend"
    rivals = [other for other in view.machine.nics if is_rdma(other)]
    if any(is_near(view, other) for other in rivals):
        return "backend" if _is_needed(view, nic, rivals) else "storage"
    # Nobody is near, as in virtual machines without a PCIe tree: then speed decides.
    return "backend" if _is_fastest(nic, rivals) else "storage"


def _is_needed(view: View, nic: Nic, rivals: Sequence[Nic]) -> bool:
    """Whether a GPU of its NUMA node has none that is nearer: without this one its traffic would
    cross the sockets.
    """

    def far(gpu: Gpu, other: Nic) -> int:
        return distance(view.path(gpu.name, other.name))

    return any(
        _NEAR < far(gpu, nic) <= _SAME_NODE
        and far(gpu, nic) == min(far(gpu, other) for other in rivals)
        for gpu in view.machine.gpus
    )


def _is_fastest(nic: Nic, rivals: Sequence[Nic]) -> bool:
    return (nic.gbit or 0) >= max(other.gbit or 0 for other in rivals)


def roles(view: View) -> dict[str, NicRole]:
    """The network of every NIC."""
    return {nic.name: role(view, nic) for nic in view.machine.nics}

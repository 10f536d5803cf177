"""Which network a NIC belongs to.

A machine has up to four: the backend carries collectives, the frontend the outside world, storage
its own traffic, and the out-of-band network the machine's management. No file says which NIC is
which, so it is concluded: a NIC that shares a PCIe switch with a GPU was put there for it; the
default route is the frontend's; 1 Gbit/s is management; RDMA far from every GPU is storage.
"""

import re
from collections.abc import Sequence

from braid.topo.facts import Nic, NicRole
from braid.topo.look import View
from braid.topo.words import distance

_RDMA = {"infiniband", "roce", "efa"}
_RDMA_NAMES = re.compile(r"(mlx\d|bnxt_re|irdma|hfi|rdmap|ib\w*\d|roce|qedr|rxe)", re.IGNORECASE)
_MANAGEMENT_GBIT = 1.0
_NEAR = distance("PXB")


def is_rdma(nic: Nic) -> bool:
    """By kind; by name where the source tells no kind."""
    return nic.kind in _RDMA or (nic.kind == "unknown" and bool(_RDMA_NAMES.match(nic.name)))


def is_near(view: View, nic: Nic) -> bool:
    """Whether the NIC and some GPU meet below the CPU."""
    return any(distance(view.path(gpu.name, nic.name)) <= _NEAR for gpu in view.machine.gpus)


def role(view: View, nic: Nic) -> NicRole:
    """The network of one NIC."""
    if nic.gbit is not None and nic.gbit <= _MANAGEMENT_GBIT:
        return "out-of-band"
    if not is_rdma(nic):
        return "frontend"
    if is_near(view, nic):
        return "backend"
    if nic.has_default_route or "bond" in nic.name:
        return "frontend"
    rivals = [other for other in view.machine.nics if is_rdma(other)]
    if any(is_near(view, other) for other in rivals):
        return "storage"
    # Nobody is near, as in virtual machines without a PCIe tree: then speed decides.
    return "backend" if _is_fastest(nic, rivals) else "storage"


def _is_fastest(nic: Nic, rivals: Sequence[Nic]) -> bool:
    return (nic.gbit or 0) >= max(other.gbit or 0 for other in rivals)


def roles(view: View) -> dict[str, NicRole]:
    """The network of every NIC."""
    return {nic.name: role(view, nic) for nic in view.machine.nics}

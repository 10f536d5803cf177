"""Networks: what a collective between machines would use, and how far its NICs are."""

from collections.abc import Iterator

from braid.topo.facts import Gpu, Nic
from braid.topo.look import View
from braid.topo.roles import is_near, is_rdma, roles
from braid.topo.verdicts.verdict import Verdict, names
from braid.topo.words import NVIDIA_LEGEND, distance


def no_backend(view: View) -> Iterator[Verdict]:
    """No RDMA for collectives: they would share the frontend network."""
    known = roles(view)
    used = [
        nic for nic in view.machine.nics if known[nic.name] == "frontend" and nic.is_up is not False
    ]
    if view.machine.gpus and used and "backend" not in known.values():
        rate = max((nic.gbit or 0 for nic in used), default=0)
        yield Verdict(
            "frontend",
            "warning",
            f"a collective between machines would use the front-end network ({names(_names(used))}"
            + (f", {rate:g} Gbit/s)" if rate else ")"),
            _names(used),
            "there is no RDMA device for the backend; keep groups inside the machine",
        )


def frontend_among_rdma(view: View) -> Iterator[Verdict]:
    """An RDMA device of another network that NCCL would take too."""
    known = roles(view)
    up = [nic for nic in view.machine.nics if is_rdma(nic) and nic.is_up is not False]
    outside = [nic for nic in up if known[nic.name] in ("frontend", "storage", "out-of-band")]
    if outside and any(known[nic.name] == "backend" for nic in up):
        listed = ",".join(_names(outside))
        yield Verdict(
            "frontend-rdma",
            "warning",
            f"{names(_names(outside))}: RDMA, but near no GPU and of the"
            f" {known[outside[0].name]} network, which collectives would use as well",
            _names(outside),
            f"NCCL_IB_HCA=^={listed}",  # without the second sign NCCL matches beginnings
        )


def backend_down(view: View) -> Iterator[Verdict]:
    """NICs near a GPU that have no link."""
    known = roles(view)
    down = [n for n in view.machine.nics if n.is_up is False and known[n.name] == "backend"]
    if down:
        text = f"{names(_names(down))}: the link is down"
        yield Verdict(
            "nic-down", "warning", text, _names(down), "look at cable, port and subnet manager"
        )


def far_nics(view: View) -> Iterator[Verdict]:
    """GPUs without a NIC below their switch, where others have one; or only across sockets."""
    known = roles(view)
    backend = [nic for nic in view.machine.nics if known[nic.name] == "backend"]
    if not backend:
        return
    someone_is_near = any(is_near(view, nic) for nic in backend)
    far = [gpu for gpu in view.machine.gpus if _is_far(view, gpu, backend, someone_is_near)]
    if far:
        nearest = min((view.path(far[0].name, nic.name) for nic in backend), key=distance)
        where = (
            f"{NVIDIA_LEGEND[nearest]} ({nearest})" if nearest else _beyond(view, far[0], backend)
        )
        yield Verdict(
            "nic-far",
            "warning",
            f"{names(gpu.name for gpu in far)}: the nearest backend NIC is {where}",
            [gpu.name for gpu in far],
            "traffic crosses the CPU; with NVLink NCCL goes through a nearer GPU (PXN)",
        )


def _is_far(view: View, gpu: Gpu, backend: list[Nic], someone_is_near: bool) -> bool:
    paths = [view.path(gpu.name, nic.name) for nic in backend]
    if someone_is_near:
        return min(map(distance, paths)) > distance("PXB")
    return None not in paths and min(map(distance, paths)) >= distance("SYS")


def _beyond(view: View, gpu: Gpu, backend: list[Nic]) -> str:
    """Of a GPU from which no path is told. Below one switch it would be."""
    are_on_pci = gpu.pci in view.pci and any(nic.pci in view.pci for nic in backend)
    return "beyond the CPU; the source tells no NUMA node" if are_on_pci else "nowhere to be seen"


def _names(nics: list[Nic]) -> list[str]:
    return [nic.name for nic in nics]


QUESTIONS = (no_backend, frontend_among_rdma, backend_down, far_nics)

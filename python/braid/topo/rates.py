"""What each link of a machine can carry, and what a record says it did.

One row per device and far end, one direction. A number is `specified` when the device or the data
sheet of its model says it, `assumed` when it rests on what most devices of its kind do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from braid.topo.facts import CPU, SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink
from braid.topo.look import View
from braid.topo.measured import Measured
from braid.topo.pairs import by_link
from braid.topo.tables import (
    nccl_pcie_gbps,
    pcie_gbps,
    pcie_generation,
    pcie_of_model,
    pcie_speed,
    spec_for,
)

RateKind = Literal["nvlink", "xgmi", "c2c", "pcie", "nic", "socket"]
Basis = Literal["specified", "assumed", "unknown"]

NETWORK = "network"
"""The far end of a NIC."""
_SLOWEST = 2.5
"""GT/s of PCIe 1."""
_NIC_NAMES = {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "ethernet": "Ethernet"}


@dataclass(frozen=True)
class Rate:
    """One link, or bundle of equal links."""

    a: str
    b: str
    kind: RateKind
    name: str
    """What it is: "NVLink 4", "PCIe 5 x16", "InfiniBand 4X NDR"."""
    basis: Basis
    count: int = 1
    theoretical_gbps: float | None = None
    """One direction, all `count` links together. Duplex is twice this, Gbit/s eight times."""
    duplex_gbps: float | None = None
    gbit: float | None = None
    nccl_gbps: float | None = None
    """What NCCL reckons with, one direction."""
    measured_gbps: float | None = None
    measured_how: str = ""


def _rated(rate: Rate, gbps: float | None) -> Rate:
    """The row with its numbers, or without any where nobody tells them."""
    if gbps is None:
        return replace(rate, basis="unknown")
    return replace(
        rate,
        theoretical_gbps=round(gbps, 3),
        duplex_gbps=round(2 * gbps, 3),
        gbit=round(8 * gbps, 3),
    )


def _gpu_links(view: View, gpu: Gpu) -> Iterator[Rate]:
    for bundle in view.links_of(gpu.name):
        yield _bundle(gpu, bundle)
    if own := view.link_to_cpu(gpu.name):
        yield _to_cpu(gpu, own)


def _to_cpu(gpu: Gpu, own: GpuLink) -> Rate:
    """C2C, or on POWER9 NVLinks of the GPU's own kind."""
    if own.kind != "c2c":
        return replace(_bundle(gpu, own), kind="c2c")
    gbps = own.gbps_each * own.count if own.gbps_each else None
    return _rated(Rate(gpu.name, CPU, "c2c", "C2C", "specified", own.count), gbps)


def _bundle(gpu: Gpu, bundle: GpuLink) -> Rate:
    """A bundle as one of its ends sees it."""
    spec = spec_for(gpu, bundle.kind)
    each = bundle.gbps_each or (spec.gbps_each if spec else None)
    is_assumed = bundle.gbps_each is None and (spec is None or spec.links == 0)
    far = bundle.b if bundle.a == gpu.name else bundle.a
    basis: Basis = "assumed" if is_assumed else "specified"
    name = spec.name if spec else {"nvlink": "NVLink", "xgmi": "xGMI", "c2c": "C2C"}[bundle.kind]
    rate = Rate(gpu.name, far, bundle.kind, name, basis, bundle.count)
    if spec and spec.nccl_gbps_each:
        rate = replace(rate, nccl_gbps=round(spec.nccl_gbps_each * bundle.count, 1))
    return _rated(rate, each * bundle.count if each else None)


def link_words(link: PcieLink) -> str:
    """ "PCIe 5 x16"; what only its rate tells, "PCIe"; "" where nothing is told."""
    if link.gts and link.width:
        return f"PCIe {pcie_generation(link.gts) or '?'} x{link.width}"
    return "PCIe" if link.gbps else ""


def link_gbps(link: PcieLink) -> float | None:
    """What one PCIe link carries."""
    return pcie_gbps(link.gts, link.width) or link.gbps or None


def _awake(device: PciDevice) -> PcieLink:
    """A device's link as it is under load: idle GPUs slow theirs down. Lanes are trained once."""
    link = device.link
    return replace(link, gts=max(link.gts, link.max_gts)) if device.kind == "gpu" else link


def is_fiction(device: PciDevice) -> bool:
    """Whether a bridge's speed is none: those of virtual machines, and the uplinks of some
    switches, call themselves 2.5 GT/s whatever they carry.
    """
    return device.kind in ("switch", "port", "root_port") and 0 < device.link.gts <= _SLOWEST


def _pcie(view: View, end: Gpu | Nic) -> Iterator[Rate]:
    """The narrowest link between a device and the CPU, as NCCL reckons."""
    found = []
    for device in view.chain(end.pci):
        # A port tells the link below it, which is the next device's own.
        if not is_fiction(device) and device.kind not in ("port", "root_port"):
            link = _awake(device)
            if (gbps := link_gbps(link)) is not None:
                found.append((gbps, link, device.address))
    if found:
        gbps, link, address = min(found, key=lambda one: one[0])
        where = "" if address == end.pci else ", at a bridge above"
        nccl = nccl_pcie_gbps(link.gts, link.width)
        name = link_words(link) + where
        rate = Rate(end.name, CPU, "pcie", name, "specified", nccl_gbps=nccl)
        yield _rated(rate, gbps)
    elif isinstance(end, Gpu) and not _is_joined_to_all(view, end):
        yield from _pcie_by_model(end)


def _is_joined_to_all(view: View, gpu: Gpu) -> bool:
    """Whether links lead to every other GPU, so that nothing between them goes over PCIe."""
    others = [other.name for other in view.machine.gpus if other.name != gpu.name]
    return bool(view.links_of(gpu.name)) and all(view.links_between(gpu.name, o) for o in others)


def _pcie_by_model(gpu: Gpu) -> Iterator[Rate]:
    """Of a GPU that PCIe joins to some others, from a source that tells none of it."""
    generation = pcie_of_model(gpu.model)
    if generation:
        name = f"PCIe {generation} x16, by the model"
        speed = pcie_speed(generation)
        rate = Rate(gpu.name, CPU, "pcie", name, "assumed", nccl_gbps=nccl_pcie_gbps(speed, 16))
        yield _rated(rate, pcie_gbps(speed, 16))


def _nic(nic: Nic) -> Iterator[Rate]:
    if nic.gbit:
        words = (_NIC_NAMES.get(nic.kind, "network"), nic.lanes)
        name = " ".join(word for word in words if word)
        rate = Rate(nic.name, NETWORK, "nic", name, "specified", nic.ports)
        yield _rated(rate, nic.gbit / 8)


def _all(machine: Machine) -> Iterator[Rate]:
    view = View(machine)
    for gpu in machine.gpus:
        yield from _gpu_links(view, gpu)
    for end in machine.ends:
        yield from _pcie(view, end)
    for nic in machine.nics:
        yield from _nic(nic)
    if machine.cpu.socket_gbps is not None and len(machine.numa) > 1:
        rate = Rate(CPU, CPU, "socket", "between sockets", "assumed")
        yield _rated(rate, machine.cpu.socket_gbps)


def rates(machine: Machine, measured: Sequence[Measured] = ()) -> list[Rate]:
    """Every link of the machine, with what was measured beside what is specified."""
    view = View(machine)
    known = list(by_link(view, measured))
    devices = {one.device for one in known} - {None}
    of_device = {
        name: [one for one in known if one.device in (None, name)] for name in (*devices, None)
    }
    return [
        _with_measured(rate, of_device.get(rate.a, of_device[None]), rate.a in view.gpus)
        for rate in _all(machine)
    ]


def _with_measured(rate: Rate, measured: Sequence[Measured], is_gpu: bool) -> Rate:
    """With the first rate that was measured of this link; `measured` has those of its device, and
    of all links of a kind.

    What was measured of a GPU's links together says nothing about a single one to a peer, and a
    way between a GPU and the host nothing about a NIC's.
    """
    is_part = rate.kind in ("nvlink", "xgmi") and rate.b != SWITCH
    for one in measured:
        is_pair = is_part and one.kind == "pair" and one.peer == rate.b
        is_whole = one.kind == rate.kind and not is_part and (is_gpu or rate.kind != "pcie")
        if is_pair or is_whole:
            return replace(rate, measured_gbps=one.gbps, measured_how=one.how)
    return rate

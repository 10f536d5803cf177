"""Short descriptions of devices, the same in every view."""

from braid.topo.facts import Gpu, Machine, Nic, PciDevice, PcieLink
from braid.topo.numbers import count_cpus
from braid.topo.rates import is_fiction, link_gbps, link_words
from braid.topo.tables import pcie_generation

_NIC_NAMES = {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA", "ethernet": "Ethernet"}
_KINDS = {
    "root_port": "root port",
    "port": "downstream port",
    "nvswitch": "NVSwitch",
    "nvme": "NVMe",
    "other": "PCI device",
}


def heading(machine: Machine) -> str:
    """One line: the machine, its processors, its GPUs."""
    parts = [machine.name or "machine"]
    sockets = machine.cpu.sockets
    if sockets or machine.cpu.model:
        count = f"{sockets} x " if sockets and sockets > 1 else ""
        parts.append(f"{count}{machine.cpu.model or 'processor'}")
    parts.append(gpus(machine))
    if machine.nics:
        parts.append(f"{len(machine.nics)} NIC{'s' if len(machine.nics) > 1 else ''}")
    source = machine.source.format
    return ", ".join(parts) + f"  ({source if source == 'live' else f'from {source}'})"


def gpus(machine: Machine) -> str:
    """ "8 x NVIDIA H200"; "no GPU"."""
    if not machine.gpus:
        return "no GPU"
    models = sorted({gpu.model or f"GPU {gpu.arch}".strip() for gpu in machine.gpus})
    return f"{len(machine.gpus)} x {' / '.join(models)}"


def pcie(link: PcieLink) -> str:
    """ "PCIe 5 x8 of x16, 31.5 GB/s"; "" where nothing is told."""
    words, gbps = link_words(link), link_gbps(link)
    if link.gts and link.width and link.gts < link.max_gts:
        words += f" of generation {pcie_generation(link.max_gts)}"
    if link.gts and 0 < link.width < link.max_width:
        words += f" of x{link.max_width}"
    return f"{words}, {gbps:.1f} GB/s" if gbps else words


def gpu(one: Gpu, device: PciDevice | None) -> str:
    """A GPU in the tree."""
    memory = f"{one.memory_gib:g} GiB" if one.memory_gib else ""
    cut = f"MIG {', '.join(one.mig)}" if one.mig else ""
    return _joined(one.name, one.model or one.arch, memory, cut, _place(one.pci, device))


def nic(one: Nic, device: PciDevice | None, role: str) -> str:
    """A NIC in the tree."""
    address = None if one.pci == one.name else one.pci
    return _joined(one.name, network(one), role, _state(one), _place(address, device))


def network(one: Nic) -> str:
    """ "InfiniBand 4X NDR 400 Gbit/s"."""
    ports = f"{one.ports} ports" if one.ports > 1 else ""
    rate = f"{one.gbit:g} Gbit/s" if one.gbit else ""
    return " ".join(filter(None, (_NIC_NAMES.get(one.kind, ""), one.lanes, ports, rate)))


def _state(one: Nic) -> str:
    return "DOWN" if one.is_up is False else ""


def pci(device: PciDevice) -> str:
    """Anything else on PCI."""
    kind = _KINDS.get(device.kind, device.kind)
    redirects = "ACS redirects peers" if device.redirects_peers else ""
    link = "" if is_fiction(device) else pcie(device.link)
    return _joined(f"{kind} {device.address}", device.name, link, redirects)


def numa(index: int, cpus: str, memory_gib: float | None) -> str:
    """A NUMA node."""
    count = f"CPUs {cpus} ({count_cpus(cpus)})" if cpus else ""
    return _joined(f"NUMA node {index}", count, f"{memory_gib:g} GiB" if memory_gib else "")


def _place(address: str | None, device: PciDevice | None) -> str:
    return _joined(address or "", pcie(device.link) if device else "")


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)

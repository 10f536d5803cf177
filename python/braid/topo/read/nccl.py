"""NCCL's topology, as it writes it to NCCL_TOPO_DUMP_FILE and reads it from NCCL_TOPO_FILE.

    system > cpu > pci > ... > pci > gpu > nvlink, c2c     RCCL writes xgmi, and version 2
                               pci > nic > net
    system > cpu > nic > net                               an interface that is not on PCI

A `pci` of class 0x0604 is a whole switch: NCCL leaves root ports and downstream ports out. Files
that clouds give to their virtual machines are partial: they have no more than the `pci` elements,
and NCCL finds names and links on the machine. GPUs and NICs are counted by PCI class then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from braid.topo.errors import BadTopology
from braid.topo.facts import (
    LINKS_NOT_TOLD,
    Cpu,
    Machine,
    Numa,
    PciDevice,
    PcieLink,
    PciKind,
    Source,
)
from braid.topo.numbers import address, cpulist_of_mask, node, number, whole
from braid.topo.paths import with_paths
from braid.topo.pci_class import kind_of, may_be_accelerator
from braid.topo.read import nccl_links
from braid.topo.read.nccl_gpus import Gpus
from braid.topo.read.nccl_nics import Nics
from braid.topo.read.xml import Element, parse
from braid.topo.tables import socket_gbps

_VERSIONS = ("1", "2")
"""NCCL's, and RCCL's, whose gpu elements tell the architecture too."""
_NO_LANES = 255
"""What the kernel says of a link that is none."""


@dataclass
class _Found:
    """What was met so far."""

    numa: dict[int, Numa] = field(default_factory=dict)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    gpus: Gpus = field(default_factory=Gpus)
    nics: Nics = field(default_factory=Nics)
    num_gpus_by_class: int = 0
    num_nics_by_class: int = 0
    num_unclear: int = 0
    """Devices without a class."""
    gaps: list[str] = field(default_factory=list)


def read(text: str) -> Machine:
    """The machine that the XML describes."""
    root = parse(text)
    if root.tag != "system":
        raise BadTopology(f"the XML's root is <{root.tag:.20}>, NCCL's is <system>")
    if root.get("version", "1") not in _VERSIONS:
        raise BadTopology(
            f"NCCL topology of version {root.get('version'):.20};"
            f" braid reads {' and '.join(_VERSIONS)}"
        )
    cpus, num_hosts = _of_one_host([child for child in root if child.tag == "cpu"])
    found = _Found()
    for cpu in cpus:
        _read_cpu(found, cpu)
    if not found.pci:
        if _num_loose_gpus(root):
            raise BadTopology("gpu elements outside a pci element, which NCCL's files have them in")
        raise BadTopology("0 GPUs: the NCCL topology has none")
    gpus = found.gpus.named()
    names = {at: gpu.name for at, gpu in gpus.items()}
    told = [(names[at], element) for at, element in found.gpus.links]
    gaps = (*_hosts_left_out(num_hosts), *found.gaps, *_parts_left_out(found, root))
    machine = Machine(
        Source("nccl", gaps=[*gaps, *nccl_links.gaps(told)]),
        cpu=_processor(cpus),
        numa=[found.numa[index] for index in sorted(found.numa)],
        pci=list(found.pci.values()),
        gpus=sorted(gpus.values(), key=lambda gpu: int(gpu.name[3:])),
        gpu_links=nccl_links.links(told, names),
        nics=list(found.nics.by_name.values()),
    )
    return with_paths(machine)


def _of_one_host(cpus: list[Element]) -> tuple[list[Element], int]:
    """The processors of the host that has rank 0: where NVLink joins several hosts, NCCL dumps
    them all, and their addresses are the same.
    """
    hosts: dict[str, list[Element]] = {}
    for cpu in cpus:
        hosts.setdefault(cpu.get("host_hash"), []).append(cpu)
    own = next((host for host in hosts.values() if any(map(_has_first_rank, host))), cpus)
    return (own if len(hosts) > 1 else cpus), len(hosts)


def _has_first_rank(element: Element) -> bool:
    if element.tag == "gpu":
        return element.get("rank") == "0"
    return any(map(_has_first_rank, element))


def _hosts_left_out(num_hosts: int) -> Iterable[str]:
    if num_hosts > 1:
        yield f"the NCCL topology is of {num_hosts} hosts; this is the one of rank 0"


def _num_loose_gpus(element: Element) -> int:
    """GPUs that are on no PCI device: where they are nobody knows."""
    here = sum(child.tag == "gpu" for child in element if element.tag != "pci")
    return here + sum(map(_num_loose_gpus, element))


def _parts_left_out(found: _Found, root: Element) -> Iterable[str]:
    what = "a partial NCCL_TOPO_FILE"
    if found.num_gpus_by_class or found.num_nics_by_class:
        yield (
            f"{what}: {_counted(found.num_gpus_by_class, 'GPU')} and"
            f" {_counted(found.num_nics_by_class, 'NIC')} are told by their PCI class alone; NCCL"
            " finds their names, rates and links on the machine"
        )
    if found.num_unclear:
        yield (
            f"{what}: {_counted(found.num_unclear, 'PCI device')} without a class;"
            " NCCL finds out on the machine which of them are GPUs and NICs"
        )
    if not found.gpus.by_address and not found.num_unclear:
        yield f"{what}: it has no GPU; NCCL finds them on the machine"
    if turned := {at for at, link in found.gpus.links if address(link.get("target")) == at}:
        yield f"links of {_counted(len(turned), 'GPU')} end at the GPU itself and are left out"
    if loose := _num_loose_gpus(root):
        yield f"{_counted(loose, 'gpu element')} outside a pci element: left out"
    if _tells_no_links(found):
        yield f"{LINKS_NOT_TOLD}: {what} without any; NCCL finds them on the machine"


def _tells_no_links(found: _Found) -> bool:
    """Whether a file with gpu elements may be a cloud's: what NCCL itself wrote has the GPUs'
    numbers on PCI, too.
    """
    gpus = found.gpus
    has_numbers = all(found.pci[at].device for at in gpus.by_address)
    return len(gpus.by_address) > 1 and gpus.are_told and not gpus.links and not has_numbers


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _processor(cpus: list[Element]) -> Cpu:
    first = cpus[0]
    vendor, model = first.get("vendor", ""), whole(first.get("modelid"))
    name = " ".join(filter(None, (vendor, f"model {model}" if model is not None else "")))
    arch = first.get("arch", "")
    return Cpu(name, None, arch, socket_gbps(arch, vendor, model))


def _read_cpu(found: _Found, cpu: Element) -> None:
    numa = node(cpu.get("numaid"))
    if numa is not None:
        found.numa.setdefault(numa, Numa(numa, cpulist_of_mask(cpu.get("affinity", ""))))
    for child in cpu:
        if child.tag == "pci":
            _read_pci(found, child, None, numa)
        elif child.tag == "nic":
            found.nics.add_element(child, None, numa)


def _read_pci(found: _Found, pci: Element, parent: str | None, numa: int | None) -> None:
    here = address(pci.get("busid"))
    if here is None:
        raise BadTopology(f"a pci element has the busid '{pci.get('busid', ''):.20}'")
    width = whole(pci.get("link_width")) or 0
    device = PciDevice(
        here,
        _kind(pci),
        parent,
        numa=numa,
        link=PcieLink(number(pci.get("link_speed")) or 0.0, 0 if width == _NO_LANES else width),
        class_code=_code(pci, "class"),
        vendor=_code(pci, "vendor"),
        device=_code(pci, "device"),
    )
    device = _added(found, device)
    for child in pci:
        if child.tag == "pci":
            _read_pci(found, child, device.address, numa)
        elif child.tag == "gpu":
            found.gpus.add_element(child, device, numa, _cpus(found, numa))
        elif child.tag == "nic":
            found.nics.add_element(child, device, numa)
    if not any(child.tag in ("pci", "gpu", "nic") for child in pci):
        _read_leaf(found, device, numa)


def _added(found: _Found, device: PciDevice) -> PciDevice:
    """The device among the others. Published files tell one switch several times, once for each of
    its ports, and give one a number that a NIC has: neither is a reason not to read them.
    """
    same = found.pci.get(device.address)
    if same is None:
        return found.pci.setdefault(device.address, device)
    if (same.kind, device.kind, same.parent) == ("switch", "switch", device.parent):
        return same
    if "switch" not in (same.kind, device.kind):
        raise BadTopology(f"PCI device {device.address} is there twice")
    found.gaps.append(f"{device.address} is a {same.kind} and a {device.kind}: one is wrong")
    other = replace(device, address=f"{device.address}-{len(found.pci)}")
    return found.pci.setdefault(other.address, other)


def _code(pci: Element, name: str) -> str:
    """ "0x10de"; files written by hand have "10DE" as well."""
    text = pci.get(name).strip().lower()
    return f"0x{text}" if text and not text.startswith("0x") else text


def _kind(pci: Element) -> PciKind:
    """By what is below it, then by class: not every file has one."""
    below = {child.tag for child in pci}
    kind = kind_of(_code(pci, "class"), _code(pci, "vendor"))
    if "gpu" in below:
        return "gpu"
    if "nic" in below:
        return "nic"
    return "switch" if kind == "bridge" or ("pci" in below and not pci.get("class")) else kind


def _read_leaf(found: _Found, device: PciDevice, numa: int | None) -> None:
    """A device of which nothing else is told."""
    if not device.class_code:
        found.num_unclear += 1
    elif device.kind == "nic":
        found.nics.add_device(device, numa)
        found.num_nics_by_class += 1
    elif may_be_accelerator(device.class_code, device.vendor):
        found.gpus.add_device(device, numa, _cpus(found, numa))
        found.num_gpus_by_class += 1


def _cpus(found: _Found, numa: int | None) -> str:
    return found.numa[numa].cpus if numa is not None else ""

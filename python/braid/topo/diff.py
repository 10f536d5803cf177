"""What differs between two machines that should be alike.

Devices are compared by name (GPU3, mlx5_0): machines of one model number their devices alike.
What differs between any two machines anyway (host names, serial numbers) is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.topo.facts import Gpu, Machine, Nic
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.show.words import network, pcie
from braid.topo.verdicts import verdicts


@dataclass(frozen=True)
class Difference:
    """One thing. A side that lacks it has ""."""

    what: str
    a: str
    b: str


def diff(a: Machine, b: Machine) -> list[Difference]:
    """Everything that differs, devices in order."""
    left, right = _properties(a), _properties(b)
    keys = [*left, *(key for key in right if key not in left)]
    return [
        Difference(key, left.get(key, ""), right.get(key, ""))
        for key in keys
        if left.get(key, "") != right.get(key, "")
    ]


def _properties(machine: Machine) -> dict[str, str]:
    view = View(machine)
    found: dict[str, str] = {}
    for source in (_whole(machine), _gpus(view), _nics(view), _pairs(machine), _said(machine)):
        found.update({what: value for what, value in source if value})
    return found


def _whole(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "CPU model", machine.cpu.model
    yield "sockets", str(machine.cpu.sockets or "")
    yield "driver", machine.source.tools.get("driver", "")
    yield "IOMMU translates", {None: "", True: "yes", False: "no"}[machine.iommu]
    yield "GPUs", str(len(machine.gpus))
    yield "NICs", str(len(machine.nics))
    for node in machine.numa:
        yield f"NUMA node {node.index}, CPUs", node.cpus


def _place(view: View, end: Gpu | Nic) -> Iterator[tuple[str, str]]:
    yield f"{end.name}, PCI address", end.pci or ""
    yield f"{end.name}, NUMA node", "" if end.numa is None else str(end.numa)
    if end.pci in view.pci:
        yield f"{end.name}, PCIe", pcie(view.pci[end.pci].link)


def _gpus(view: View) -> Iterator[tuple[str, str]]:
    for gpu in view.machine.gpus:
        yield gpu.name, gpu.model or gpu.arch or "a GPU"
        yield from _place(view, gpu)
        yield f"{gpu.name}, links to GPUs", str(view.num_links(gpu.name) or "")
        yield f"{gpu.name}, MIG", ", ".join(gpu.mig)


def _nics(view: View) -> Iterator[tuple[str, str]]:
    for nic in view.machine.nics:
        yield nic.name, network(nic) or "a NIC"
        yield from _place(view, nic)
        yield f"{nic.name}, link", {None: "", True: "up", False: "down"}[nic.is_up]


def _pairs(machine: Machine) -> Iterator[tuple[str, str]]:
    words = matrix(machine)
    for i, a in enumerate(words.devices):
        for j in range(i + 1, len(words.devices)):
            yield f"{a} to {words.devices[j]}", words.words[i][j]


def _said(machine: Machine) -> Iterator[tuple[str, str]]:
    for verdict in verdicts(machine):
        if verdict.level == "warning":
            yield f"warning {verdict.code}", verdict.text

"""A machine as an outline: NUMA nodes, host bridges, switches, devices."""

from dataclasses import dataclass, field

from braid.topo.facts import CPU, SWITCH, Gpu, Machine, Nic, PciDevice
from braid.topo.look import View
from braid.topo.places import below_one_switch, groups, node_of
from braid.topo.roles import roles
from braid.topo.show import words
from braid.topo.verdicts import names


@dataclass
class Branch:
    """A line, and the lines below it."""

    label: str
    kind: str = ""
    below: list["Branch"] = field(default_factory=list)


def outline(machine: Machine) -> Branch:
    """The whole machine."""
    return _Outline(machine).root()


class _Outline:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.view = View(machine)
        self.roles = roles(self.view)
        beside = [end for end in machine.ends if end.pci not in self.view.pci]
        self.beside = groups(self.view, beside)
        """Devices beside the PCIe tree, or without one, that share switches."""
        self.children: dict[str | None, list[PciDevice]] = {}
        for device in machine.pci:
            self.children.setdefault(device.parent, []).append(device)

    def root(self) -> Branch:
        top = Branch(words.heading(self.machine), "machine")
        known = [node.index for node in self.machine.numa]
        for node in self.machine.numa:
            label = words.numa(node.index, node.cpus, node.memory_gib)
            top.below.append(Branch(label, "numa", self._on_node(node.index)))
        elsewhere = [
            branch
            for index in self._nodes()
            if index not in known
            for branch in self._on_node(index)
        ]
        if known and elsewhere:
            top.below.append(Branch("NUMA node not told", "numa", elsewhere))
        else:
            top.below += elsewhere
        top.below += self._gpu_links()
        return top

    def _nodes(self) -> list[int | None]:
        """Those of devices, told or concluded."""
        of_pci = [self._node_of_pci(device) for device in self.children.get(None, [])]
        return list(dict.fromkeys([*of_pci, *(node_of(self.view, g) for g in self.beside)]))

    def _node_of_pci(self, device: PciDevice) -> int | None:
        """Of a machine that has one node, everything is near to it, told or not."""
        is_single = len(self.machine.numa) == 1
        return self.machine.numa[0].index if is_single else device.numa

    def _on_node(self, index: int | None) -> list[Branch]:
        """Host bridges near this node, then what is near it and not on PCI."""
        bridges: dict[str | None, list[Branch]] = {}
        for device in self.children.get(None, []):
            if self._node_of_pci(device) == index:
                bridges.setdefault(device.host_bridge, []).append(self._pci(device))
        found = [
            branch
            for bridge, below in bridges.items()
            for branch in ([Branch(f"host bridge {bridge}", "host", below)] if bridge else below)
        ]
        return found + self._not_on_pci(index)

    def _not_on_pci(self, index: int | None) -> list[Branch]:
        """Switches that only paths tell of, and what hangs on them; GPUs' first."""
        here = [group for group in self.beside if node_of(self.view, group) == index]
        here.sort(key=lambda group: not any(isinstance(end, Gpu) for end in group))
        return [branch for group in here for branch in self._group(group)]

    def _group(self, group: list[Gpu | Nic]) -> list[Branch]:
        parts = below_one_switch(self.view, group)
        below = [branch for part in parts for branch in self._part(part, len(parts) > 1)]
        if len(parts) == 1:
            return self._part(group, len(group) > 1)
        return [Branch("PCIe switches, by the paths", "switch", below)]

    def _part(self, part: list[Gpu | Nic], has_switch: bool) -> list[Branch]:
        below = [self._device_beside(end) for end in part]
        is_one = has_switch and len(part) > 1
        return [Branch("PCIe switch, by the paths", "switch", below)] if is_one else below

    def _device_beside(self, end: Gpu | Nic) -> Branch:
        if isinstance(end, Gpu):
            return Branch(words.gpu(end, None), "gpu")
        return Branch(words.nic(end, None, self.roles[end.name]), "nic")

    def _pci(self, device: PciDevice) -> Branch:
        below = [self._pci(child) for child in self.children.get(device.address, [])]
        # Ports say nothing of their own unless something is wrong there.
        if device.kind == "port" and len(below) == 1 and not device.redirects_peers:
            return below[0]
        return self._device(device, below)

    def _device(self, device: PciDevice, below: list[Branch]) -> Branch:
        gpus = [gpu for gpu in self.machine.gpus if gpu.pci == device.address]
        nics = [nic for nic in self.machine.nics if nic.pci == device.address]
        if gpus:
            return Branch(words.gpu(gpus[0], device), "gpu", below)
        if nics:
            first = Branch(words.nic(nics[0], device, self.roles[nics[0].name]), "nic", below)
            first.below += [
                Branch(words.nic(nic, None, self.roles[nic.name]), "nic") for nic in nics[1:]
            ]
            return first
        return Branch(words.pci(device), device.kind, below)

    def _gpu_links(self) -> list[Branch]:
        """One line per kind and size of bundle: "NVSwitch: GPU0-7, 18 NVLinks each"."""
        groups: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
        for link in self.machine.gpu_links:
            far = link.b if link.b in (SWITCH, CPU) else ""
            groups.setdefault((far, link.kind, link.count), []).append((link.a, link.b))
        return [Branch(_bundles(*key, pairs), "link") for key, pairs in groups.items()]


_KIND = {"nvlink": "NVLink", "xgmi": "xGMI link", "c2c": "C2C link"}


def _bundles(far: str, kind: str, count: int, pairs: list[tuple[str, str]]) -> str:
    links = f"{count} {_KIND[kind]}{'s' if count > 1 else ''}"
    if far:
        return f"{far}: {names(a for a, _ in pairs)}, {links} each"
    ends = list(dict.fromkeys(end for pair in pairs for end in pair))
    if len(pairs) == len(ends) * (len(ends) - 1) // 2:
        return f"{links} between every two of {names(ends)}"
    return f"{links} between " + ", ".join(f"{a} and {b}" for a, b in pairs)

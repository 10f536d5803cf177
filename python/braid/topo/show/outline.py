"""A machine as an outline: NUMA nodes, host bridges, switches, devices."""

from dataclasses import dataclass, field

from braid.topo.facts import CPU, SWITCH, Machine, PciDevice
from braid.topo.look import View
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
        self.children: dict[str | None, list[PciDevice]] = {}
        for device in machine.pci:
            self.children.setdefault(device.parent, []).append(device)

    def root(self) -> Branch:
        top = Branch(words.heading(self.machine), "machine")
        known = {node.index for node in self.machine.numa}
        elsewhere_is = (self._nodes() | {None}) - known
        is_single = len(known) == 1  # then everything is near to it, told or not
        for node in self.machine.numa:
            label = words.numa(node.index, node.cpus, node.memory_gib)
            near = {node.index} | (elsewhere_is if is_single else set())
            top.below.append(Branch(label, "numa", self._on_node(near)))
        elsewhere = [] if is_single else self._on_node(elsewhere_is)
        if self.machine.numa and elsewhere:
            top.below.append(Branch("NUMA node not told", "numa", elsewhere))
        else:
            top.below += elsewhere
        top.below += self._gpu_links()
        return top

    def _nodes(self) -> set[int | None]:
        return {owner.numa for owner in (*self.machine.pci, *self.machine.ends)}

    def _on_node(self, nodes: set[int | None]) -> list[Branch]:
        """Host bridges near these nodes, then what is near them and not on PCI."""
        bridges: dict[str | None, list[Branch]] = {}
        for device in self.children.get(None, []):
            if device.numa in nodes:
                bridges.setdefault(device.host_bridge, []).append(self._pci(device))
        found = [
            branch
            for bridge, below in bridges.items()
            for branch in ([Branch(f"host bridge {bridge}", "host", below)] if bridge else below)
        ]
        return found + self._not_on_pci(nodes)

    def _not_on_pci(self, nodes: set[int | None]) -> list[Branch]:
        gpus = [
            Branch(words.gpu(gpu, None), "gpu")
            for gpu in self.machine.gpus
            if gpu.numa in nodes and gpu.pci not in self.view.pci
        ]
        nics = [
            Branch(words.nic(nic, None, self.roles[nic.name]), "nic")
            for nic in self.machine.nics
            if nic.numa in nodes and nic.pci not in self.view.pci
        ]
        return gpus + nics

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

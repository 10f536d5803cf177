"""From a PCIe tree to the path between every two devices.

Two devices meet at the lowest bridge that is above both. If there is one, the switches on the
way say whether it is PIX (at most one) or PXB; if not, they meet in the CPU: PHB under
one host bridge, NODE under two of a NUMA node, SYS across nodes. Sources that do not tell host
bridges apart (NCCL) get PHB within a node, which is also what NCCL calls it.
"""

from collections.abc import Sequence
from dataclasses import replace

from braid.topo.facts import Machine, Path, PathKind, PciDevice
from braid.topo.look import View


def _kind_in_cpu(a: PciDevice, b: PciDevice) -> PathKind | None:
    if a.host_bridge is not None and a.host_bridge == b.host_bridge:
        return "PHB"
    if a.numa is None or b.numa is None:
        return None
    if a.numa != b.numa:
        return "SYS"
    return "PHB" if a.host_bridge is None or b.host_bridge is None else "NODE"


def path_kind(a: Sequence[PciDevice], b: Sequence[PciDevice]) -> PathKind | None:
    """How two devices meet; each is given with the bridges above it, from the device upwards."""
    if not a or not b:
        return None
    above_b = {device.address for device in b}
    meeting = next((device.address for device in a if device.address in above_b), None)
    if meeting is None:
        return _kind_in_cpu(a[-1], b[-1]) or _kind_in_cpu(a[0], b[0])
    crossed: set[str] = set()
    for chain in (a, b):
        for device in chain:
            if device.kind == "switch":
                crossed.add(device.address)
            if device.address == meeting:
                break
    return "PIX" if len(crossed) <= 1 else "PXB"


def with_paths(machine: Machine) -> Machine:
    """The machine with a path between every two of its GPUs and NICs that are on PCI."""
    view = View(machine)
    ends = [end for end in machine.ends if end.pci]
    chains = [list(view.chain(end.pci)) for end in ends]
    paths = []
    for i, a in enumerate(ends):
        for j in range(i + 1, len(ends)):
            kind = path_kind(chains[i], chains[j])
            if kind is not None:
                paths.append(Path(a.name, ends[j].name, kind))
    return replace(machine, paths=paths)

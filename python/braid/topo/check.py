"""Whether a machine's facts fit together; everything that was read passes here once.

What is drawn and computed later relies on it: names are unique, every reference leads somewhere,
the PCIe tree is a tree, numbers are in reach. So no later code asks again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass

from braid.topo.errors import BadTopology
from braid.topo.facts import CPU, SWITCH, Machine
from braid.topo.numbers import spans

MAX_DEVICES = 256
"""Of a kind. More than any machine has, so that no file can keep us busy for long."""
_MAX_PCI = 16384
_MAX_LINKS = 1024
_MAX_GBIT = 1e6
_MAX_DEPTH = 64
_MAX_TEXT = 1000


def _unique(what: str, names: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > 200:
            raise BadTopology(f"{what} has a name of {len(name)} characters")
        if name in seen:
            raise BadTopology(f"{what} {name} is there twice")
        seen.add(name)
    return seen


def _at_most(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise BadTopology(f"{count} {what} are more than the {limit} that braid draws")


def _in_reach(what: str, value: float | None, limit: float = _MAX_GBIT) -> None:
    if value is not None and not 0 <= value <= limit:
        raise BadTopology(f"{what}: {value:g} is out of reach (0 to {limit:g})")


def _texts(value: object) -> Iterator[str]:
    """Every string in a fact."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for text in pair)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif is_dataclass(value):
        for part in fields(value):
            yield from _texts(getattr(value, part.name))


def _check_texts(machine: Machine) -> None:
    """Terminals obey some characters: none of them gets through."""
    own = (machine.source, machine.name, machine.cpu, machine.numa, machine.pci)
    for part in (*own, machine.gpus, machine.nics, machine.peers):
        for text in _texts(part):
            if not text.isprintable() or len(text) > _MAX_TEXT:
                raise BadTopology(f"'{text:.40}' is too long, or no text for people")


def _check_numa(machine: Machine) -> None:
    _at_most("NUMA nodes", len(machine.numa), MAX_DEVICES)
    _unique("NUMA node", (str(node.index) for node in machine.numa))
    for owner, cpus in [(f"NUMA node {n.index}", n.cpus) for n in machine.numa] + [
        (gpu.name, gpu.cpus) for gpu in machine.gpus
    ]:
        if spans(cpus) is None:
            raise BadTopology(f"{owner}: '{cpus:.40}' is no list of processors")


def _check_tree(machine: Machine) -> set[str]:
    _at_most("PCI devices", len(machine.pci), _MAX_PCI)
    addresses = _unique("PCI device", (device.address for device in machine.pci))
    parents = {device.address: device.parent for device in machine.pci}
    for device in machine.pci:
        if device.parent is not None and device.parent not in addresses:
            raise BadTopology(f"PCI device {device.address}: there is no bridge {device.parent}")
        above, steps = device.parent, 0
        while above is not None:
            above, steps = parents[above], steps + 1
            if steps > _MAX_DEPTH:
                raise BadTopology(f"PCI device {device.address} is its own bridge, or too deep")
        for value in (device.link.gts, device.link.max_gts, device.link.gbps):
            _in_reach(f"PCI device {device.address}, speed", value, 1024)
        for value in (device.link.width, device.link.max_width):
            _in_reach(f"PCI device {device.address}, lanes", value, 32)
    return addresses


def _check_devices(machine: Machine, addresses: set[str]) -> set[str]:
    _at_most("GPUs", len(machine.gpus), MAX_DEVICES)
    _at_most("NICs", len(machine.nics), MAX_DEVICES)
    names = _unique("device", (end.name for end in machine.ends))
    for end in machine.ends:
        if machine.pci and end.pci is not None and end.pci not in addresses:
            raise BadTopology(f"{end.name}: there is no PCI device {end.pci}")
    for nic in machine.nics:
        _in_reach(f"{nic.name}, Gbit/s", nic.gbit)
        _in_reach(f"{nic.name}, ports", nic.ports, 64)
    return names


def _check_links(machine: Machine, names: set[str]) -> None:
    gpus = {gpu.name for gpu in machine.gpus}
    for link in machine.gpu_links:
        what = f"link {link.a} to {link.b}"
        if link.a not in gpus or link.b not in gpus | {SWITCH, CPU} or link.a == link.b:
            raise BadTopology(f"{what}: not from a GPU to another one, the switches or the CPU")
        _in_reach(f"{what}, links", link.count, _MAX_LINKS)
        _in_reach(f"{what}, links that are down", link.inactive, _MAX_LINKS)
        _in_reach(f"{what}, GB/s", link.gbps_each)
    pairs = [(path.a, path.b) for path in machine.paths]
    pairs += [(peer.a, peer.b) for peer in machine.peers]
    for a, b in pairs:
        if a not in names or b not in names or a == b:
            raise BadTopology(f"path {a} to {b}: no two devices of this machine")


def checked(machine: Machine) -> Machine:
    """The machine itself; BadTopology names the first thing that does not fit."""
    _check_texts(machine)
    _check_numa(machine)
    names = _check_devices(machine, _check_tree(machine))
    _check_links(machine, names)
    for socket in [machine.cpu.sockets] + [node.socket for node in machine.numa]:
        _in_reach("socket", socket, MAX_DEVICES)
    return machine

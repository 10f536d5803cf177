"""Where a machine's devices go in the picture: boxes of NUMA nodes, groups below one switch, chips.

Groups are devices that meet below the CPU (PIX, PXB), so that a picture needs no PCIe tree: the
words of a matrix are enough. A device whose NUMA node is not told goes where its nearest
neighbour is.
All numbers are pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from braid.topo.facts import Gpu, Machine, Nic
from braid.topo.look import View
from braid.topo.words import distance

GPU_WIDTH, GPU_HEIGHT = 76, 40
NIC_WIDTH, NIC_HEIGHT = 76, 19
GAP, PAD, HEAD = 6, 9, 24
TOP = 34
_BELOW_CPU = distance("PXB")
_SAME_NODE = distance("NODE")


@dataclass
class Chip:
    """One device."""

    name: str
    kind: str
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    @property
    def middle(self) -> float:
        """Where a line to it ends."""
        return self.x + self.width / 2


@dataclass
class Box:
    """A rectangle with chips in it: a group, or a NUMA node with its groups."""

    label: str = ""
    chips: list[Chip] = field(default_factory=list)
    boxes: list["Box"] = field(default_factory=list)
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0


@dataclass
class Layout:
    """The whole picture, without what is drawn between the chips."""

    nodes: list[Box]
    gpus: dict[str, Chip]
    width: float
    bottom: float
    """Below the NUMA nodes."""


def layout(machine: Machine) -> Layout:
    """Places everything."""
    nodes = _nodes(machine)
    most_nics = max((_nics_high(group) for node in nodes for group in node.boxes), default=0)
    x = float(PAD)
    for node in nodes:
        _place_node(node, x, most_nics)
        x = node.x + node.width + 4 * GAP
    chips = [chip for node in nodes for group in node.boxes for chip in group.chips]
    gpus = {chip.name: chip for chip in chips if chip.kind == "gpu"}
    bottom = max((node.y + node.height for node in nodes), default=float(TOP))
    return Layout(nodes, gpus, max(x - 4 * GAP + PAD, 420), bottom)


def _groups(view: View) -> list[list[Gpu | Nic]]:
    """Devices that meet below the CPU, in order of their first one."""
    groups: list[list[Gpu | Nic]] = []
    for end in view.machine.ends:
        near = next((g for g in groups if any(_is_below_cpu(view, end, x) for x in g)), None)
        if near is None:
            groups.append([end])
        else:
            near.append(end)
    return groups


def _is_below_cpu(view: View, a: Gpu | Nic, b: Gpu | Nic) -> bool:
    return distance(view.path(a.name, b.name)) <= _BELOW_CPU


def _node_of(view: View, group: Sequence[Gpu | Nic]) -> int | None:
    told = next((end.numa for end in group if end.numa is not None), None)
    if told is not None:
        return told
    known = [end for end in view.machine.ends if end.numa is not None]
    near = min(known, key=lambda end: distance(view.path(group[0].name, end.name)), default=None)
    if near is None or distance(view.path(group[0].name, near.name)) > _SAME_NODE:
        return None
    return near.numa


def _nodes(machine: Machine) -> list[Box]:
    view = View(machine)
    by_node: dict[int | None, list[list[Gpu | Nic]]] = {n.index: [] for n in machine.numa}
    for group in _groups(view):
        by_node.setdefault(_node_of(view, group), []).append(group)
    lone = list(by_node) == [None] or (len(machine.numa) == 1 and None in by_node)
    if lone and machine.numa:  # one node, and devices of it that do not say so
        by_node[machine.numa[0].index] += by_node.pop(None)
    # Nodes without CPUs and devices are a GPU's own memory.
    shown = [i for i in by_node if by_node[i] or any(n.cpus for n in machine.numa if n.index == i)]
    return [
        Box("PCIe" if index is None else f"NUMA node {index}", boxes=_boxes(by_node[index]))
        for index in shown
    ]


def _boxes(groups: list[list[Gpu | Nic]]) -> list[Box]:
    """Groups with GPUs each in a box of its own; NICs without GPUs together in one."""
    found = [Box("switch", _chips(g)) for g in groups if any(isinstance(x, Gpu) for x in g)]
    others = [end for g in groups if not any(isinstance(x, Gpu) for x in g) for end in g]
    return found + ([Box("", _chips(others))] if others else [])


def _chips(ends: Sequence[Gpu | Nic]) -> list[Chip]:
    return [Chip(end.name, "gpu" if isinstance(end, Gpu) else "nic") for end in ends]


def _columns(group: Box) -> int:
    return max(sum(chip.kind == "gpu" for chip in group.chips), 1)


def _nics_high(group: Box) -> int:
    nics = sum(chip.kind == "nic" for chip in group.chips)
    return -(-nics // _columns(group))


def _place_node(node: Box, x: float, nics_high: int) -> None:
    """Groups from left to right; NICs above, GPUs below, in all nodes at one height."""
    node.x, node.y = x, TOP
    x += PAD
    gpu_y = TOP + HEAD + PAD + nics_high * (NIC_HEIGHT + GAP)
    has_gpus = any(chip.kind == "gpu" for group in node.boxes for chip in group.chips)
    for group in node.boxes:
        group.x, group.y = x, TOP + HEAD
        _place_group(group, gpu_y)
        x = group.x + group.width + GAP
    node.width = max(x - GAP + PAD - node.x, 2.5 * GPU_WIDTH)
    node.height = gpu_y + (GPU_HEIGHT + PAD if has_gpus else 0) + PAD - node.y
    for group in node.boxes:
        group.height = node.y + node.height - PAD - group.y


def _place_group(group: Box, gpu_y: float) -> None:
    columns = _columns(group)
    counts = {"gpu": 0, "nic": 0}
    for chip in group.chips:
        count = counts[chip.kind]
        counts[chip.kind] += 1
        column, row = (count, 0) if chip.kind == "gpu" else (count % columns, count // columns)
        chip.width, chip.height = GPU_WIDTH, GPU_HEIGHT if chip.kind == "gpu" else NIC_HEIGHT
        chip.x = group.x + PAD + column * (GPU_WIDTH + GAP)
        chip.y = gpu_y if chip.kind == "gpu" else group.y + PAD + row * (NIC_HEIGHT + GAP)
    group.width = 2 * PAD + columns * (GPU_WIDTH + GAP) - GAP

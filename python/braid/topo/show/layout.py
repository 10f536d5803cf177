"""Where a machine's devices go in the picture: boxes of NUMA nodes, groups below one switch, chips.

Groups are devices that meet below the CPU (PIX, PXB), so that a picture needs no PCIe tree: the
words of a matrix are enough.
All numbers are pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from braid.topo.facts import Gpu, Machine, Nic
from braid.topo.look import View
from braid.topo.places import groups, node_of

GPU_WIDTH, GPU_HEIGHT = 76, 40
NIC_WIDTH, NIC_HEIGHT = 76, 19
GAP, PAD, HEAD = 6, 9, 24
TOP = 34


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


def _nodes(machine: Machine) -> list[Box]:
    view = View(machine)
    by_node: dict[int | None, list[list[Gpu | Nic]]] = {n.index: [] for n in machine.numa}
    for group in groups(view):
        by_node.setdefault(node_of(view, group), []).append(group)
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

"""The matrix as text: nvidia-smi's layout, in its words or in NCCL's."""

from braid.topo.facts import Machine
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.roles import roles
from braid.topo.show.columns import align
from braid.topo.show.words import network
from braid.topo.words import NCCL_LEGEND, NVIDIA_LEGEND, Vocabulary


def lines(machine: Machine, vocabulary: Vocabulary = "nvidia") -> list[str]:
    """Matrix, NIC legend and the legend of the words that occur."""
    words = matrix(machine, vocabulary)
    if len(words.devices) < 2:
        return []
    labels = _labels(machine)
    head = ["", *labels, "CPU affinity", "NUMA"]
    rows = [
        [label, *row, *_affinity(machine, name)]
        for label, name, row in zip(labels, words.devices, words.words, strict=True)
    ]
    used = {word for row in words.words for word in row}
    return [*align([head, *rows]), "", *_legend(used, vocabulary), *_nic_legend(machine, labels)]


def _labels(machine: Machine) -> list[str]:
    """NICs are numbered, as their names are too wide for a column."""
    return [gpu.name for gpu in machine.gpus] + [f"NIC{i}" for i in range(len(machine.nics))]


def _affinity(machine: Machine, name: str) -> list[str]:
    for gpu in machine.gpus:
        if gpu.name == name:
            return [gpu.cpus or "-", "-" if gpu.numa is None else str(gpu.numa)]
    for nic in machine.nics:
        if nic.name == name and nic.numa is not None:
            return ["", str(nic.numa)]
    return []


def _legend(used: set[str], vocabulary: Vocabulary) -> list[str]:
    legend = NVIDIA_LEGEND if vocabulary == "nvidia" else NCCL_LEGEND
    stems = {word.rstrip("0123456789") + "#" if word[:2] in ("NV", "XG") else word for word in used}
    stems |= used
    return align([[f"  {word}", text] for word, text in legend.items() if word in stems])


def _nic_legend(machine: Machine, labels: list[str]) -> list[str]:
    if not machine.nics:
        return []
    known = roles(View(machine))
    first = len(machine.gpus)
    rows = [
        [f"  {labels[first + i]}", nic.name, network(nic), known[nic.name]]
        for i, nic in enumerate(machine.nics)
    ]
    return ["", *align(rows)]

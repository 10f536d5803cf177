"""The words for how close two devices are: nvidia-smi's, and NCCL's for the same facts."""

from typing import Literal, get_args

from braid.topo.facts import PathKind

Vocabulary = Literal["nvidia", "nccl"]

NVIDIA_LEGEND: dict[str, str] = {
    "X": "self",
    "NV#": "a bonded set of # NVLinks",
    "XG#": "a bonded set of # xGMI links",
    "PIX": "at most one PCIe switch",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "through a PCIe host bridge (the CPU)",
    "NODE": "across host bridges of one NUMA node",
    "SYS": "across NUMA nodes, over the link between sockets",
    "-": "not told, or no path",
}
NCCL_LEGEND: dict[str, str] = {
    "LOC": "self",
    "NVL": "NVLink or xGMI, directly or through switches",
    "NVB": "NVLink through another GPU",
    "C2C": "the link between a GPU and its own CPU",
    "PIX": "at most one PCIe switch",
    "PXB": "several PCIe switches, no host bridge",
    "P2C": "GPU to its CPU over C2C, then PCIe to the NIC",
    "PXN": "NVLink to a GPU that is near the NIC, then PCIe",
    "PHB": "through a PCIe host bridge (the CPU)",
    "SYS": "across NUMA nodes, over the link between sockets",
    "DIS": "not told, or no path",
}

KINDS: tuple[PathKind, ...] = get_args(PathKind)
"""From near to far."""
_ALIASES: dict[str, PathKind] = {"SOC": "SYS", "MDF": "PHB", "CPU": "NODE"}


def path_kind(word: str) -> PathKind | None:
    """A cell's word in any generation's spelling; None when it names no PCIe path."""
    for kind in KINDS:
        if word == kind:
            return kind
    return _ALIASES.get(word)


def distance(kind: PathKind | None) -> int:
    """How far: 0 is nearest; without a path, farther than all."""
    return len(KINDS) if kind is None else KINDS.index(kind)

"""How every two devices meet, as one word each."""

from dataclasses import dataclass, field

from braid.topo.facts import Gpu, Machine, PathKind
from braid.topo.look import View
from braid.topo.words import Vocabulary, distance

_BELOW_CPU = distance("PXB")
_LINK_WORDS = {"nvlink": "NV", "xgmi": "XG", "c2c": "C2C"}


@dataclass(frozen=True)
class Matrix:
    """Words for every two devices; row and column i are devices[i]."""

    vocabulary: Vocabulary
    devices: list[str] = field(default_factory=list)
    words: list[list[str]] = field(default_factory=list)


def matrix(machine: Machine, vocabulary: Vocabulary = "nvidia") -> Matrix:
    """GPUs first, then NICs, as nvidia-smi orders them."""
    view = View(machine)
    word = _nvidia_word if vocabulary == "nvidia" else _nccl_word
    devices = [end.name for end in machine.ends]
    return Matrix(vocabulary, devices, [[word(view, a, b) for b in devices] for a in devices])


def _nvidia_word(view: View, a: str, b: str) -> str:
    if a == b:
        return "X"
    if count := view.links_between(a, b):
        return f"{_LINK_WORDS[view.links_of(a)[0].kind]}{count}"
    return view.path(a, b) or "-"


def _nccl_word(view: View, a: str, b: str) -> str:
    if a == b:
        return "LOC"
    path = view.path(a, b)
    gpus = view.gpus
    if a in gpus and b in gpus:
        return _between_gpus(view, a, b) or _over_pcie(path)
    if (a in gpus) != (b in gpus) and distance(path) > _BELOW_CPU:
        gpu, nic = (gpus[a], b) if a in gpus else (gpus[b], a)
        return _around_cpu(view, gpu, nic, path) or _over_pcie(path)
    return _over_pcie(path)


def _between_gpus(view: View, a: str, b: str) -> str | None:
    if view.links_between(a, b):
        return "NVL"
    both = (
        gpu.name
        for gpu in view.machine.gpus
        if view.links_between(a, gpu.name) and view.links_between(gpu.name, b)
    )
    return "NVB" if next(both, None) else None


def _around_cpu(view: View, gpu: Gpu, nic: str, path: PathKind | None) -> str | None:
    """Better ways than PCIe through the host bridge: over C2C, or over a GPU near the NIC."""
    if view.link_to_cpu(gpu.name) and path in ("PHB", "NODE"):
        return "P2C"
    for peer in view.machine.gpus:
        near = distance(view.path(peer.name, nic)) <= _BELOW_CPU
        if near and view.links_between(gpu.name, peer.name):
            return "PXN"
    return None


def _over_pcie(path: PathKind | None) -> str:
    return "DIS" if path is None else "PHB" if path == "NODE" else path

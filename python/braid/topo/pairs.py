"""What was measured between two GPUs, and which kind of link the topology says that it was."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from braid.topo.facts import Machine
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.measured import Measured

PairKind = Literal["nvlink", "xgmi", "c2c", "pcie", "host", "unknown"]
"""host: the driver allows no direct access, so the bytes went through the host's memory."""


@dataclass(frozen=True)
class PairRate:
    """One pair, one way, alone."""

    a: str
    """Where the bytes were."""
    b: str
    kind: PairKind
    word: str
    """The path in nvidia-smi's words: "NV18", "PHB"."""
    measured_gbps: float
    measured_how: str


def pair_rates(machine: Machine, measured: Sequence[Measured]) -> list[PairRate]:
    """Every pair that was measured; of one that was measured twice, the first record's."""
    view, words = View(machine), matrix(machine)
    place = {name: i for i, name in enumerate(words.devices)}
    found: dict[tuple[str, str], PairRate] = {}
    for one in measured:
        if one.kind == "pair" and one.device in place and one.peer in place:
            a, b = one.device, one.peer
            word = words.words[place[a]][place[b]]
            pair = PairRate(a, b, _kind(view, a, b), word, one.gbps, one.how)
            found.setdefault((a, b), pair)
    return list(found.values())


def _kind(view: View, a: str, b: str) -> PairKind:
    if view.links_between(a, b):
        return view.links_of(a)[0].kind
    for peer in view.machine.peers:
        if {peer.a, peer.b} == {a, b} and (peer.read != "ok" or peer.write != "ok"):
            return "host"
    return "pcie" if view.path(a, b) else "unknown"


def by_link(view: View, measured: Sequence[Measured]) -> Iterator[Measured]:
    """As rates of links: one copy between two GPUs behind switches goes over all links of both, so
    the median of a GPU's pairs is its links' own rate.
    """
    switched = {gpu.name for gpu in view.machine.gpus if view.switch_links(gpu.name)}
    pairs: dict[tuple[str, str], list[float]] = {}
    for one in measured:
        if one.kind == "pair" and one.device in switched and one.peer in switched:
            pairs.setdefault((one.how, one.device), []).append(one.gbps)
    for one in measured:
        if one.kind != "pair" or one.device not in switched or one.peer not in switched:
            yield one
        elif own := pairs.pop((one.how, one.device), []):
            how = f"{one.how}: the median of each GPU's pairs"
            yield Measured("nvlink", round(median(own), 1), how, one.device)

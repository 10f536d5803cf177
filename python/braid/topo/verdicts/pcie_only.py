"""GPUs that no links of their own join: what their collectives go over, and what they share."""

import re
from collections.abc import Iterator
from itertools import combinations

from braid.topo.facts import Gpu
from braid.topo.look import View
from braid.topo.places import groups
from braid.topo.verdicts.gpu_links import of_counts
from braid.topo.verdicts.verdict import Verdict, names
from braid.topo.words import NVIDIA_LEGEND, distance

_NVLINK_ALONE = re.compile(r"\bRTX [2-5]0[5-9]0\b|\bTITAN RTX\b", re.IGNORECASE)
"""Consumers' cards: since Turing the driver gives them peer access over NVLink and no other way."""
_MOST_SHOWN = 4


def _tells_links(view: View) -> bool:
    """Whether no link is none: the kernel's files and partial topologies know nothing of links,
    nor of what the driver knows, such as architectures.
    """
    machine = view.machine
    is_told = machine.source.format in ("nvidia-smi", "rocm-smi")
    return not view.misses_links and (is_told or all(gpu.arch for gpu in machine.gpus))


def _are_apart(view: View) -> bool:
    """Whether a group of all GPUs cannot stay on links of their own."""
    gpus = [gpu.name for gpu in view.machine.gpus]
    return len(gpus) > 1 and _tells_links(view) and not of_counts(view).group(gpus).is_joined


def no_peer_access(view: View) -> Iterator[Verdict]:
    """Pairs of consumers' cards, unless the driver itself was asked."""
    cards = [gpu.name for gpu in view.machine.gpus if _NVLINK_ALONE.search(gpu.model)]
    asked = {frozenset((peer.a, peer.b)) for peer in view.machine.peers}
    bare = [
        pair
        for pair in combinations(cards, 2)
        if not view.links_between(*pair) and frozenset(pair) not in asked
    ]
    if bare and _tells_links(view):
        among = [card for card in cards if any(card in pair for pair in bare)]
        yield Verdict(
            "no-p2p",
            "note",
            f"{names(among)}: NVIDIA's driver gives GeForce cards no peer access over PCIe;"
            " data between them goes through the host's memory",
            among,
        )


def shared_uplinks(view: View) -> Iterator[Verdict]:
    """GPUs below the same switches: what they send elsewhere shares one way up."""
    sets = [tree for tree in _trees(view) if len(tree) > 1] if _are_apart(view) else []
    if sets:
        who = " and ".join(names(tree) for tree in sets[:_MOST_SHOWN])
        more = f" and {len(sets) - _MOST_SHOWN} sets more" if len(sets) > _MOST_SHOWN else ""
        each = "each share" if len(sets) > 1 else "share"
        most = max(len(tree) for tree in sets)
        yield Verdict(
            "shared-uplink",
            "note",
            f"{who}{more} {each} one PCIe uplink: when all of a set send to the host or past their"
            f" switches, each GPU has 1/{most} of it",
            [name for tree in sets for name in tree],
        )


def _trees(view: View) -> list[list[str]]:
    """GPUs that hang on the same switches, or alone on a port."""
    trees = [[end.name for end in group if isinstance(end, Gpu)] for group in groups(view)]
    return [tree for tree in trees if tree]


def trees_meet(view: View) -> Iterator[Verdict]:
    """GPUs below different switches or ports meet in the CPU."""
    trees = _trees(view) if _are_apart(view) else []
    paths = [view.path(a, b) for one, two in combinations(trees, 2) for a in one for b in two]
    worst = max((path for path in paths if path), key=distance, default=None)
    if worst is None or distance(worst) <= distance("PXB"):
        return
    has_switches = any(len(tree) > 1 for tree in trees)
    all_names = [name for tree in trees for name in tree]
    who = " and ".join(names(tree) for tree in trees)
    if len(trees) > _MOST_SHOWN or not has_switches:
        who = names(all_names)
    where = f"{NVIDIA_LEGEND[worst]} ({worst})".replace(") (", ", ")
    yield Verdict(
        "pcie-trees",
        "note",
        f"{who} meet {where}: what they send each other crosses the CPU",
        all_names,
        "keep tensor-parallel groups below one switch" if has_switches else "",
    )


QUESTIONS = (no_peer_access, shared_uplinks, trees_meet)

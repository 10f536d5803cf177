"""Whether links between GPUs join a whole group of them, and at what rate.

A group whose links do not join all its members sends over PCIe: NVLink between two of four GPUs
does nothing for a collective of the four. Links join a group when a ring over them alone visits
every member. Behind switches any group is joined; a mesh of point-to-point links joins some.

Input are bundles as `Rate` rows and rows of braid.topo/1 tell them: from each of its two GPUs, or
from a GPU to the switches. Rates are GB/s, one direction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from braid.topo.facts import SWITCH

_MOST_PAIRS = 200_000
"""Of the groups of one size that are looked at: all groups of 12 GPUs, and no file can keep us
busy for long.
"""
_MOST_STEPS = 50_000
"""Of the search for a group's rings: one of 8 GPUs is found or excluded in fewer than 14,000."""


@dataclass(frozen=True)
class Bundle:
    """Equal links from a GPU to another one or, together, to the switches."""

    a: str
    b: str
    gbps: float


@dataclass(frozen=True)
class Group:
    """GPUs, and what the links between them alone carry."""

    gpus: tuple[str, ...]
    is_switched: bool
    """Every member's links end in switches: each pair can have all of them."""
    num_bare_pairs: int
    """Pairs of members that no link joins."""
    pair_gbps: float
    """The slowest pair; 0 with a bare one."""
    rate_gbps: float
    """All links into the group of the member that has the least."""
    ring_gbps: float
    """Out of every member when rings use the links; 0: no ring joins all. Of an uneven mesh what
    was found: never more than the links carry, and seldom less than they could.
    """

    @property
    def is_joined(self) -> bool:
        """Whether a collective of the group can stay on the links."""
        return self.ring_gbps > 0

    @property
    def is_direct(self) -> bool:
        """Whether every two members have links of their own, or switches between them."""
        return self.num_bare_pairs == 0


def _worth(group: Group) -> tuple[float, float, int]:
    return group.ring_gbps, group.pair_gbps, -group.num_bare_pairs


class Links:
    """The bundles of one machine and kind, for questions about groups."""

    def __init__(self, bundles: Iterable[Bundle]) -> None:
        self._direct: dict[frozenset[str], float] = {}
        self._switched: dict[str, float] = {}
        names: dict[str, None] = {}
        for one in bundles:
            names[one.a] = None
            if one.b == SWITCH:
                self._switched[one.a] = self._switched.get(one.a, 0.0) + one.gbps
            else:
                names[one.b] = None
                self._direct[frozenset((one.a, one.b))] = one.gbps
        self.gpus = sorted(names, key=lambda name: (len(name), name))  # GPU2 before GPU10

    def pair_gbps(self, a: str, b: str) -> float:
        """Between two GPUs: their own links, else those into the switches; 0 without any."""
        own = self._direct.get(frozenset((a, b)), 0.0)
        return own or min(self._switched.get(a, 0.0), self._switched.get(b, 0.0))

    def group(self, gpus: Sequence[str]) -> Group:
        """What the links of these GPUs do for a collective of them."""
        pairs = {(a, b): self.pair_gbps(a, b) for a, b in combinations(gpus, 2)}
        bare = sum(not gbps for gbps in pairs.values())
        is_switched = all(self._switched.get(gpu) for gpu in gpus) and len(gpus) > 1
        rate = min((self._into(gpu, gpus, is_switched) for gpu in gpus), default=0.0)
        is_even = bare == 0 and len(set(pairs.values())) == 1
        # Rings share an even mesh, or switches, without leaving any link idle.
        ring = rate if is_switched or is_even else _Rings(gpus, pairs).gbps()
        return Group(
            tuple(gpus), is_switched, bare, min(pairs.values(), default=0.0), rate, min(ring, rate)
        )

    def _into(self, gpu: str, gpus: Sequence[str], is_switched: bool) -> float:
        if is_switched:
            return self._switched[gpu]
        return sum(self.pair_gbps(gpu, other) for other in gpus if other != gpu)

    def best_group(self, size: int) -> Group | None:
        """The group of so many GPUs that the links join best, of equal ones the first; None when
        they join none.
        """
        if not 2 <= size <= len(self.gpus):
            return None
        most = max(_MOST_PAIRS // size**2, 1)
        found = [self.group(gpus) for gpus in islice(self._candidates(size), most)]
        best = max(found, key=_worth, default=None)
        return best if best and best.is_joined else None

    def _candidates(self, size: int) -> Iterator[tuple[str, ...]]:
        """Groups worth a look: those with the most links into switches, or of one island."""
        order = {gpu: i for i, gpu in enumerate(self.gpus)}
        widest = sorted(self._switched, key=lambda gpu: -self._switched[gpu])[:size]
        if len(widest) == size:
            yield tuple(sorted(widest, key=order.__getitem__))
        for island in self._islands():
            yield from combinations(sorted(island, key=order.__getitem__), size)

    def _islands(self) -> list[set[str]]:
        """GPUs that links of their own join, directly or through others."""
        islands: list[set[str]] = []
        for pair, gbps in self._direct.items():
            if gbps:
                touched = [island for island in islands if island & pair]
                islands = [island for island in islands if not island & pair]
                islands.append(set(pair).union(*touched))
        return islands


class _Rings:
    """Rings over a mesh, one after the other, each over the widest links that are left."""

    def __init__(self, gpus: Sequence[str], pairs: dict[tuple[str, str], float]) -> None:
        self._gpus = gpus
        self._steps_left = _MOST_STEPS
        self._left = {gpu: {other: 0.0 for other in gpus if other != gpu} for gpu in gpus}
        for (a, b), gbps in pairs.items():
            self._left[a][b] = self._left[b][a] = gbps

    def gbps(self) -> float:
        """What they carry out of every member, in both directions of each ring."""
        total = 0.0
        while ring := self._widest():
            edges = list(zip(ring, [*ring[1:], ring[0]], strict=True))
            width = min(self._left[a][b] for a, b in edges)
            for a, b in edges:
                self._left[a][b] -= width
                self._left[b][a] -= width
            total += 2 * width
        return total

    def _widest(self) -> list[str] | None:
        widths = {gbps for row in self._left.values() for gbps in row.values() if gbps > 0}
        for least in sorted(widths, reverse=True):
            near = {
                gpu: [other for other, gbps in row.items() if gbps >= least]
                for gpu, row in self._left.items()
            }
            can_be = len(self._gpus) > 2 and all(len(others) > 1 for others in near.values())
            if can_be and (ring := self._ring(near)):
                return ring
        return None

    def _ring(self, near: dict[str, list[str]]) -> list[str] | None:
        """A way through all GPUs and back; None when there is none, or it is hard to find."""
        start = self._gpus[0]
        way, choices = {start: None}, [iter(near[start])]
        while way and self._steps_left:
            self._steps_left -= 1
            step = next(choices[-1], None)
            if step is None:
                way.popitem()
                choices.pop()
            elif step not in way:
                way[step] = None
                choices.append(iter(near[step]))
                if len(way) == len(self._gpus) and start in near[step]:
                    return list(way)
        return None

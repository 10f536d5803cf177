"""The routing table: which elements of which trainer go where in which worker. Pure.

Computed once, from what all ranks hold. Every element of every worker's piece comes from exactly
one trainer. Where several trainers hold the same box they share it, so that all send about as much;
what is large is cut for that. Routes are grouped by layer, in the order in which they are sent.
"""

import hashlib
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from braid.errors import InvalidArgument
from braid.weights.pieces import Piece, Shape

Ints = npt.NDArray[np.int64]


class Route(NamedTuple):
    """One box from a trainer's piece to a worker's. Numbers are of elements."""

    source: int
    target: int
    source_piece: int
    target_piece: int
    start: Shape
    size: Shape
    """Of the box, in the whole parameter."""

    def elements(self) -> int:
        return math.prod(self.size)


@dataclass(frozen=True, slots=True)
class Runs:
    """A route as pages: `count` runs of `run` elements, k-th run at offset + ids[k] * stride."""

    run: int
    source_offset: int
    source_stride: int
    source_ids: Ints
    target_offset: int
    target_stride: int
    target_ids: Ints


@dataclass(slots=True)
class Table:
    """All routes of a job. The same on all ranks: digest() says so."""

    trainers: list[list[Piece]]
    workers: list[list[Piece]]
    routes: list[Route] = field(default_factory=list)
    """Group by group."""

    def from_trainer(self, rank: int) -> list[Route]:
        return [route for route in self.routes if route.source == rank]

    def to_worker(self, rank: int) -> list[Route]:
        return [route for route in self.routes if route.target == rank]

    def bytes_sent(self) -> list[int]:
        """By each trainer; in the elements that the workers hold."""
        return self._bytes(lambda route: route.source, len(self.trainers))

    def bytes_received(self) -> list[int]:
        return self._bytes(lambda route: route.target, len(self.workers))

    def _bytes(self, rank_of: Any, count: int) -> list[int]:  # noqa: ANN401
        out = [0] * count
        for route in self.routes:
            piece = self.workers[route.target][route.target_piece]
            out[rank_of(route)] += route.elements() * itemsize(piece.dtype)
        return out

    def runs(self, route: Route) -> Runs:
        """The route as pages of both sides' buffers."""
        source = self.trainers[route.source][route.source_piece]
        target = self.workers[route.target][route.target_piece]
        return runs_between(source, target, route.start, route.size)

    def digest(self) -> str:
        """Equal on all ranks that computed the same table."""
        text = json.dumps(
            [
                [[p.as_json() for p in pieces] for pieces in (*self.trainers, *self.workers)],
                [[r.source, r.target, r.source_piece, r.target_piece, r.start, r.size]
                 for r in self.routes],
            ]
        )  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()


def plan(
    trainers: Sequence[Sequence[Piece]],
    workers: Sequence[Sequence[Piece]],
    *,
    nodes: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> Table:
    """What every trainer sends to every worker.

    nodes: for each host (trainers there, workers there): among equals a trainer of the worker's
    host is taken.
    InvalidArgument names a parameter that one side has and the other lacks, one whose shape
    differs, and elements that nobody has or that two trainers hold in different boxes.
    """
    held = _by_name(trainers, "trainer")
    table = Table([list(p) for p in trainers], [list(p) for p in workers])
    loads = [0] * len(trainers)
    near = {w: set(ts) for ts, ws in nodes for w in ws}
    wanted = _by_name(workers, "worker")
    total = sum(_bytes_of(piece) for pieces in workers for piece in pieces)
    most = max(1 << 16, total // max(1, len(trainers)) // 64)
    for name in sorted(wanted, key=group_key):
        if name not in held:
            rank = wanted[name][0][0]
            raise InvalidArgument(f"parameter '{name}' of worker {rank}: no trainer has it")
        _route(table, held[name], wanted[name], loads, near, most)
    if unwanted := held.keys() - wanted.keys():
        name = min(unwanted, key=group_key)
        raise InvalidArgument(f"parameter '{name}' of trainer {held[name][0][0]}: no worker has it")
    return table


def group_key(name: str) -> tuple[int, int, str]:
    """Parameters of one layer together, layers in order, what is in no layer first."""
    numbers = re.findall(r"\d+", name)
    return (1, int(numbers[0]), name) if numbers else (0, 0, name)


_ITEM_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


@cache
def itemsize(dtype: str) -> int:
    """Bytes of an element: of the number at the end of the type's name."""
    name = dtype.removeprefix("torch.")
    if name in _ITEM_BYTES:
        return _ITEM_BYTES[name]
    found = re.fullmatch(r"[a-z]+(\d+)", name)
    if not found or int(found[1]) % 8:
        raise InvalidArgument(f"weights: no size is known for elements of type '{dtype}'")
    return int(found[1]) // 8


Held = list[tuple[int, int, Piece]]
"""(rank, number of the piece there, the piece) of one parameter."""


def _by_name(ranks: Sequence[Sequence[Piece]], side: str) -> dict[str, Held]:
    out: dict[str, Held] = defaultdict(list)
    for rank, pieces in enumerate(ranks):
        for number, piece in enumerate(pieces):
            if not isinstance(piece, Piece):
                raise InvalidArgument(f"plan: {side} {rank}: asked for Pieces, found {piece!r:.80}")
            first = out[piece.name][0][2] if out[piece.name] else piece
            if first.shape != piece.shape:
                raise InvalidArgument(
                    f"parameter '{piece.name}': {first.shape} at {side} {out[piece.name][0][0]}, "
                    f"{piece.shape} at {side} {rank}"
                )
            if piece.elements():
                out[piece.name].append((rank, number, piece))
    return {name: held for name, held in out.items() if held}


def _bytes_of(piece: Piece) -> int:
    return piece.elements() * itemsize(piece.dtype)


def _corners(held: Held) -> tuple[Ints, Ints]:
    """First elements and those behind the last ones, [pieces, axes]."""
    begin = np.array([piece.start for _, _, piece in held], np.int64).reshape(len(held), -1)
    size = np.array([piece.size for _, _, piece in held], np.int64).reshape(len(held), -1)
    return begin, begin + size


def _route(
    table: Table,
    sources: Held,
    targets: Held,
    loads: list[int],
    near: dict[int, set[int]],
    most: int,
) -> None:
    """All routes of one parameter."""
    shape, wanted = sources[0][2].shape, targets[0][2].shape
    name = targets[0][2].name
    if shape != wanted:
        raise InvalidArgument(
            f"parameter '{name}': {shape} at trainer {sources[0][0]}, {wanted} at worker "
            f"{targets[0][0]}"
        )
    replicas: dict[tuple[Shape, Shape], Held] = defaultdict(list)
    for held in sources:
        replicas[held[2].start, held[2].size].append(held)
    firsts = [same[0] for same in replicas.values()]
    groups = list(replicas.values())
    source_begin, source_end = _corners(firsts)
    target_begin, target_end = _corners(targets)
    begin = np.maximum(source_begin[None], target_begin[:, None])
    size = np.minimum(source_end[None], target_end[:, None]) - begin
    overlaps: npt.NDArray[np.bool_] = np.all(size > 0, axis=-1)
    covered = (np.where(overlaps[..., None], size, 0).prod(-1)).sum(1)
    for number, (rank, _, piece) in enumerate(targets):
        if covered[number] != piece.elements():
            how = "nobody has" if covered[number] < piece.elements() else "several trainers have"
            raise InvalidArgument(
                f"parameter '{name}' of worker {rank}: {piece.elements()} elements from "
                f"{piece.start} on; {how} {abs(int(covered[number]) - piece.elements())} of them"
            )
    _check_once(firsts, targets, source_begin, source_end, overlaps)
    places = np.argwhere(overlaps)
    at = places[:, 0], places[:, 1]
    element = itemsize(targets[0][2].dtype)
    for (number, which), corner, extent in zip(
        places.tolist(), begin[at].tolist(), size[at].tolist(), strict=True
    ):
        rank, place, _ = targets[number]
        same = groups[which]
        if len(same) == 1:
            parts: Iterable[tuple[Shape, Shape]] = ((tuple(corner), tuple(extent)),)
        else:
            parts = _cut(tuple(corner), tuple(extent), element, most)
        for start, part in parts:
            source, source_place, _ = _choose(same, loads, near.get(rank))
            loads[source] += math.prod(part) * element
            table.routes.append(Route(source, rank, source_place, place, start, part))


_PAIRS = 1 << 18
"""Most boxes that are compared at a time."""


def _check_once(
    sources: Held,
    targets: Held,
    begin: Ints,
    end: Ints,
    overlaps: npt.NDArray[np.bool_],
) -> None:
    """InvalidArgument where two boxes of trainers, which differ, have elements of one of a worker's
    in common. As many elements as it has do not say that it gets each once: others may lack then.
    """
    if len(sources) < 2:
        return
    at_once = max(1, _PAIRS // len(sources))
    for base in range(0, len(sources), at_once):
        some = slice(base, base + at_once)
        common: npt.NDArray[np.bool_] = np.all(
            np.maximum(begin[some, None], begin[None]) < np.minimum(end[some, None], end[None]),
            axis=-1,
        )
        for one, other in np.argwhere(np.triu(common, base + 1)).tolist():
            _check_pair(sources[base + one], sources[other], targets,
                        overlaps[:, base + one] & overlaps[:, other])  # fmt: skip


def _check_pair(
    one: tuple[int, int, Piece],
    other: tuple[int, int, Piece],
    targets: Held,
    is_near: npt.NDArray[np.bool_],
) -> None:
    """Of two boxes that have elements in common. is_near: by target, whether both have of it."""
    for number in np.flatnonzero(is_near).tolist():
        rank, _, piece = targets[number]
        begin, end = _corners([one, other, targets[number]])
        first, size = begin.max(0), end.min(0) - begin.max(0)
        if (size > 0).all():
            raise InvalidArgument(
                f"parameter '{piece.name}' of worker {rank}: {piece.elements()} elements from "
                f"{piece.start} on; trainers {one[0]} and {other[0]} both have "
                f"{int(size.prod())} of them, from {tuple(first.tolist())} on, in boxes that differ"
            )


def _choose(same: Held, loads: list[int], near: set[int] | None) -> tuple[int, int, Piece]:
    """The one that has least to send, of the worker's host if there is one."""
    if len(same) == 1:
        return same[0]
    here = [held for held in same if near and held[0] in near]
    return min(here or same, key=lambda held: loads[held[0]])


def _cut(start: Shape, size: Shape, element_bytes: int, most: int) -> Iterable[tuple[Shape, Shape]]:
    """A box that several hold, in parts of at most `most` bytes by its first axis."""
    nbytes = math.prod(size) * element_bytes
    if nbytes <= most or not size or size[0] == 1:
        return [(start, size)]
    count = min(size[0], -(-nbytes // most))
    cuts = [size[0] * part // count for part in range(count + 1)]
    return [
        ((start[0] + begin, *start[1:]), (end - begin, *size[1:]))
        for begin, end in itertools.pairwise(cuts)
        if end > begin
    ]


def runs_between(source: Piece, target: Piece, start: Shape, size: Shape) -> Runs:
    """Axes from the last one on are one run for as long as both sides go on without a gap. Runs
    that lie nearer to each other than a page is long are cut: pages begin at multiples of a stride
    that is not shorter than they are.
    """
    run, axis = 1, len(size)
    while axis and (
        size[axis - 1] == 1 or source.strides[axis - 1] == run == target.strides[axis - 1]
    ):
        axis -= 1
        run *= size[axis]
    outer = [a for a in range(axis) if size[a] > 1]
    units = [math.gcd(*(p.strides[a] for a in outer)) or run for p in (source, target)]
    page = run if min(units) >= run else math.gcd(run, *units)
    ids = []
    for piece, unit in zip((source, target), units, strict=True):
        stride = unit if page == run else page
        at: Ints = np.zeros(1, np.int64)
        for a in outer:
            steps = np.arange(size[a], dtype=np.int64) * (piece.strides[a] // stride)
            at = (at[:, None] + steps).reshape(-1)
        if page != run:
            at = (at[:, None] + np.arange(run // page, dtype=np.int64)).reshape(-1)
        first = piece.offset + sum(
            (s - p) * step for s, p, step in zip(start, piece.start, piece.strides, strict=True)
        )
        ids.append((first, stride, at))
    return Runs(page, *ids[0], *ids[1])

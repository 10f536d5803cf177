"""What a rank holds of a model's parameters: boxes of them, and where their elements lie. Pure.

A parameter is an array of `shape`. A piece is a box of it (from `start`, of `size`). Its element
[i, j, ...], counted from the box's corner, is element offset + i * strides[0] + j * strides[1] ...
of a buffer. So a piece tells of FSDP's rows, a tensor-parallel column, one expert of many, a third
of a fused QKV, and of a transpose alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from braid.errors import InvalidArgument

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a parameter in a buffer of a rank. Numbers are of elements."""

    name: str
    shape: Shape
    """The shape of the whole parameter."""
    dtype: str
    start: Shape
    size: Shape
    buffer: int
    """Its number among the rank's buffers."""
    offset: int
    strides: Shape

    def elements(self) -> int:
        return math.prod(self.size)

    def as_json(self) -> list[Any]:
        return [
            self.name, self.shape, self.dtype, self.start, self.size, self.buffer, self.offset,
            self.strides,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, data: Any) -> "Piece":  # noqa: ANN401
        """InvalidArgument for what is no piece: it comes from a peer."""
        try:
            name, shape, dtype, start, size, buffer, offset, strides = data
            piece = cls(
                str(name), _shape(shape), str(dtype), _shape(start), _shape(size), int(buffer),
                int(offset), _shape(strides),
            )  # fmt: skip
        except (TypeError, ValueError, OverflowError) as error:  # JSON knows Infinity
            raise InvalidArgument(f"weights: no piece: {data!r:.100}") from error
        check(piece)
        return piece


def _shape(numbers: Sequence[int]) -> Shape:
    return tuple(int(number) for number in numbers)


def check(piece: Piece) -> None:
    """InvalidArgument for a box that is not within its parameter."""
    places = len(piece.shape)
    if not places == len(piece.start) == len(piece.size) == len(piece.strides):
        raise InvalidArgument(f"parameter '{piece.name}': axes differ: {piece}")
    for axis in range(places):
        if not 0 <= piece.start[axis] <= piece.shape[axis] - piece.size[axis]:
            raise InvalidArgument(
                f"parameter '{piece.name}': from {piece.start} on, {piece.size}, is not within "
                f"{piece.shape}"
            )
    if min((*piece.size, 0)) < 0 or piece.offset < 0 or min((*piece.strides, 0)) < 0:
        raise InvalidArgument(f"parameter '{piece.name}': a negative number: {piece}")


def row_major(size: Shape) -> Shape:
    """Strides of an array that lies in one piece."""
    strides = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * size[axis + 1]
    return tuple(strides)


def piece_of(
    name: str, dtype: str, shape: Shape, start: Shape, size: Shape, buffer: int, offset: int = 0
) -> Piece:
    """A box that lies in its buffer in one piece, row by row."""
    piece = Piece(name, shape, dtype, start, size, buffer, offset, row_major(size))
    check(piece)
    return piece


# --- boxes of the usual placements ---


@dataclass(frozen=True, slots=True)
class Shard:
    """An axis of the mesh cuts an axis of the parameter, as torch.chunk does: the first shards are
    the larger ones, the last ones may be empty. stride_factor is that of DTensor's strided shards,
    where FSDP comes before a tensor-parallel cut of the same axis.
    """

    axis: int
    stride_factor: int = 1


@dataclass(frozen=True, slots=True)
class Replicate:
    """All along this axis of the mesh hold the same."""


Placement = Shard | Replicate


def boxes(
    shape: Shape, mesh: Shape, at: Shape, placements: Sequence[Placement]
) -> list[tuple[Shape, Shape]]:
    """(start, size) of what the rank at `at` of a mesh holds, in the order in which it lies there.

    One box, but for strided shards, which may be several rows of the whole.
    """
    rows = [_Rows(0, length) for length in shape]
    for length, place, placement in zip(mesh, at, placements, strict=True):
        if isinstance(placement, Shard):
            axis = placement.axis
            if placement.stride_factor == 1:
                rows[axis] = rows[axis].chunk(length, place)
            else:
                rows[axis] = rows[axis].strided(length, place, placement.stride_factor)
    starts: list[list[tuple[int, int]]] = [row.spans() for row in rows]
    found: list[tuple[Shape, Shape]] = [((), ())]
    for spans in starts:
        found = [
            ((*start, begin), (*size, length)) for start, size in found for begin, length in spans
        ]
    return [box for box in found if math.prod(box[1])]


@dataclass(frozen=True, slots=True)
class _Rows:
    begin: int
    length: int
    more: tuple[tuple[int, int], ...] | None = None

    def chunk(self, count: int, which: int) -> "_Rows":
        """Of a strided shard its parts are shared: they are what the cut behind it is of."""
        if self.more is not None:
            if count != len(self.more):
                raise InvalidArgument(
                    f"placements: a strided shard of {len(self.more)} parts, cut into {count}"
                )
            return _Rows(*self.more[which])
        each = -(-self.length // count)
        begin = min(self.length, each * which)
        return _Rows(self.begin + begin, min(each, self.length - begin))

    def strided(self, count: int, which: int, factor: int) -> "_Rows":
        """Cut into `factor` parts first, each of which is cut into `count`."""
        parts = [self.chunk(factor, part).chunk(count, which) for part in range(factor)]
        return _Rows(self.begin, self.length, tuple((p.begin, p.length) for p in parts))

    def spans(self) -> list[tuple[int, int]]:
        return [(self.begin, self.length)] if self.more is None else list(self.more)

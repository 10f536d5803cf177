"""What a rank has, as it tells all others: its parameters' boxes, their buffers and its address."""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from braid.arrays import Array
from braid.engine import Descriptor, Engine, Peer, Region, values
from braid.errors import InvalidArgument
from braid.weights.pieces import Piece, Shape, check

VERSION = 2
"""Of what ranks tell, and of the dialogue of a version."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A rank's part of one parameter.

    array   what lies here: NumPy's or torch's
    shape   of the whole parameter; left out: the array's
    boxes   (start, size) of the parts that lie here, one behind the other along one axis; left out:
            all of it, or what `start` says
    strides of the whole parameter's axes in the array, in elements, where they are not the array's
            (a transpose, a part of a fused matrix); offset: of the first element
    """

    name: str
    array: Array
    shape: Shape = ()
    boxes: Sequence[tuple[Shape, Shape]] = ()
    start: Shape = ()
    strides: Shape = ()
    offset: int = 0
    size: Shape = ()

    def pieces(self, buffer: int, base: int = 0) -> list[Piece]:
        """Its boxes in buffer number `buffer`, of which the array begins at element `base`."""
        local = tuple(int(n) for n in self.array.shape)
        shape = self.shape or self.size or local
        start = self.start or (0,) * len(shape)
        parts = list(self.boxes) or [(start, self.size or local)]
        strides = self.strides or _element_strides(self.array)
        out, at = [], self.offset + base
        axis = _axis_of(parts)
        for begin, size in parts:
            piece = Piece(self.name, shape, dtype_of(self.array), begin, size, buffer, at, strides)
            check(piece)
            out.append(piece)
            at += size[axis] * strides[axis] if size else 0
        return out


def _axis_of(parts: Sequence[tuple[Shape, Shape]]) -> int:
    """Along which axis several boxes lie behind each other."""
    first = parts[0][0]
    differ = {a for start, _ in parts for a in range(len(first)) if start[a] != first[a]}
    if len(differ) > 1:
        raise InvalidArgument(f"weights: boxes must follow along one axis, found {list(parts)}")
    return min(differ, default=0)


def dtype_of(array: Array) -> str:
    """float32, bfloat16, ..., whoever's array it is."""
    return str(array.dtype).removeprefix("torch.")


def _element_strides(array: Array) -> Shape:
    if hasattr(array, "data_ptr"):
        return tuple(int(n) for n in array.stride())
    return tuple(int(n) // array.itemsize for n in array.strides)


def extent(array: Array) -> tuple[int, int, int | None]:
    """(address, bytes, GPU or None) from the first to the last element."""
    if hasattr(array, "data_ptr"):
        size = int(array.element_size())
        address = int(array.data_ptr())
        device = None if array.device.type == "cpu" else int(array.device.index or 0)
    elif isinstance(array, np.ndarray):
        size, address, device = array.itemsize, array.ctypes.data, None
    else:
        raise InvalidArgument(
            f"weights: asked for a NumPy array or a tensor, found {type(array).__name__}"
        )
    last = sum(
        (int(length) - 1) * stride
        for length, stride in zip(array.shape, _element_strides(array), strict=True)
    )
    return address, (last + 1) * size if 0 not in array.shape else 0, device


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The memory of a host's array as bytes, in the order in which it lies. By its address: the
    array must outlive them.
    """
    address, nbytes, device = extent(array)
    if device is not None:
        raise InvalidArgument("weights: the bytes of a GPU's tensor are not the host's to read")
    view = (ctypes.c_uint8 * nbytes).from_address(address)
    found: npt.NDArray[np.uint8] = np.ctypeslib.as_array(view)
    return found


def host_bytes(array: Array) -> npt.NDArray[np.uint8] | None:
    """as_bytes(); None for a GPU's tensor."""
    return as_bytes(array) if extent(array)[2] is None else None


def box_of(array: Array, piece: Piece) -> Array:
    """A piece's elements where they lie, as an array of the piece's size."""
    if hasattr(array, "data_ptr"):
        at = int(array.storage_offset()) + piece.offset
        tensor: Array = array.as_strided(piece.size, piece.strides, at)
        return tensor
    elements = as_bytes(array).view(array.dtype)[piece.offset :]
    strides = [stride * array.itemsize for stride in piece.strides]
    return np.lib.stride_tricks.as_strided(elements, piece.size, strides, writeable=False)


def region_of(engine: Engine, array: Array) -> Region:
    """From the first to the last element."""
    address, nbytes, device = extent(array)
    place = (address, nbytes) if device is None else (address, nbytes, device)
    return engine.register(place)


@dataclass(slots=True)
class Buffers:
    """Registered memory of a rank: a buffer for each array."""

    regions: list[Region] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    @classmethod
    def register(cls, engine: Engine, parameters: Sequence[Parameter]) -> "Buffers":
        """One region for each array, however many parameters lie in it."""
        made, known = cls(), dict[tuple[tuple[int, int, int | None], str], int]()
        try:
            for parameter in values.several(parameters, "parameters"):
                values.of_kind(parameter, Parameter, "parameters")
                place = extent(parameter.array)
                key = place, dtype_of(parameter.array)
                if key not in known and place[1]:
                    known[key] = len(made.regions)
                    made.regions.append(region_of(engine, parameter.array))
                    made.arrays.append(parameter.array)
                if place[1]:
                    made.pieces += parameter.pieces(known[key])
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """When it returns nothing can land in the arrays any more."""
        while self.regions:
            self.regions.pop().unregister()


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a rank tells all others. Bytes go by any means that members alone can read."""

    side: str
    """trainer or worker."""
    rank: int
    name: str
    address: Peer
    regions: list[Descriptor]
    pieces: list[Piece]

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": VERSION,
                "side": self.side,
                "rank": self.rank,
                "name": self.name,
                "address": self.address.data.hex(),
                "regions": [region.data.hex() for region in self.regions],
                "pieces": [piece.as_json() for piece in self.pieces],
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Holdings":
        """InvalidArgument for what is none."""
        try:
            told: Any = json.loads(data)
            if told["version"] != VERSION:
                raise InvalidArgument(
                    f"weights: asked for version {VERSION} of holdings, found {told['version']!r}"
                )
            return cls(
                str(told["side"]),
                int(told["rank"]),
                str(told["name"]),
                Peer(bytes.fromhex(told["address"])),
                [Descriptor(bytes.fromhex(text)) for text in told["regions"]],
                [Piece.from_json(piece) for piece in told["pieces"]],
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"weights: no holdings: {error}") from error


def sides_of(told: Sequence[bytes]) -> tuple[list[Holdings], list[Holdings]]:
    """Trainers and workers in the order of their ranks; InvalidArgument for one that lacks."""
    found: dict[str, dict[int, Holdings]] = {"trainer": {}, "worker": {}}
    for data in told:
        holdings = Holdings.decode(data)
        side = found.get(holdings.side)
        if side is None or holdings.rank in side:
            raise InvalidArgument(
                f"weights: {holdings.side} {holdings.rank} is told twice, or none"
            )
        side[holdings.rank] = holdings
    for name, side in found.items():
        if not side or sorted(side) != list(range(len(side))):
            raise InvalidArgument(
                f"weights: asked for {name}s 0 to {max(side, default=0)}, found {sorted(side)}"
            )
    return tuple([side[rank] for rank in range(len(side))] for side in found.values())  # type: ignore[return-value]

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
"""The version of what ranks tell each other, and of the dialogue."""


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

    def __post_init__(self) -> None:
        """InvalidArgument for an array whose elements no strides tell of; see extent()."""
        try:
            extent(self.array)
        except InvalidArgument as error:
            raise InvalidArgument(f"parameter '{self.name}': {error}") from None

    def pieces(self, buffer: int, base: int = 0) -> list[Piece]:
        """Its boxes in buffer number `buffer`, of which the array begins at element `base`.

        InvalidArgument for a box that is not within its parameter or not within the array.
        """
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
            _check_reach(piece, base, self.array)
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


def _check_reach(piece: Piece, base: int, array: Array) -> None:
    """InvalidArgument for a box that goes on behind the array's last element."""
    if not piece.elements():
        return
    first = piece.offset - base
    last = first + sum((n - 1) * step for n, step in zip(piece.size, piece.strides, strict=True))
    room = extent(array)[1] // int(array.itemsize)
    if last >= room:
        raise InvalidArgument(
            f"parameter '{piece.name}': asked for {piece.size} with strides {piece.strides} from "
            f"element {first} on, to element {last}; the array's last is {room - 1}"
        )


def check_target(parameter: Parameter) -> None:
    """InvalidArgument for an array that cannot be written, or of which several elements share
    memory, as a broadcast one's do.
    """
    if isinstance(parameter.array, np.ndarray) and not parameter.array.flags.writeable:
        raise InvalidArgument(
            f"parameter '{parameter.name}': asked for an array to write to, found a read-only one"
        )
    for piece in parameter.pieces(0) if extent(parameter.array)[1] else ():
        if _shares_memory(piece):
            raise InvalidArgument(
                f"parameter '{parameter.name}': asked for memory of its own for each element, "
                f"found several in one place: {piece.size} with strides {piece.strides}"
            )


def _shares_memory(piece: Piece) -> bool:
    """Whether two elements of a piece are one in memory."""
    axes = sorted((s, n) for s, n in zip(piece.strides, piece.size, strict=True) if n > 1)
    if 0 in piece.size or not axes:
        return False
    reach, is_nested = 0, True
    for stride, length in axes:
        is_nested &= stride > reach
        reach += stride * (length - 1)
    if is_nested or axes[0][0] == 0:
        return not is_nested
    places = np.zeros(1, np.int64)  # axes that lie between each other's elements: one by one
    for stride, length in axes:
        places = (places[:, None] + stride * np.arange(length)).reshape(-1)
    return len(np.unique(places)) != len(places)


def dtype_of(array: Array) -> str:
    """float32, bfloat16, ..., whoever's array it is."""
    return str(array.dtype).removeprefix("torch.")


def _element_strides(array: Array) -> Shape:
    """In elements; of axes of one element anything that is not negative."""
    if hasattr(array, "data_ptr"):
        return tuple(int(n) for n in array.stride())
    for length, stride in zip(array.shape, array.strides, strict=True):
        if length > 1 and (stride < 0 or stride % array.itemsize):
            raise InvalidArgument(
                f"weights: asked for strides of whole elements of {array.itemsize} bytes, none of "
                f"them negative, found {array.strides} bytes"
            )
    return tuple(max(0, int(n) // array.itemsize) for n in array.strides)


def extent(array: Array) -> tuple[int, int, int | None]:
    """(address, bytes, GPU or None) from the first to the last element.

    InvalidArgument for what is neither NumPy's nor torch's, for strides that are negative or no
    whole elements, and for tensors whose values are not what lies at their address: without memory
    of their own (DTensors, the meta device), conjugated, negated, on devices other than CUDA's.
    """
    if hasattr(array, "data_ptr"):
        size = int(array.element_size())
        address = int(array.data_ptr())
        device = _gpu_of(array)
    elif isinstance(array, np.ndarray):
        size, address, device = array.itemsize, array.ctypes.data, None
    else:
        raise InvalidArgument(
            f"weights: asked for a NumPy array or a tensor, found {type(array).__name__}"
        )
    if 0 in array.shape:
        return address, 0, device
    last = sum(
        (int(length) - 1) * stride
        for length, stride in zip(array.shape, _element_strides(array), strict=True)
    )
    return address, (last + 1) * size, device


def _gpu_of(tensor: Array) -> int | None:
    """The GPU that a tensor lies on, None for the host; InvalidArgument for one of anything else,
    and for one that is not read as it lies.
    """
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or (tensor.numel() and not tensor.data_ptr()):
        raise InvalidArgument(
            f"weights: asked for a tensor with memory of its own on the host or a CUDA GPU, found "
            f"a {type(tensor).__name__} on '{tensor.device}' (of DTensors: full_tensor(), or "
            "braid.weights.doors.dtensors)"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            "weights: asked for a tensor whose values lie in memory, found one that is conjugated "
            "or negated when it is read: .resolve_conj().resolve_neg()"
        )
    return None if kind == "cpu" else int(tensor.device.index or 0)


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


def box_of(array: Array, piece: Piece, *, writeable: bool = False) -> Array:
    """A piece's elements where they lie, as an array of the piece's size."""
    if hasattr(array, "data_ptr"):
        at = int(array.storage_offset()) + piece.offset
        tensor: Array = array.as_strided(piece.size, piece.strides, at)
        return tensor
    strides = [stride * array.itemsize for stride in piece.strides]
    at = piece.offset * array.itemsize
    box: npt.NDArray[Any] = np.ndarray(piece.size, array.dtype, as_bytes(array), at, strides)
    box.flags.writeable = writeable  # as_strided() knows no types but NumPy's own
    return box


def region_of(engine: Engine, array: Array) -> Region:
    """From the first to the last element."""
    address, nbytes, device = extent(array)
    place = (address, nbytes) if device is None else (address, nbytes, device)
    return engine.register(place)


def take_back(engine: Engine, region: Region) -> None:
    """When it returns nothing can land there any more: a closed engine has taken its regions."""
    try:
        region.unregister()
    except InvalidArgument:
        if not engine.closed:
            raise
        engine.wait_closed()


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
            made.close(engine)
            raise
        return made

    def close(self, engine: Engine) -> None:
        """When it returns nothing can land in the arrays any more."""
        while self.regions:
            take_back(engine, self.regions.pop())


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
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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

"""Copies of a trainer's parameters in the dtypes that workers have, as much at a time as there is
room for.
"""

import time
from collections.abc import Callable

import numpy as np

from braid.arrays import Array
from braid.engine import Engine, Region, Ticket
from braid.errors import InvalidArgument
from braid.weights.holdings import dtype_of, extent, region_of, take_back
from braid.weights.pieces import Piece, piece_of
from braid.weights.plan import Route, Runs, runs_between

Cast = Callable[[str, Array, str], Array]
"""(name, what the trainer holds of it, the worker's dtype) -> an array of that dtype, as large."""


class Copies:
    """Casted parameters on their way: below `watermark` bytes before another one is made."""

    def __init__(self, engine: Engine, watermark: int) -> None:
        self._engine = engine
        self._watermark = watermark
        self._live: dict[tuple[int, str], tuple[Array, Region, int]] = {}
        """The copies, their regions and bytes, by the source's piece and the dtype."""
        self._tickets: dict[int, list[Ticket]] = {}

    def make(
        self, source: Piece, cast: Callable[[], Array], route: Route, target: Piece, until: float
    ) -> tuple[Array, Region, Runs]:
        """The parameter as the worker has it, and the route's runs in that copy."""
        dtype = target.dtype
        key = route.source_piece, dtype
        if key not in self._live:
            self._make_room(until)
            array = _in_one_piece(source, dtype, cast())
            self._live[key] = array, region_of(self._engine, array), extent(array)[1]
        array, region, _ = self._live[key]
        copy = piece_of(source.name, dtype, source.shape, source.start, source.size, 0)
        return array, region, runs_between(copy, target, route.start, route.size)

    def note(self, region: Region, ticket: Ticket) -> None:
        self._tickets.setdefault(region.id, []).append(ticket)

    def _make_room(self, until: float) -> None:
        """Lets go of the oldest copies once all writes out of them have landed: until then a worker
        would get whatever comes into their memory next.
        """
        while self._live and sum(n for _, _, n in self._live.values()) >= self._watermark:
            oldest = next(iter(self._live))
            _, region, _ = self._live[oldest]
            for ticket in self._tickets.pop(region.id, []):
                ticket.wait(max(0.01, until - time.monotonic()))
            take_back(self._engine, region)
            del self._live[oldest]

    def close(self) -> None:
        """To be called when all writes have ended."""
        for _, region, _ in self._live.values():
            take_back(self._engine, region)
        self._live.clear()


def _in_one_piece(source: Piece, dtype: str, made: Array) -> Array:
    """What a cast has made, contiguous. InvalidArgument where it is not what was asked for."""
    shape = tuple(int(n) for n in made.shape)
    if dtype_of(made) != dtype or shape != source.size:
        raise InvalidArgument(
            f"parameter '{source.name}': the cast made {dtype_of(made)} of {shape}, the worker has "
            f"{dtype}, and this is {source.size}"
        )
    tensor_or_array: Array = (
        made.contiguous() if hasattr(made, "data_ptr") else np.ascontiguousarray(made)
    )
    return tensor_or_array


def numpy_cast(name: str, array: Array, dtype: str) -> Array:
    try:
        return np.asarray(array).astype(dtype, order="C")
    except TypeError as error:
        raise InvalidArgument(
            f"parameter '{name}': NumPy has no type {dtype}: give Sender a cast ({error})"
        ) from error

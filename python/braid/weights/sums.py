"""A route's bytes as one text: where they lie on one side, their checksum, and how they are cut.

A route is runs of neighbouring bytes. One behind the other they are a text, which is the same on
both sides: a part of it is named by its first byte and its length, and each side finds where that
lies. So a trainer may cut as it likes, and a worker sums what it was told of.

The checksum is CRC-64/NVME (src/base/crc64.h).
"""

import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from braid import _braid
from braid.errors import InvalidArgument
from braid.weights.plan import Runs

NAME = "crc64nvme"
"""What a dialogue calls it: a side that knows no such checksum says so."""

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.uint64]

_CORES_A_THREAD = 4
_MOST_THREADS = 8


class Text:
    """One side of a route. data None: a GPU's memory, which nobody reads here."""

    def __init__(self, data: Bytes | None, begins: Places, run_bytes: int) -> None:
        self._data = data
        self._begins = begins
        self._run = run_bytes
        self.nbytes = len(begins) * run_bytes

    @classmethod
    def of(cls, data: Bytes | None, runs: Runs, itemsize: int, *, is_source: bool) -> "Text":
        offset = runs.source_offset if is_source else runs.target_offset
        stride = runs.source_stride if is_source else runs.target_stride
        ids = runs.source_ids if is_source else runs.target_ids
        begins = (ids * (stride * itemsize) + offset * itemsize).astype(np.uint64)
        return cls(data, begins, runs.run * itemsize)

    @property
    def can_sum(self) -> bool:
        return self._data is not None

    def sum(self, begin: int, nbytes: int) -> int:
        """The checksum of the part from byte `begin` on."""
        if begin < 0 or nbytes < 0 or begin + nbytes > self.nbytes:
            raise InvalidArgument(
                f"weights: {nbytes} bytes from {begin} on, of a route of {self.nbytes}"
            )
        found = 0
        while nbytes:
            number, within = divmod(begin, self._run)
            whole = nbytes // self._run if within == 0 else 0
            if whole:
                length, places = self._run, self._begins[number : number + whole]
            else:
                length = min(nbytes, self._run - within)
                places = self._begins[number : number + 1] + np.uint64(within)
            found = _braid.crc64_of_runs(self._data, places, length, found)
            begin += length * len(places)
            nbytes -= length * len(places)
        return found


class Cut(NamedTuple):
    """A part of a route's text as pages of both sides' buffers. Numbers are of bytes."""

    begin: int
    nbytes: int
    page_bytes: int
    source_offset: int
    source_ids: npt.NDArray[np.int64]
    target_offset: int
    target_ids: npt.NDArray[np.int64]


def cuts(runs: Runs, itemsize: int, most: int) -> Iterator[Cut]:
    """A whole route in order, in cuts of at most `most` bytes each, or of one element."""
    run, source, target = (
        runs.run * itemsize, runs.source_offset * itemsize, runs.target_offset * itemsize,
    )  # fmt: skip
    if run <= most:
        count = most // run
        for first in range(0, len(runs.source_ids), count):
            which = slice(first, first + count)
            ids = runs.source_ids[which]
            yield Cut(first * run, len(ids) * run, run, source, ids, target, runs.target_ids[which])
        return
    step = max(1, most // itemsize) * itemsize
    for number in range(len(runs.source_ids)):
        which = slice(number, number + 1)
        for at in range(0, run, step):
            nbytes = min(step, run - at)
            yield Cut(
                number * run + at, nbytes, nbytes, source + at, runs.source_ids[which],
                target + at, runs.target_ids[which],
            )  # fmt: skip


class Summing:
    """Sums on threads of its own where there are cores for them; else on the asking thread."""

    def __init__(self, cores: int | None = None) -> None:
        self._count = min(_MOST_THREADS, (cores or os.cpu_count() or 1) // _CORES_A_THREAD)
        self._threads = (
            ThreadPoolExecutor(self._count, "braid.weights.sums") if self._count > 1 else None
        )

    @property
    def most(self) -> int:
        """How many it computes at a time besides."""
        return self._count if self._threads is not None else 0

    def begin(self, text: Text, begin: int, nbytes: int) -> Callable[[], int]:
        """Gives the number, once it is asked for."""
        if self._threads is None:
            return lambda: text.sum(begin, nbytes)
        return self._threads.submit(text.sum, begin, nbytes).result

    def each(
        self, text: Text, parts: Iterable[Cut], *, is_summed: bool
    ) -> Iterator[tuple[Cut, Callable[[], int | None]]]:
        """Every part with what gives its number, so many begun before they are asked for as there
        are threads. None: it is not summed.
        """
        if not is_summed:
            yield from ((part, lambda: None) for part in parts)
            return
        begun = deque[tuple[Cut, Callable[[], int]]]()
        for part in parts:
            begun.append((part, self.begin(text, part.begin, part.nbytes)))
            if len(begun) > self.most:
                yield begun.popleft()
        yield from begun

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


_LANDED = struct.Struct("<4sBBHIQQQQQ")
_MAGIC = b"bwt "
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Landed:
    """What comes behind the bytes of a part: a notification of the engine."""

    plan: int
    """A hash; parts of another plan are not looked at."""
    version: int
    trainer: int
    route: int
    """The route's number among those from this trainer to this worker, in the table's order."""
    begin: int
    nbytes: int
    checksum: int | None
    """None: the trainer compares none."""

    def encode(self) -> bytes:
        return _LANDED.pack(
            _MAGIC, _VERSION, self.checksum is not None, self.trainer, self.route, self.plan,
            self.version, self.begin, self.nbytes, self.checksum or 0,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> "Landed":
        """InvalidArgument for what is none."""
        if len(data) != _LANDED.size or data[:4] != _MAGIC or data[4] != _VERSION:
            raise InvalidArgument(f"weights: no word of version {_VERSION} of a part: {data[:8]!r}")
        _, _, has_sum, trainer, route, plan, version, begin, nbytes, checksum = _LANDED.unpack(data)
        return cls(plan, version, trainer, route, begin, nbytes, checksum if has_sum else None)


class Tiling:
    """Which parts of a route have come: each byte once."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._left = nbytes
        self._parts: list[tuple[int, int]] = []

    def add(self, begin: int, nbytes: int) -> bool:
        """Whether all have come now. InvalidArgument: it is no part of the route, or some came
        twice and others never.
        """
        if begin + nbytes > self._nbytes:
            raise InvalidArgument(
                f"weights: of a route of {self._nbytes} bytes a part came from {begin} on, of "
                f"{nbytes}"
            )
        self._parts.append((begin, nbytes))
        self._left -= nbytes
        if self._left > 0:
            return False
        at = 0
        for first, length in sorted(self._parts):
            if first != at:
                raise InvalidArgument(
                    f"weights: of a route of {self._nbytes} bytes a part came from {first} on, "
                    f"where {at} was due"
                )
            at += length
        return True

"""A trainer's rank: sends its part of each version.

    trainer 0 (leader)            trainers                      workers
    go {version} ------------------------------------------->   makes room, or pauses: torn
                                  <--------------------------   ready {version}
                                  writes its routes ------->    they land
                                  landed {version, sums} --->   compares what has landed
    <-------------------------------------------------------    have {version}, or bad {why}
    commit {version} ------------>-------------------------->   serves it
    <-------------------------------------------------------    applied {version}

Until `commit` a worker with two buffers serves the old version. When anything fails, the leader
says `abort {version, why}` to all: then no worker has the new version. A leader that is lost is
found by everybody's own deadline; a worker that had said `have` then serves nothing until the next
version, since it cannot know what others do.
"""

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from braid.arrays import Array
from braid.engine import Engine, Region, Ticket
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.holdings import Buffers, Holdings, Parameter, as_bytes, dtype_of
from braid.weights.pieces import Piece, row_major
from braid.weights.plan import Route, Runs, Table, _runs, itemsize
from braid.weights.station import Station, lost

_LONG_RUN = 512

Cast = Callable[[str, Array, str], Array]
"""(name, local array, the worker's dtype) -> an array of that dtype that lies in one piece."""


class Sender(Station):
    """One trainer's rank. A context manager.

    parameters  its parts; their memory must not change during update()
    watermark   most bytes of casted copies at a time
    cast        makes the worker's dtype of the trainer's, where they differ: by NumPy if left out
    checks      whether workers compare checksums of what has landed
    """

    def __init__(
        self,
        engine: Engine,
        rank: int,
        parameters: Sequence[Parameter],
        *,
        watermark: int = 1 << 28,
        cast: Cast | None = None,
        checks: bool = True,
    ) -> None:
        super().__init__(engine, "trainer", rank)
        self._buffers = Buffers.register(engine, parameters)
        self._watermark = watermark
        self._cast = cast or _numpy_cast
        self._checks = checks
        self._routes: list[tuple[Route, Runs]] = []
        self._targets: list[int] = []
        self._last = -1
        self.kept: list[tuple[dict[str, Any], bytes]] = []
        """Letters of versions that are not sent yet."""
        self.bytes_sent = 0

    def describe(self) -> bytes:
        """What all other ranks must be told before they join."""
        regions = [region.descriptor for region in self._buffers.regions]
        return Holdings(
            self.side, self.rank, self.engine.name, self.engine.address, regions,
            self._buffers.pieces,
        ).encode()  # fmt: skip

    def join(self, told: Sequence[bytes]) -> Table:
        """Makes the plan of what all ranks have told. Again after any rank was replaced.

        InvalidArgument names a parameter that one side lacks, or whose shape differs.
        """
        table = self._plan(told)
        self._routes = [(route, table.runs(route)) for route in table.from_trainer(self.rank)]
        self._targets = sorted({route.target for route, _ in self._routes})
        return table

    def update(self, version: int, timeout: float = 60.0) -> None:
        """Sends a version; every trainer's rank calls it. Returns when all workers serve it.

        Timeout names who waits for whom; PeerLost a rank that is gone; Cancelled what another rank
        has found. Then no worker serves the version, and those of two buffers still the old one.
        """
        if self.table is None:
            raise InvalidArgument(f"{self.what}: asked for an update before join()")
        if version <= self._last:
            raise InvalidArgument(
                f"{self.what}: version {version} after {self._last}: each is sent once, also one "
                "that failed"
            )
        self._last = version
        until = time.monotonic() + timeout
        round_ = _Round(self, version, until)
        try:
            round_.run(self._targets, self._send_all)
        except Error as error:
            if self.rank == 0:
                round_.abort(str(error))
            else:
                round_.complain(str(error))
            raise

    def _send_all(self, version: int, until: float) -> dict[int, bytes]:
        """Writes all routes; by worker the checksums of them, in the order of the table."""
        sums: dict[int, list[int]] = {target: [] for target in self._targets}
        tickets: list[tuple[int, Ticket]] = []
        copies = _Copies(self.engine, self._watermark)
        try:
            for route, runs in self._routes:
                target = self._target_piece(route)
                source = self._buffers.pieces[route.source_piece]
                array: Array = self._buffers.arrays[source.buffer]
                region, begun = self._buffers.regions[source.buffer], runs
                if source.dtype != target.dtype:
                    array, region, begun = copies.make(
                        source, target, self._casted(source, target), route, until
                    )
                ticket = self._write(route, target, region, begun, until)
                copies.note(region, ticket)
                tickets.append((route.target, ticket))
                if self._checks:
                    sums[route.target].append(checksum(array, begun, target.dtype, is_source=True))
            for rank, ticket in tickets:
                self._wait(rank, ticket, until)
        except BaseException:
            for _, ticket in tickets:
                ticket.cancel()
            for _, ticket in tickets:
                _ended(ticket)
            raise
        finally:
            copies.close()
        del version
        return {rank: np.array(found, "<u4").tobytes() for rank, found in sums.items()}

    def _target_piece(self, route: Route) -> Piece:
        assert self.table is not None
        return self.table.workers[route.target][route.target_piece]

    def _casted(self, source: Piece, target: Piece) -> Callable[[], Array]:
        array = self._buffers.arrays[source.buffer]
        return lambda: self._cast(source.name, array, target.dtype)

    def _write(
        self, route: Route, target: Piece, region: Region, runs: Runs, until: float
    ) -> Ticket:
        size = itemsize(target.dtype)
        nbytes = route.elements() * size
        self.bytes_sent += nbytes
        return self.engine.write_pages(
            region,
            self.workers[route.target].regions[target.buffer],
            runs.run * size,
            runs.source_ids,
            runs.target_ids,
            src_stride=runs.source_stride * size,
            dst_stride=runs.target_stride * size,
            src_offset=runs.source_offset * size,
            dst_offset=runs.target_offset * size,
            timeout=max(0.01, until - time.monotonic()),
        )

    def _wait(self, rank: int, ticket: Ticket, until: float) -> None:
        try:
            ticket.wait(max(0.01, until - time.monotonic()) + 5)
        except Error as error:
            raise lost(f"{self.what} writes to worker {rank}", error) from error

    def close(self) -> None:
        self._buffers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Round:
    """One version, at one trainer's rank."""

    def __init__(self, sender: Sender, version: int, until: float) -> None:
        self._sender = sender
        self._version = version
        self._until = until
        self._heard: dict[str, set[int]] = {"ready": set(), "have": set(), "applied": set()}
        self._is_committed = False

    def run(self, targets: list[int], send_all: Callable[[int, float], dict[int, bytes]]) -> None:
        everybody = range(len(self._sender.workers))
        if self._sender.rank == 0:
            self._tell_workers("go")
        self._await("ready", set(targets))
        sums = send_all(self._version, self._until)
        for rank in targets:
            worker = self._sender.workers[rank]
            self._sender._say(worker, {"kind": "landed", "version": self._version}, sums[rank])
        if self._sender.rank == 0:
            self._await("have", set(everybody))
            self._tell_workers("commit")
            self._await("applied", set(everybody))
            self._tell_trainers("commit", "")
        else:
            self._await_commit()

    def abort(self, why: str) -> None:
        """The leader's word that the version is off."""
        for holdings in [*self._sender.workers, *self._sender.trainers[1:]]:
            self._try(holdings, {"kind": "abort", "version": self._version, "why": why})

    def complain(self, why: str) -> None:
        head = {"kind": "bad", "version": self._version, "why": f"{self._sender.what}: {why}"}
        self._try(self._sender.trainers[0], head)

    def _try(self, to: Holdings, head: dict[str, Any]) -> None:
        try:
            self._sender._say(to, head)
        except Error:
            return

    def _tell_workers(self, kind: str) -> None:
        for rank, worker in enumerate(self._sender.workers):
            head = {"kind": kind, "version": self._version, "checks": self._sender._checks}
            ticket = self._sender._say(worker, head)
            if kind == "go":
                self._sender._wait(rank, ticket, self._until)

    def _tell_trainers(self, kind: str, why: str) -> None:
        for trainer in self._sender.trainers[1:]:
            self._try(trainer, {"kind": kind, "version": self._version, "why": why})

    def _await(self, kind: str, ranks: set[int]) -> None:
        while not ranks <= self._heard[kind]:
            self._take(f"'{kind}' of workers {sorted(ranks - self._heard[kind])}")

    def _await_commit(self) -> None:
        while not self._is_committed:
            self._take("'commit' of trainer 0")

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next letter of this version. Those of later ones are kept: a worker may be ready for
        it before the leader's word of this one is here, since they are different peers.
        """
        kept = self._sender.kept
        for found in [letter for letter in kept if letter[0].get("version") == self._version]:
            kept.remove(found)
            return found
        while (left := self._until - time.monotonic()) > 0:
            letter = self._sender._letter(left)
            version = letter[0].get("version") if letter is not None else None
            if version == self._version:
                return letter
            if letter is not None and type(version) is int and version > self._version:
                kept.append(letter)
        return None

    def _take(self, wanted: str) -> None:
        found = self._next()
        if found is None:
            raise Timeout(
                f"version {self._version}: {self._sender.what} has waited in vain for {wanted}"
            )
        head, _ = found
        if head["kind"] in ("bad", "abort"):
            raise Cancelled(f"version {self._version}: {head.get('why')}")
        if head["kind"] == "commit":
            self._is_committed = True
        elif head["kind"] in self._heard:
            self._heard[head["kind"]].add(int(head.get("rank", -1)))


class _Copies:
    """Casted parameters on their way, at most `watermark` bytes at a time (or one of them)."""

    def __init__(self, engine: Engine, watermark: int) -> None:
        self._engine = engine
        self._watermark = watermark
        self._live: dict[int, tuple[Array, Region, int]] = {}
        """By the source's buffer."""
        self._tickets: dict[int, list[Ticket]] = {}

    def make(
        self, source: Piece, target: Piece, cast: Callable[[], Array], route: Route, until: float
    ) -> tuple[Array, Region, Runs]:
        """The parameter as the worker has it, and the route's runs in that copy."""
        if source.buffer not in self._live:
            self._make_room(until)
            array = cast()
            if dtype_of(array) != target.dtype:
                raise InvalidArgument(
                    f"parameter '{source.name}': the cast made {dtype_of(array)}, the worker has "
                    f"{target.dtype}"
                )
            data = as_bytes(array)
            self._live[source.buffer] = array, self._engine.register(data), data.nbytes
        array, region, _ = self._live[source.buffer]
        copy = Piece(
            source.name, source.shape, target.dtype, source.start, source.size, 0, 0,
            row_major(source.size),
        )  # fmt: skip
        return array, region, _runs(copy, target, route.start, route.size)

    def note(self, region: Region, ticket: Ticket) -> None:
        self._tickets.setdefault(region.id, []).append(ticket)

    def _make_room(self, until: float) -> None:
        """The oldest copies go when what they carried has landed. Until then they are kept: their
        memory, used again, would land in their place.
        """
        while self._live and sum(n for _, _, n in self._live.values()) >= self._watermark:
            oldest = next(iter(self._live))
            _, region, _ = self._live[oldest]
            for ticket in self._tickets.pop(region.id, []):
                ticket.wait(max(0.01, until - time.monotonic()))
            region.unregister()
            del self._live[oldest]

    def close(self) -> None:
        """All tickets have ended."""
        for _, region, _ in self._live.values():
            region.unregister()
        self._live.clear()


def _numpy_cast(name: str, array: Array, dtype: str) -> Array:
    try:
        return np.ascontiguousarray(np.asarray(array).astype(dtype))
    except TypeError as error:
        raise InvalidArgument(
            f"parameter '{name}': NumPy has no type {dtype}: give Sender a cast ({error})"
        ) from error


def _ended(ticket: Ticket) -> None:
    try:
        ticket.wait()
    except Error:
        return


def checksum(array: Array, runs: Runs, dtype: str, *, is_source: bool) -> int:
    """CRC-32 of a route's bytes, in the order of its runs; 0 for a GPU's memory, which nobody reads
    here.
    """
    if hasattr(array, "data_ptr") and array.device.type != "cpu":
        return 0
    size = itemsize(dtype)
    data = as_bytes(array)
    offset = runs.source_offset if is_source else runs.target_offset
    stride = runs.source_stride if is_source else runs.target_stride
    ids = runs.source_ids if is_source else runs.target_ids
    return _crc(data, ids * (stride * size) + offset * size, runs.run * size)


def _crc(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], nbytes: int) -> int:
    """Long runs where they lie; short ones are gathered, a MiB at a time."""
    found = 0
    if nbytes >= _LONG_RUN:
        for begin in begins.tolist():
            found = zlib.crc32(data[begin : begin + nbytes].data, found)
        return found
    step = max(1, (1 << 17) // max(1, nbytes))
    within = np.arange(nbytes)
    for first in range(0, len(begins), step):
        part = begins[first : first + step]
        found = zlib.crc32(data[part[:, None] + within].tobytes(), found)
    return found

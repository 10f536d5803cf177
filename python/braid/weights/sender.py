"""A trainer's rank: sends its part of each version.

    trainer 0 (leader)            trainers                      workers
    go {version, sums} ------------------------------------->   makes room, or pauses: torn
                                  <--------------------------   ready {version}
                                  sums a part of a route,
                                  writes it; behind it its
                                  place and checksum ------->   sums what lies there, compares
                                  and so on
    <-------------------------------------------------------    have {version}, or bad {why}
    commit {version} ------------>-------------------------->   serves it
    <-------------------------------------------------------    applied {version}
    served {version} ------------>

Both sides read a part while it is still in a cache: the trainer just before it is copied, the
worker just behind. So only some parts are on their way at a time.

Until `commit` a worker with two buffers serves the old version. When anything fails before it, the
leader says `abort {version, why}` to all: then no worker has the new version. Once one worker was
told `commit` there is no way back: all others are told, too, and who does not say `applied` is
named. A leader that is lost is found by everybody's own deadline; a worker that had said `have`
then serves nothing until the next version, since it cannot know what others do.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from braid.arrays import Array
from braid.closing import Closing
from braid.engine import Engine, Region, Ticket, values
from braid.errors import Cancelled, Error, Exhausted, InvalidArgument, Timeout
from braid.weights.holdings import (
    Buffers,
    Holdings,
    Parameter,
    box_of,
    dtype_of,
    extent,
    host_bytes,
    region_of,
    take_back,
)
from braid.weights.pieces import Piece, piece_of
from braid.weights.plan import Route, Runs, Table, _runs, itemsize
from braid.weights.station import Station, lost, words_of
from braid.weights.sums import NAME, Cut, Landed, Summing, Text, cuts

_SUMMED_UNDER_WAY = 4
"""Parts: enough that none waits for us, and so few that they are in a cache."""
_MOST_UNDER_WAY = 256
_UNBOUNDED = 1 << 62
_AGAIN_S = 0.01
_MOST_VERSION = 2**63 - 1

Cast = Callable[[str, Array, str], Array]
"""(name, what the trainer holds of it, the worker's dtype) -> an array of that dtype, as large."""


class Sender(Station, Closing):
    """One trainer's rank. A context manager.

    parameters  its parts; their memory must not change during update()
    watermark   most bytes of casted copies at a time
    cast        makes the worker's dtype of the trainer's, where they differ: by NumPy if left out
    checks      whether workers compare checksums of what has landed: each trainer decides it for
                what it sends, and trainer 0 whether anything is compared
    part        most bytes that have a checksum of their own: large ones cost less, small ones are
                still in a cache when they are copied and compared
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
        part: int = 4 << 20,
    ) -> None:
        super().__init__(engine, "trainer", rank)
        for name, nbytes in (("part", part), ("watermark", watermark)):
            if type(nbytes) is not int or nbytes < 1:
                raise InvalidArgument(
                    f"{self.what}: asked for {name} of at least 1 byte, found {nbytes!r}"
                )
        if type(checks) is not bool:
            raise InvalidArgument(
                f"{self.what}: asked for checks of True or False, found {checks!r}"
            )
        self._buffers = Buffers.register(engine, parameters)
        self._watermark = watermark
        self._cast = cast or _numpy_cast
        self._checks = checks
        self._part = part
        self._summing = Summing()
        self._routes: list[_Numbered] = []
        self._targets: list[int] = []
        self._last = -1
        self._is_closed = False
        self.committed: int | None = None
        """The last version that workers were told to serve, as far as this rank knows."""
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
        self.kept.clear()  # of the plan before
        self._routes, counts = [], dict[int, int]()
        for route in table.from_trainer(self.rank):
            number = counts.get(route.target, 0)
            counts[route.target] = number + 1
            self._routes.append(_Numbered(route, number, table.runs(route)))
        self._targets = sorted(counts)
        return table

    def update(self, version: int, timeout: float = 60.0) -> None:
        """Sends a version; every trainer's rank calls it. Returns when all workers serve it.

        Timeout names who waits for whom; PeerLost a rank that is gone; Cancelled what another rank
        has found. Then no worker serves the version, and those of two buffers still the old one:
        unless `committed` is this version, and the words say so. Then workers serve it, or will as
        soon as their on_resume comes back, but for those that are named.
        """
        if self.table is None or self._is_closed:
            when = "behind close()" if self._is_closed else "before join()"
            raise InvalidArgument(f"{self.what}: asked for an update {when}")
        if type(version) is not int or not 0 <= version <= _MOST_VERSION:
            raise InvalidArgument(
                f"{self.what}: asked for a version from 0 to {_MOST_VERSION}, found {version!r}"
            )
        if version <= self._last:
            raise InvalidArgument(
                f"{self.what}: version {version} after {self._last}: each is sent once, also one "
                "that failed"
            )
        until = time.monotonic() + values.seconds(timeout, f"{self.what}: update")
        self._last = version
        round_ = _Round(self, version, until)
        try:
            round_.run(self._targets, self._send_all)
        except BaseException as error:  # a cast's, too, and whoever is interrupted tells the others
            if self.rank == 0:
                round_.abort(words_of(error))
            elif self.committed != version:
                round_.complain(words_of(error))
            raise

    def _send_all(self, version: int, until: float) -> None:
        """Writes all routes, part by part, with what workers must be told behind each."""
        copies = _Copies(self.engine, self._watermark)
        window = _SUMMED_UNDER_WAY * self._part if self._checks else _UNBOUNDED
        flying = _Flying(self, until, window)
        try:
            for numbered in self._routes:
                self._send_route(numbered, version, copies, flying)
            flying.land()
        except BaseException:
            flying.take_back()
            raise
        finally:
            copies.close()

    def _send_route(
        self, numbered: "_Numbered", version: int, copies: "_Copies", flying: "_Flying"
    ) -> None:
        route, number, runs = numbered
        target = self._target_piece(route)
        source = self._buffers.pieces[route.source_piece]
        array: Array = self._buffers.arrays[source.buffer]
        region = self._buffers.regions[source.buffer]
        if source.dtype != target.dtype:
            casted = self._casted(source, target)
            array, region, runs = copies.make(source, casted, route, target, flying.until)
        size = itemsize(target.dtype)
        text = Text.of(host_bytes(array), runs, size, is_source=True)
        is_summed = self._checks and text.can_sum
        # What nobody sums need not be in a cache.
        parts = cuts(runs, size, self._part if is_summed else text.nbytes)
        for part, sum_of in self._summing.each(text, parts, is_summed=is_summed):
            flying.make_room(part.nbytes)
            word = Landed(
                self._plan_hash, version, self.rank, number, part.begin, part.nbytes, sum_of()
            )
            ticket = self._write(route.target, target, region, runs, part, word, flying.until)
            copies.note(region, ticket)
            flying.add(route.target, ticket, part.nbytes)

    def _target_piece(self, route: Route) -> Piece:
        assert self.table is not None
        return self.table.workers[route.target][route.target_piece]

    def _casted(self, source: Piece, target: Piece) -> Callable[[], Array]:
        box = box_of(self._buffers.arrays[source.buffer], source)
        return lambda: self._cast(source.name, box, target.dtype)

    def _write(
        self,
        rank: int,
        target: Piece,
        region: Region,
        runs: Runs,
        part: Cut,
        word: Landed,
        until: float,
    ) -> Ticket:
        self.bytes_sent += part.nbytes
        remote = self.workers[rank].regions[target.buffer]
        size = itemsize(target.dtype)
        left = max(0.01, until - time.monotonic())
        if len(part.source_ids) == 1:
            return self.engine.write(
                region,
                remote,
                part.nbytes,
                src_offset=part.source_offset + int(part.source_ids[0]) * runs.source_stride * size,
                dst_offset=part.target_offset + int(part.target_ids[0]) * runs.target_stride * size,
                notify=word.encode(),
                timeout=left,
            )
        return self.engine.write_pages(
            region,
            remote,
            part.page_bytes,
            part.source_ids,
            part.target_ids,
            src_stride=runs.source_stride * size,
            dst_stride=runs.target_stride * size,
            src_offset=part.source_offset,
            dst_offset=part.target_offset,
            notify=word.encode(),
            timeout=left,
        )

    def _wait(self, rank: int, ticket: Ticket, until: float) -> None:
        try:
            ticket.wait(max(0.01, until - time.monotonic()) + 5)
        except Error as error:
            raise lost(f"{self.what} writes to worker {rank}", error) from error

    def close(self) -> None:
        self._is_closed = True
        self._hear_out()
        self._buffers.close(self.engine)
        self._summing.close()


class _Numbered(NamedTuple):
    """A route, its number among those from here to its worker, and its runs."""

    route: Route
    number: int
    runs: Runs


class _Flying:
    """Writes under way, at most so many bytes (or one of them) and so many of them."""

    def __init__(self, sender: Sender, until: float, most_bytes: int) -> None:
        self.until = until
        self._sender = sender
        self._most_bytes = most_bytes
        self._tickets = deque[tuple[int, Ticket, int]]()
        self._nbytes = 0

    def make_room(self, nbytes: int) -> None:
        while self._tickets and (
            self._nbytes + nbytes > self._most_bytes or len(self._tickets) >= _MOST_UNDER_WAY
        ):
            self._land_first()

    def add(self, rank: int, ticket: Ticket, nbytes: int) -> None:
        self._tickets.append((rank, ticket, nbytes))
        self._nbytes += nbytes

    def land(self) -> None:
        while self._tickets:
            self._land_first()

    def _land_first(self) -> None:
        rank, ticket, nbytes = self._tickets[0]
        self._sender._wait(rank, ticket, self.until)
        self._tickets.popleft()
        self._nbytes -= nbytes

    def take_back(self) -> None:
        """When it returns nothing of them can land any more."""
        for _, ticket, _ in self._tickets:
            ticket.cancel()
        for _, ticket, _ in self._tickets:
            _ended(ticket)


class _Round:
    """One version, at one trainer's rank."""

    def __init__(self, sender: Sender, version: int, until: float) -> None:
        self._sender = sender
        self._version = version
        self._until = until
        self._heard: dict[str, set[int]] = {"ready": set(), "have": set(), "applied": set()}
        self._is_served = False

    def run(self, targets: list[int], send_all: Callable[[int, float], None]) -> None:
        everybody = range(len(self._sender.workers))
        if self._sender.rank == 0:
            self._go()
        self._await("ready", set(targets))
        send_all(self._version, self._until)
        if self._sender.rank == 0:
            self._await("have", set(everybody))
            self._commit()
            self._await("applied", set(everybody))
            self._tell_trainers("served")
        else:
            self._await_leader()

    def abort(self, why: str) -> None:
        """The leader's word that the version is off; to trainers alone where workers serve it."""
        workers = [] if self._sender.committed == self._version else self._sender.workers
        for holdings in [*workers, *self._sender.trainers[1:]]:
            self._try(holdings, {"kind": "abort", "version": self._version, "why": why})

    def complain(self, why: str) -> None:
        head = {"kind": "bad", "version": self._version, "why": f"{self._sender.what}: {why}"}
        self._try(self._sender.trainers[0], head)

    def _try(self, to: Holdings, head: dict[str, Any]) -> None:
        try:
            self._sender._say(to, head)
        except Error:
            return

    def _go(self) -> None:
        sums = NAME if self._sender._checks else ""
        head = {"kind": "go", "version": self._version, "sums": sums}
        for rank, worker in enumerate(self._sender.workers):
            self._sender._wait(rank, self._sender._say(worker, head), self._until)

    def _commit(self) -> None:
        """Once one worker was told, all are that can be: who was not will not say `applied`."""
        for worker in self._sender.workers:
            try:
                self._say_in_time(worker, {"kind": "commit", "version": self._version})
            except Error:
                if self._sender.committed != self._version:
                    raise
                continue
            if self._sender.committed != self._version:
                self._sender.committed = self._version
                self._tell_trainers("commit")

    def _say_in_time(self, to: Holdings, head: dict[str, Any]) -> None:
        """As soon as there is room for one more transfer."""
        while True:
            try:
                self._sender._say(to, head)
                return
            except Exhausted:
                if time.monotonic() > self._until:
                    raise
            time.sleep(_AGAIN_S)

    def _tell_trainers(self, kind: str) -> None:
        for trainer in self._sender.trainers[1:]:
            self._try(trainer, {"kind": kind, "version": self._version})

    def _await(self, kind: str, ranks: set[int]) -> None:
        while not ranks <= self._heard[kind]:
            self._take(f"'{kind}' of workers {sorted(ranks - self._heard[kind])}")

    def _await_leader(self) -> None:
        while not self._is_served:
            is_committed = self._sender.committed == self._version
            self._take(f"'{'served' if is_committed else 'commit'}' of trainer 0")

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
        is_committed = self._sender.committed == self._version
        what = f"version {self._version}{' is committed' if is_committed else ''}"
        if found is None:
            raise Timeout(f"{what}: {self._sender.what} has waited in vain for {wanted}")
        head, _ = found
        if head["kind"] in ("bad", "abort"):
            raise Cancelled(f"{what}: {head.get('why')}")
        if head["kind"] == "commit":
            self._sender.committed = self._version
        elif head["kind"] == "served":
            self._is_served = True
        elif head["kind"] in self._heard:
            self._heard[head["kind"]].add(int(head.get("rank", -1)))


class _Copies:
    """Casted parameters on their way, at most `watermark` bytes at a time (or one of them)."""

    def __init__(self, engine: Engine, watermark: int) -> None:
        self._engine = engine
        self._watermark = watermark
        self._live: dict[tuple[int, str], tuple[Array, Region, int]] = {}
        """By the source's piece and the dtype that was asked for."""
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
            take_back(self._engine, region)
            del self._live[oldest]

    def close(self) -> None:
        """All tickets have ended."""
        for _, region, _ in self._live.values():
            take_back(self._engine, region)
        self._live.clear()


def _in_one_piece(source: Piece, dtype: str, made: Array) -> Array:
    """What a cast has made, row by row; InvalidArgument where it is not what was asked for."""
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


def _numpy_cast(name: str, array: Array, dtype: str) -> Array:
    try:
        return np.asarray(array).astype(dtype, order="C")
    except TypeError as error:
        raise InvalidArgument(
            f"parameter '{name}': NumPy has no type {dtype}: give Sender a cast ({error})"
        ) from error


def _ended(ticket: Ticket) -> None:
    try:
        ticket.wait()
    except Error:
        return

"""A trainer's rank: sends its part of each version. The letters are in braid.weights.dialogue.

A version goes route by route, in parts. Both sides sum a part while it is still in a cache: the
trainer just before it is copied, the worker just after. So only some parts are under way at a time.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from braid.arrays import Array
from braid.closing import Closing
from braid.engine import Engine, Region, Ticket, values
from braid.errors import Error, InvalidArgument
from braid.weights.casted import Cast, Copies, numpy_cast
from braid.weights.dialogue import Dialogue, Trainer
from braid.weights.holdings import Buffers, Holdings, Parameter, box_of, host_bytes
from braid.weights.pieces import Piece
from braid.weights.plan import Route, Runs, Table, itemsize
from braid.weights.station import words_of
from braid.weights.sums import Cut, Landed, Summing, Text, cuts

_SUMMED_UNDER_WAY = 4
"""Parts: enough that none waits for us, and so few that they are in a cache."""
_MOST_UNDER_WAY = 256
_UNBOUNDED = 1 << 62
_MOST_VERSION = 2**63 - 1


class Sender(Trainer, Closing):
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
        super().__init__(engine, rank)
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
        self._cast = cast or numpy_cast
        self._checks = checks
        self._part = part
        self._summing = Summing()
        self._routes: list[_Numbered] = []
        self._targets: list[int] = []
        self._last = -1
        self._is_closed = False
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

        Timeout names who waits for whom, PeerLost a rank that is gone, Cancelled what another rank
        has found. After any of them no worker serves the version, and workers with two buffers
        still serve the old one: unless `committed` is this version, which the words say, too. Then
        all workers but those that are named serve it, or will when their on_resume returns.
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
        dialogue = Dialogue(self, version, until, has_sums=self._checks)
        try:
            dialogue.run(self._targets, self._send_all)
        except BaseException as error:  # of a cast, or Ctrl-C: the other ranks are told
            if self.rank == 0:
                dialogue.abort(words_of(error))
            elif self.committed != version:
                dialogue.complain(words_of(error))
            raise

    def _send_all(self, version: int, until: float) -> None:
        """Writes all routes, part by part; behind each part its worker is told of it."""
        copies = Copies(self.engine, self._watermark)
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
        self, numbered: "_Numbered", version: int, copies: Copies, flying: "_Flying"
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
            ticket = self._write(route, region, runs, part, word, flying.until)
            copies.note(region, ticket)
            flying.add(route.target, ticket, part.nbytes)

    def _target_piece(self, route: Route) -> Piece:
        assert self.table is not None
        return self.table.workers[route.target][route.target_piece]

    def _casted(self, source: Piece, target: Piece) -> Callable[[], Array]:
        box = box_of(self._buffers.arrays[source.buffer], source)
        return lambda: self._cast(source.name, box, target.dtype)

    def _write(
        self, route: Route, region: Region, runs: Runs, part: Cut, word: Landed, until: float
    ) -> Ticket:
        """Begins one part's write: pages where it is several runs."""
        self.bytes_sent += part.nbytes
        target = self._target_piece(route)
        remote = self.workers[route.target].regions[target.buffer]
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
    """Writes under way: at most `most_bytes` bytes, or one larger write."""

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
        """When this returns, nothing of the writes can land any more."""
        for _, ticket, _ in self._tickets:
            ticket.cancel()
        for _, ticket, _ in self._tickets:
            with suppress(Error):
                ticket.wait()

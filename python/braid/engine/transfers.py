"""What an engine begins: each call checks its arguments and gives a ticket; nothing waits."""

from collections.abc import Iterable, Sequence
from typing import Any

from braid import _braid
from braid.engine import values
from braid.engine.ends import Ends, Offsets
from braid.engine.region import Descriptor, Peer, Region
from braid.engine.ticket import Callback, Ticket
from braid.engine.values import Ids
from braid.engine.words import ScatterPart
from braid.errors import InvalidArgument

MOST_PLANES = 192
"""Most planes of one call, as in src/engine/copy_pages.h."""


class Transfers(Ends):
    """The part of Engine that begins transfers.

    Of all of them: `timeout` in seconds (the engine's when left out), after which the transfer is
    taken back and ends as Timeout; a peer that does not answer then is PeerLost after its lease at
    the latest. `callback(error or None)` runs when it ends. `notify` (at most
    64 KiB) is a notification for the peer behind all bytes. A source's memory must not change
    before the ticket has ended. Raised at the call: InvalidArgument (a range, a descriptor that was
    cut or altered or is another job's), Exhausted. By the ticket: PeerLost, Timeout, Cancelled,
    DriverError, and InvalidArgument for a region that is gone.
    """

    def write(
        self,
        src: Region,
        dst: Descriptor,
        nbytes: int | None = None,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        imm: int | None = None,
        notify: bytes = b"",
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """`nbytes` of `src` (left out: all from src_offset on) into a peer's region. It counts 1
        under `imm`, also for no bytes.
        """
        local = self._mine(src, "write: src")
        begin = values.whole(src_offset, "write: src_offset")
        core = self._live().write(
            local,
            begin,
            self._remote(dst, "write: dst"),
            values.whole(dst_offset, "write: dst_offset"),
            _bytes(nbytes, local, begin, "write"),
            values.immediate(imm, "write"),
            values.octets(notify, "write: notify"),
            values.nanoseconds(timeout, "write", 0),
            callback,
        )
        return self._ticket(core)

    def read(
        self,
        dst: Region,
        src: Descriptor,
        nbytes: int | None = None,
        *,
        dst_offset: int = 0,
        src_offset: int = 0,
        notify: bytes = b"",
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """`nbytes` of a peer's region (left out: as many as `dst` has from dst_offset on) into
        `dst`. The peer counts nothing; `notify` tells it that its memory was read.
        """
        local = self._mine(dst, "read: dst")
        begin = values.whole(dst_offset, "read: dst_offset")
        core = self._live().read(
            local,
            begin,
            self._remote(src, "read: src"),
            values.whole(src_offset, "read: src_offset"),
            _bytes(nbytes, local, begin, "read"),
            values.octets(notify, "read: notify"),
            values.nanoseconds(timeout, "read", 0),
            callback,
        )
        return self._ticket(core)

    def write_pages(
        self,
        src: Region | Sequence[Region],
        dst: Descriptor | Sequence[Descriptor],
        page_bytes: int,
        src_ids: Ids,
        dst_ids: Ids,
        *,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        src_offset: int | Offsets = 0,
        dst_offset: int | Offsets = 0,
        imm: int | None = None,
        notify: bytes = b"",
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """Page src_ids[i] of `src` to page dst_ids[i] of a peer's region, for all i.

        src_ids, dst_ids: [n] whole numbers. Page k lies at offset + k * stride; strides are
        page_bytes when left out. Each page counts 1 under `imm`.

        Pages of several *planes* (the layers of a KV cache, each an allocation of its own) move in
        one transfer: `src`, `dst`, `src_offset`, `dst_offset` are then lists of one length, of
        which any may be one value for all planes. src_ids[i] of src[p] goes to dst_ids[i] of
        dst[p], for all i and p, and each page of each plane counts. At most MOST_PLANES, all with
        one peer; src[p] are all of the host or all of the GPU, and so are dst[p]. A plane costs a
        small part of what a call does. InvalidArgument names the plane.
        """
        ours, theirs, our_offsets, their_offsets = self._planes(
            "write_pages", ("src", src, src_offset), ("dst", dst, dst_offset)
        )
        core = self._live().pages(
            False,
            ours,
            theirs,
            *_list("write_pages", page_bytes, src_ids, dst_ids),
            *_strides("write_pages", page_bytes, src_stride, dst_stride),
            our_offsets,
            their_offsets,
            values.immediate(imm, "write_pages"),
            values.octets(notify, "write_pages: notify"),
            values.nanoseconds(timeout, "write_pages", 0),
            callback,
        )
        return self._ticket(core)

    def read_pages(
        self,
        dst: Region | Sequence[Region],
        src: Descriptor | Sequence[Descriptor],
        page_bytes: int,
        dst_ids: Ids,
        src_ids: Ids,
        *,
        dst_stride: int | None = None,
        src_stride: int | None = None,
        dst_offset: int | Offsets = 0,
        src_offset: int | Offsets = 0,
        notify: bytes = b"",
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """Page src_ids[i] of a peer's region to page dst_ids[i] of `dst`, as write_pages(): also of
        several planes.
        """
        ours, theirs, our_offsets, their_offsets = self._planes(
            "read_pages", ("dst", dst, dst_offset), ("src", src, src_offset)
        )
        core = self._live().pages(
            True,
            ours,
            theirs,
            *_list("read_pages", page_bytes, src_ids, dst_ids),
            *_strides("read_pages", page_bytes, src_stride, dst_stride),
            our_offsets,
            their_offsets,
            None,
            values.octets(notify, "read_pages: notify"),
            values.nanoseconds(timeout, "read_pages", 0),
            callback,
        )
        return self._ticket(core)

    def scatter(
        self,
        src: Region,
        parts: Iterable[ScatterPart],
        *,
        imm: int | None = None,
        notify: bytes = b"",
        timeout: float | None = None,
    ) -> list[Ticket]:
        """One source, many targets: a write and a ticket for each part, in order. All parts are
        checked before the first begins.
        """
        each = enumerate(values.several(parts, "scatter: parts"))
        cores = self._live().scatter(
            self._mine(src, "scatter: src"),
            [self._part(part, f"scatter: part {i}") for i, part in each],
            values.immediate(imm, "scatter"),
            values.octets(notify, "scatter: notify"),
            values.nanoseconds(timeout, "scatter", 0),
        )
        return [self._ticket(core) for core in cores]

    def signal(
        self, peers: Iterable[Peer], imm: int, *, timeout: float | None = None
    ) -> list[Ticket]:
        """Adds 1 to the count of `imm` at every peer; no bytes move. A ticket each, in order."""
        number = values.whole(imm, "signal: imm", 2**32 - 1)
        limit = values.nanoseconds(timeout, "signal", 0)
        everyone = values.several(peers, "signal: peers")
        cores = self._live().signal([self._peer(peer) for peer in everyone], number, limit)
        return [self._ticket(core) for core in cores]

    def send(
        self,
        peer: Peer,
        data: bytes,
        *,
        imm: int | None = None,
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """A message for the peer's recv(): at most 64 KiB, in order. Exhausted (by the ticket):
        the peer has 64 MiB that it has not taken.
        """
        return self._say("send", peer, data, imm, timeout, callback)

    def notify(
        self,
        peer: Peer,
        data: bytes,
        *,
        imm: int | None = None,
        timeout: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """The same for the peer's take_notification()."""
        return self._say("notify", peer, data, imm, timeout, callback)

    def connect(
        self, peer: Peer, *, timeout: float | None = None, callback: Callback | None = None
    ) -> Ticket:
        """Connects now, so that the first transfer does not have to."""
        return self._say("connect", peer, b"", None, timeout, callback)

    def cancel(self, ticket: Ticket) -> None:
        """As Ticket.cancel()."""
        values.of_kind(ticket, Ticket, "cancel: ticket").cancel()

    def disconnect(self, peer: Peer) -> None:
        """Takes our transfers to the peer back, as cancel() does, then ends the connection.

        After a second of waiting for them at the latest. Their tickets end as Cancelled, or as
        they would have when that is too late.
        """
        self._live().disconnect(self._peer(peer))

    def _say(
        self,
        kind: str,
        peer: Peer,
        data: bytes,
        imm: int | None,
        timeout: float | None,
        callback: Callback | None,
    ) -> Ticket:
        core = self._live().message(
            self._peer(peer),
            kind,
            values.octets(data, kind),
            values.immediate(imm, kind),
            values.nanoseconds(timeout, kind, 0),
            callback,
        )
        return self._ticket(core)

    def _ticket(self, core: _braid.engine.Ticket) -> Ticket:
        return Ticket(core, lambda: self._take_back(core))

    def _take_back(self, core: _braid.engine.Ticket) -> None:
        if not core.is_done():
            self._live().cancel(core)


def _bytes(nbytes: int | None, local: _braid.engine.Region, begin: int, what: str) -> int:
    if nbytes is None:
        return max(0, local.nbytes - begin)
    return values.whole(nbytes, f"{what}: nbytes")


def _list(what: str, page_bytes: int, src_ids: Ids, dst_ids: Ids) -> tuple[int, Any, Any]:
    return (
        values.whole(page_bytes, f"{what}: page_bytes"),
        values.ids(src_ids, f"{what}: src_ids"),
        values.ids(dst_ids, f"{what}: dst_ids"),
    )


def _strides(what: str, page_bytes: int, src: int | None, dst: int | None) -> tuple[int, int]:
    """0 would mean page_bytes to the core, and one page for all ids to the caller."""
    for name, stride in (("src_stride", src), ("dst_stride", dst)):
        if stride is not None and values.whole(stride, f"{what}: {name}") == 0 and page_bytes:
            raise InvalidArgument(f"{what}: {name}: pages of {page_bytes} bytes overlap with 0")
    return (src or 0, dst or 0)

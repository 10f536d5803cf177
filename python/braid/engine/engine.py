"""The engine as users see it; the bytes are moved by braid._braid.

The file has the life of an engine, its memory and what arrives; transfers.py what it begins, and
ends.py what callers name in all of these.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from braid import _braid
from braid.arrays import Array
from braid.closing import Closing
from braid.engine import values
from braid.engine.arrivals import Arrivals
from braid.engine.group import PeerGroup
from braid.engine.region import Descriptor, Peer, Region
from braid.engine.ticket import Callback, Ticket
from braid.engine.transfers import Transfers
from braid.engine.words import Message, Watch
from braid.errors import Cancelled, InvalidArgument, Timeout

_open: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_MOST_DEVICE = 1023


class Engine(Transfers, Closing):
    """One process's part: its registered memory, its counts, its connections. A context manager.

    name        in messages of peers
    device      the GPU whose memory may be registered; None: memory of the host alone
    nics        "auto": efa or verbs devices where there are some, else tcp on `hosts`; "none":
                peers of this host only; or a list, "tcp:127.0.0.1", "net:10.0.0.1", "verbs:mlx5_0"
    hosts       addresses where peers connect. Left out: loopback without a token, all with one
    port        of them; 0: any that is free
    token       the job's secret, which peers must have, too; left out: BRAID_JOB_TOKEN, else on
                loopback one that this user's processes share
    local       copies between processes of one host without a NIC
    lease       seconds after which a peer that says nothing is lost, 1 at least
    timeout     seconds for each transfer that names none
    most_transfers  under way at once; one more is Exhausted
    cores       of the thread that moves the engine: "auto", those near its NICs, else near its GPU,
                that the calling thread may use; "off": all that this one may use

    Unavailable: no token, a host or a NIC that is not there. Exhausted: the port is taken.
    After a fork the child has no engine: each call there raises InvalidArgument.
    """

    def __init__(
        self,
        name: str = "engine",
        *,
        device: int | None = None,
        nics: Literal["auto", "none"] | Sequence[str] = "auto",
        hosts: str | Sequence[str] | None = None,
        port: int = 0,
        token: str | None = None,
        local: bool = True,
        lease: float = 5.0,
        timeout: float = 30.0,
        most_transfers: int = 16384,
        cores: Literal["auto", "off"] = "auto",
    ) -> None:
        values.text(name, "engine: name")
        values.of_kind(local, bool, "engine: local")
        given = os.environ.get("BRAID_JOB_TOKEN", "") if token is None else token
        secret = values.text(given, "engine: token")
        places = _hosts(hosts, has_token=bool(secret))
        self._name = name
        super().__init__(
            _braid.engine.Engine(
                name,
                places,
                values.whole(port, "engine: port", 65535),
                secret,
                _nics(nics, places, local),
                -1 if device is None else values.whole(device, "engine: device", _MOST_DEVICE),
                local,
                _positive_ns(lease, "engine: lease"),
                _positive_ns(timeout, "engine: timeout"),
                values.whole(most_transfers, "engine: most_transfers", 2**31),
                os.environ.get("BRAID_HOST_ID", ""),
                _cores(cores),
            )
        )
        self._timeout = timeout
        self._broken_barriers: set[int] = set()
        self._ended = threading.Event()
        self._messages = Arrivals(lambda call: self._live().tell(False, call))
        self._notifications = Arrivals(lambda call: self._live().tell(True, call))
        _open.add(self)

    # --- life ---

    @property
    def name(self) -> str:
        return self._name

    @property
    def address(self) -> Peer:
        """How peers reach this engine: opaque and picklable, to be shipped by any means."""
        return Peer(self._live().address())

    @property
    def closed(self) -> bool:
        return self._process != os.getpid() or self._core.is_closed

    def close(self) -> None:
        """Leaves its peers and ends: what is under way becomes Cancelled, and memory may be freed.
        All callbacks are called before it returns. Again: waits until it has ended. InvalidArgument
        in a callback, which would wait for itself.
        """
        if self._process != os.getpid():
            return
        self._core.close()
        if self._core.is_ended:  # not from a callback beside another thread's close()
            self._ended.set()
        _open.discard(self)
        self._messages.wake_all()
        self._notifications.wake_all()

    def wait_closed(self, timeout: float | None = None) -> None:
        """Returns when close() is through: until then bytes may land, though `closed` is true from
        its begin on. At once in a fork, where nothing of ours lands. Timeout.
        """
        limit = None if timeout is None else values.nanoseconds(timeout, "wait_closed", 0) / 1e9
        most = threading.TIMEOUT_MAX
        if self._process == os.getpid() and not self._ended.wait(limit and min(limit, most)):
            raise Timeout(f"engine: '{self._name}' is not closed after a wait of {timeout} s")

    def __repr__(self) -> str:
        return f"Engine('{self._name}', {'closed' if self.closed else 'open'})"

    # --- memory ---

    def register(self, buffer: Array) -> Region:
        """Registers memory with every NIC, so that peers may write and read it.

        buffer: writable and contiguous in C order: anything with the buffer protocol (NumPy,
        bytearray) or DLPack (torch on CPU or on this engine's GPU), which is kept alive; or
        (pointer, nbytes) or (pointer, nbytes, device), which the caller keeps alive until
        unregister() or close(). Overlapping regions are fine. Pins pages: about 1 ms for a GiB.
        Memory that is unmapped before that, or whose file is cut, is InvalidArgument for whoever
        uses the region. What the pointer names may be read-only: then transfers read it, and those
        that would fill it are InvalidArgument.

        Unsupported: memory of another GPU, or that the driver shares with no other process.
        Transfers do not wait for streams: synchronise what wrote GPU memory before they begin.
        """
        core = self._live()
        made = core.register_at(*_place(buffer)) if isinstance(buffer, tuple) else None
        if made is None:
            made = core.register_buffer(buffer)
        self._regions[made.id] = made
        return Region(made, core.descriptor(made), self.unregister)

    def unregister(self, region: Region, timeout: float = 30.0) -> None:
        """As Region.unregister()."""
        mine = self._mine(region, "unregister")
        limit = values.nanoseconds(timeout, "unregister", 0)
        self._live().unregister(mine, limit)
        self._regions.pop(mine.id, None)

    # --- what arrives ---

    def expect(
        self, imm: int, count: int, flag: Array = None, *, callback: Callback | None = None
    ) -> Ticket:
        """Ends when `count` more have arrived under `imm`, and takes them off its count.

        Arrivals before the call count. InvalidArgument when `imm` is expected already.
        cancel() ends this expectation alone, as forget(imm) does.

        flag: 8 aligned bytes that become 1 just before, kept alive until then: writable memory of
        the host (a NumPy array [1] of uint64; pinned, a GPU may poll it), or of this engine's GPU
        (a torch tensor [1] of int64), there by a copy on a stream of its own: DriverError of the
        ticket where that fails. Set it to 0 and synchronise before. A kernel that waits for it
        loads it with acquire at system scope, or is enqueued behind cuStreamWaitValue64.
        """
        number = values.whole(imm, "expect: imm", 2**32 - 1)
        core = self._live().expect(number, values.whole(count, "expect: count"), callback, flag)
        return Ticket(core, lambda: None if core.is_done() else self._live().forget(number, core))

    def forget(self, imm: int) -> None:
        """The expectation ends as Cancelled; what has arrived stays counted."""
        self._live().forget(values.whole(imm, "forget: imm", 2**32 - 1))

    def discard(self, imm: int) -> None:
        """forget(), and what has arrived is not counted any more: of one that is not used again."""
        self._live().discard(values.whole(imm, "discard: imm", 2**32 - 1))

    def count(self, imm: int) -> int:
        """How many have arrived under `imm` that no expectation has taken."""
        return self._live().count(values.whole(imm, "count: imm", 2**32 - 1))

    def recv(self, timeout: float | None = None) -> Message:
        """The next message of any peer's send(), in order for each. Timeout; Cancelled: closed."""
        limit = values.nanoseconds(timeout, "recv", values.FOREVER_NS)
        return self._message(self._live().receive(limit), "recv", timeout)

    def take_notification(self, timeout: float | None = None) -> Message:
        """The next notification, behind all bytes of its transfer. Timeout; Cancelled: closed."""
        limit = values.nanoseconds(timeout, "take_notification", values.FOREVER_NS)
        found = self._live().take_notification(limit)
        return self._message(found, "take_notification", timeout)

    async def recv_async(self, timeout: float | None = None) -> Message:
        """recv() for asyncio. A task that is cancelled loses no message."""
        limit = None if timeout is None else values.seconds(timeout, "recv_async")
        found = await self._taken(self._messages, self._live().receive, limit)
        return self._message(found, "recv_async", timeout)

    async def take_notification_async(self, timeout: float | None = None) -> Message:
        """take_notification() for asyncio. A task that is cancelled loses none."""
        limit = None if timeout is None else values.seconds(timeout, "take_notification_async")
        take = self._live().take_notification
        found = await self._taken(self._notifications, take, limit)
        return self._message(found, "take_notification_async", timeout)

    def watch(self, callback: Callable[[int, int], object]) -> Watch:
        """A word that a kernel, a CUDA graph or a thread bumps, and callback(before, now).

        Values in between may be passed over: take what has happened since, do not count calls.
        False from the callback ends it. It runs on a thread of its own. Exhausted: 512 are watched.
        """
        if not callable(callback):
            found = type(callback).__name__
            raise InvalidArgument(f"watch: callback: asked for what can be called, found {found}")
        return Watch(self._live().watch(lambda before, now: callback(before, now) is not False))

    # --- peers ---

    def check(self, *names: Peer | Descriptor) -> None:
        """InvalidArgument for what no call of this engine would take: bytes that were cut or
        altered, or are another job's. Whether anybody is there it does not ask.
        """
        for name in names:
            if isinstance(name, Descriptor):
                self._remote(name, "check")
            else:
                self._peer(name)

    def peer_group(self, peers: Iterable[Peer]) -> PeerGroup:
        """Peers that are addressed together; their addresses are checked here."""
        group = PeerGroup(self, peers)
        for peer in group:
            self._peer(peer)
        return group

    def barrier(self, peers: Iterable[Peer], imm: int, timeout: float | None = None) -> None:
        """Returns when all of `peers` have come to it, too: each names all others, or all.

        A signal to each and an expectation of as many. It says nothing of transfers: wait for
        yours before. PeerLost, Timeout (also for a peer that dies after it signalled). After an
        error some have this round's signals and some have not: `imm` is of no use for barriers any
        more (InvalidArgument), on no peer; take another one.
        """
        group = values.several(peers, "barrier: peers")
        for peer in group:
            self._peer(peer)
        number = values.whole(imm, "barrier: imm", 2**32 - 1)
        if number in self._broken_barriers:
            raise InvalidArgument(f"barrier: one under immediate {imm} has failed: take another")
        limit = values.seconds(self._timeout if timeout is None else timeout, "barrier")
        until = time.monotonic() + limit
        # First: who expects it already has signalled nobody.
        arrived = self.expect(number, len(group))
        try:
            for ticket in [*self.signal(group, number, timeout=timeout), arrived]:
                ticket.wait(max(0.0, until - time.monotonic()))
        except BaseException as error:
            self._broken_barriers.add(number)
            arrived.cancel()
            if isinstance(error, Timeout):
                found = f"{self.count(imm)} of {len(group)} signals have arrived"
                raise Timeout(f"barrier under immediate {imm}: {found}: {error}") from error
            raise

    def health(self) -> list[str]:
        """Where the worker runs and why, "worker: cores 24-47: near eth0 (node 1)"; then a line for
        every connection: its state, rails, rates and troubles.
        """
        return self._live().health()

    def stats(self) -> dict[str, int]:
        """What the engine has done since it began: transfers, bytes, counts, rails, peers."""
        return self._live().stats()

    async def _taken(
        self,
        arrivals: Arrivals,
        take: Callable[[int], tuple[bytes, str, bytes] | None],
        timeout: float | None,
    ) -> tuple[bytes, str, bytes] | None:
        """What take() gives once it gives something; None at the timeout, and when we close."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            found = take(1)
            if found is not None:
                return found
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(arrivals.sleep(), left)
            if self.closed:
                return None

    def _message(
        self, found: tuple[bytes, str, bytes] | None, what: str, timeout: float | None
    ) -> Message:
        if found is not None:
            return Message(*found)
        if self.closed:
            raise Cancelled(f"{what}: the engine '{self._name}' was closed")
        raise Timeout(f"{what}: nothing has come to '{self._name}' within {timeout} s")


def _positive_ns(seconds: float, what: str) -> int:
    found = values.nanoseconds(seconds, what, 0)
    if found <= 1:
        raise InvalidArgument(f"{what}: asked for more than 0 s, found {seconds}")
    return found


def _hosts(hosts: str | Sequence[str] | None, *, has_token: bool) -> list[str]:
    if hosts is None:
        return _braid.engine.choose_hosts(has_token)
    places = [hosts] if isinstance(hosts, str) else values.several(hosts, "engine: hosts")
    for place in places:
        values.of_kind(place, str, "engine: hosts")
    if not places:
        raise InvalidArgument("engine: hosts: asked for one at least, found none")
    return places


def _nics(nics: str | Sequence[str], hosts: list[str], local: bool) -> list[tuple[str, str]]:
    if nics == "none":
        return []
    if nics == "auto":
        return _braid.engine.choose_nics(hosts, local)
    if isinstance(nics, str):
        raise InvalidArgument(f"engine: nics: asked for 'auto', 'none' or a list, found '{nics}'")
    return [
        _braid.engine.parse_nic(values.of_kind(nic, str, "engine: nics"))
        for nic in values.several(nics, "engine: nics")
    ]


def _cores(cores: str) -> str:
    if values.of_kind(cores, str, "engine: cores") not in ("auto", "off"):
        raise InvalidArgument(f"engine: cores: asked for 'auto' or 'off', found '{cores:.80}'")
    return cores


def _place(place: tuple[Any, ...]) -> tuple[int, int, int]:
    """(pointer, nbytes[, device]) as the core wants it."""
    if len(place) not in (2, 3):
        found = f"a tuple of {len(place)}"
        raise InvalidArgument(f"register: asked for (pointer, nbytes[, device]), found {found}")
    device = place[2] if len(place) == 3 else None
    return (
        values.whole(place[0], "register: pointer"),
        values.whole(place[1], "register: nbytes"),
        -1 if device is None else values.whole(device, "register: device", _MOST_DEVICE),
    )


def _close_all() -> None:
    """Before the interpreter goes: the engine's threads call into it."""
    for engine in list(_open):
        engine.close()


def _leave_to_parent() -> None:
    for engine in list(_open):
        engine._core.leave_to_parent()
    _open.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_leave_to_parent)

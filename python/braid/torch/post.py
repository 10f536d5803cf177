"""Point-to-point messages between the ranks of one group, over sockets.

braid's collectives need every rank; a message needs two. So messages have connections of their own:
whoever sends to a rank for the first time connects to it, both prove that they know the group's
secret, and from then on messages go one way, each a header (tag, bytes) and its bytes (wire.py).

Messages from one rank with one tag arrive in order. A reader thread per connection takes them off
the wire whether somebody asked or not, straight into the receiver's memory if he did, so a sender
of messages that are not too many or too large never waits for the receiver's program, and two ranks
that both send first do not lock each other out. What nobody asked for yet is kept (mailbox.py).

Whoever reaches the door (doors.py) may knock: strangers get a few seconds to prove themselves, some
of them at a time, of which the oldest goes when there are more; a rank that was turned away for
that knocks again.

A rank that dies closes its connections: whoever waits for it learns that at once, or, when there
never was a connection, from the group's comm or by the deadline. Sends and receives have the
group's time each. A send whose time is over within its message takes the connection with it.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from braid.errors import Error
from braid.torch import doors
from braid.torch.callbacks import Callbacks
from braid.torch.errors import PeerLost, Timeout
from braid.torch.host_calls import HostCalls
from braid.torch.mailbox import Mailbox, wrong_size
from braid.torch.meeting import Meeting
from braid.torch.receive import Request
from braid.torch.wire import LOOK_S, Unproved, Wire
from braid.torch.work import HostWork

_END_S = 2.0  # for a thread to notice that its socket is shut
_GREETING_S = 5.0  # for one who connects to prove that it is of the group
_MOST_STRANGERS = 16  # who have not yet
_SHORTEST_S = 0.2  # that each of them gets, however many there are
_PAUSE_S = 0.1  # after accept() failed, for want of descriptors; and before knocking again


class Post:
    """This rank's connections of one group. Any thread."""

    def __init__(self, meeting: Meeting, look: Callable[[], None], callbacks: Callbacks) -> None:
        """`look` raises when the group has failed."""
        self.callbacks = callbacks
        self._meeting = meeting
        self._look = look
        self._mailbox = Mailbox(meeting.size - 1)
        self._lock = threading.Lock()
        self._senders: dict[int, HostCalls] = {}
        self._listener: socket.socket | None = None
        self._wires: list[Wire] = []  # of ranks
        self._strangers: dict[Wire, float] = {}  # and when they came; oldest first
        self._outgoing: dict[int, Wire] = {}
        self._given_up: set[int] = set()  # ranks, on the way to which a message is in pieces
        self._threads: set[threading.Thread] = set()  # all but the senders'
        self._is_open = False
        self._is_watched = False
        self._ended: BaseException | None = None

    # ---- what users do ----

    @property
    def limit_s(self) -> float:
        """The group's time."""
        return self._meeting.timeout_s

    def send(self, data: Any, target: int, tag: int, work: HostWork) -> HostWork:
        """Sends what data() gives, bytes that do not change until the work is done."""
        end = time.monotonic() + self.limit_s
        self._open()
        if target == self._meeting.rank:
            if self._ended is None:
                self._mailbox.put(target, tag, bytes(data()))
            work.finish(self._ended)
            return work
        with self._lock:
            if target not in self._senders:
                self._senders[target] = HostCalls(f"braid send to {target}")
            sender = self._senders[target]
        return sender.submit(work, lambda: self._transmit(data(), target, tag, end), is_async=True)

    def receive(self, request: Request) -> None:
        """Finishes the request's work when its message is in its target."""
        self._open()
        self._mailbox.ask(request)
        with self._lock:
            if self._is_watched or self._ended is not None or request.work.is_over:
                return
            self._start(self._watch)
            self._is_watched = True

    def close(self, why: BaseException, *, is_orderly: bool) -> None:
        """Ends every thread and connection; who waits gets `why`. What was submitted is sent first
        when that is orderly.
        """
        for sender in list(self._senders.values()):
            sender.finish(why) if is_orderly else sender.give_up(why)
        with self._lock:
            self._ended = self._ended or why
            wires, threads = self._wires + list(self._strangers), list(self._threads)
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for wire in wires:
            wire.cut()
        self._mailbox.close(why)
        for sender in self._senders.values():
            sender.join(_END_S)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_END_S)
        for wire in wires:
            wire.shut()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended
        self._look()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        """The lock is held."""

        def run() -> None:
            try:
                target(*args)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="braid recv", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            raise

    # ---- sending ----

    def _transmit(self, data: Any, target: int, tag: int, end: float) -> None:
        name = f"send to rank {target} with tag {tag} of group {self._meeting.name}"
        if target in self._given_up:
            raise PeerLost(f"{name}: an earlier message timed out, which gave the connection up")
        try:
            wire = self._outgoing.get(target) or self._connect(target, end)
            self._send_whole(wire, data, target, tag, end)
        except Error:
            raise  # Timeout and PeerLost are OSErrors too
        except TimeoutError:
            raise Timeout(
                f"{name}: timed out after {self.limit_s} s, in which the rank did not take it"
            ) from None
        except OSError as error:
            raise PeerLost(f"{name}: {error}") from None

    def _send_whole(self, wire: Wire, data: Any, target: int, tag: int, end: float) -> None:
        """What breaks off in a message leaves the receiver with a part of it: no other can come."""
        before = wire.num_sent
        try:
            wire.send_message(tag, data, end)
        except BaseException:
            if wire.num_sent != before:
                self._given_up.add(target)
                wire.shut()
            raise

    def _connect(self, target: int, end: float) -> Wire:
        where = self._meeting.get(
            [f"post/{target}"],
            "messages to be received by rank",
            self._check,
            max(0.0, end - time.monotonic()),
        )[0]
        while True:
            try:
                return self._greet(where, target, end)
            except (BlockingIOError, ConnectionError) as error:  # strangers take its time
                is_final = isinstance(error, ConnectionRefusedError | Unproved | Error)
                if is_final or time.monotonic() > end:
                    raise
                self._check()
                time.sleep(_PAUSE_S)

    def _greet(self, where: str, target: int, end: float) -> Wire:
        wire = self._wire(doors.connect(where, max(0.001, end - time.monotonic())))
        try:
            wire.greet_receiver(self._meeting.rank, self._secret(), end)
            self._keep(wire)
        except BaseException:
            wire.shut()
            raise
        self._outgoing[target] = wire
        return wire

    def _secret(self) -> str:
        return self._meeting.secret("post")

    def _wire(self, sock: socket.socket) -> Wire:
        return Wire(sock, self._check, is_private=sock.family == socket.AF_UNIX)

    def _keep(self, wire: Wire) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._wires.append(wire)

    # ---- receiving ----

    def _open(self) -> None:
        """Listens, from the first message on that this rank sends or asks for."""
        with self._lock:
            if self._is_open or self._meeting.size == 1:
                return
            address = self._meeting.address_of(self._meeting.rank)
            self._listener, where = doors.listen(None if self._meeting.is_one_host() else address)
            self._start(self._accept, self._listener)
            self._is_open = True
        self._meeting.set(f"post/{self._meeting.rank}", where)

    def _accept(self, listener: socket.socket) -> None:
        while self._ended is None:
            try:
                sock = doors.accept(listener)
            except OSError:  # it was closed, or descriptors are short: who knocks waits
                if self._ended is None:
                    time.sleep(_PAUSE_S)
                continue
            try:
                doors.check_user(sock)
                self._make_room()
                self._admit(self._wire(sock))
            except (OSError, RuntimeError):  # another user's; gone; or there is no thread for it
                sock.close()

    def _make_room(self) -> None:
        """Waits until there are fewer strangers; once the oldest has had his time, he goes. Who is
        behind in the queue of the system may be a rank.
        """
        while self._ended is None:
            with self._lock:
                if len(self._strangers) < _MOST_STRANGERS:
                    return
                oldest, since = next(iter(self._strangers.items()))
            if time.monotonic() - since >= _SHORTEST_S:
                oldest.cut()
            time.sleep(_SHORTEST_S / 20)

    def _admit(self, wire: Wire) -> None:
        with self._lock:
            if self._ended is not None:
                return wire.shut()
            self._start(self._serve, wire)
            self._strangers[wire] = time.monotonic()
        return None

    def _serve(self, wire: Wire) -> None:
        try:
            source = wire.greet_sender(
                self._meeting.size, self._secret(), time.monotonic() + _GREETING_S
            )
            self._keep(wire)
        except (OSError, Error, struct.error):
            return wire.shut()  # a stranger, or the end
        finally:
            with self._lock:
                self._strangers.pop(wire, None)
        try:
            while True:
                self._read_message(wire, source)
        except OSError as error:
            why = self._ended or PeerLost(
                f"group {self._meeting.name}: rank {source} has left: {error}"
            )
            self._mailbox.lose(source, why)
        return wire.shut()

    def _read_message(self, wire: Wire, source: int) -> None:
        tag, count = wire.read_header()
        request = self._mailbox.claim(source, tag, count)
        if request is None:
            return self._mailbox.put(source, tag, wire.read(count))
        try:
            if request.fits:
                wire.read_into(request)
            else:
                wire.drop(count)
        except OSError as error:
            self._mailbox.fail(request, PeerLost(f"recv from rank {source}: {error}"))
            raise
        if not request.fits:
            return self._mailbox.fail(request, wrong_size(request, source, count), source)
        if self._mailbox.filled(request):
            return request.work.finish(None, source)
        return self._mailbox.put(source, tag, request.target)

    def _watch(self) -> None:
        """Ends receives that are late, that nobody is left for, or that wait in a failed group."""
        while self._mailbox.wait_for_requests():
            time.sleep(LOOK_S)
            self._mailbox.end_late(self._failure())

    def _failure(self) -> BaseException | None:
        try:
            self._check()
        except Exception as error:
            return error
        return None

"""Point-to-point messages between the ranks of one group, over sockets.

braid's collectives need every rank; a message needs two. So messages have connections of their own:
whoever sends to a rank for the first time connects to it, both prove that they know the group's
secret, and from then on messages go one way, each a header (tag, bytes) and its bytes.

Messages from one rank with one tag arrive in order. A reader thread per connection takes them off
the wire whether somebody asked or not, straight into the receiver's memory if he did, so a sender
never waits for the receiver's program, and two ranks that both send first cannot lock each other
out. What nobody asked for yet is kept here.

A rank that dies closes its connections: whoever waits for it learns that at once, or, when there
never was a connection, from the group's comm or by the deadline.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from braid.errors import Error
from braid.torch.callbacks import Callbacks
from braid.torch.errors import PeerLost, Timeout
from braid.torch.host_calls import HostCalls
from braid.torch.mailbox import Mailbox, Request, wrong_size
from braid.torch.meeting import Meeting
from braid.torch.work import HostWork, seconds_of

_HELLO = struct.Struct("<8sI32s")  # magic, rank, nonce
_HEADER = struct.Struct("<qQ")  # tag, bytes
_MAGIC = b"braidp2p"
_NONCE_BYTES = _PROOF_BYTES = 32
_GREETING_S = 10.0
_END_S = 2.0  # for a thread to notice that its socket is shut
_LOOK_S = 0.2  # how often a waiting receiver looks at the group's health


def _proof(secret: str, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), role + hello + nonce, hashlib.sha256).digest()


def _read(sock: socket.socket, target: Any) -> None:
    """Fills `target`. ConnectionError at the end of the stream."""
    view = memoryview(target)
    while view.nbytes:
        got = sock.recv_into(view)
        if got == 0:
            raise ConnectionError("the connection was closed")
        view = view[got:]


def _read_bytes(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _read(sock, data)
    return bytes(data)


class RecvWork(HostWork):
    """A receive. `deliver` moves what arrived to the user's tensor, in the thread that waits."""

    def __init__(self, post: "Post", name: str, deliver: Callable[[], None]) -> None:
        super().__init__(name, callbacks=post.callbacks)
        self._post = post
        self._deliver: Callable[[], None] | None = deliver

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit_s = seconds_of(timeout) or self._post.timeout_s
        end = time.monotonic() + limit_s
        while not self._done.wait(_LOOK_S):
            self._post.look(self)
            if time.monotonic() > end:
                self.finish(Timeout(f"{self._name}: nothing arrived within {limit_s} s"))
        super().wait()
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver()
        return True

    def _outcome(self, future: Any) -> list[torch.Tensor]:
        self.wait()
        return super()._outcome(future)


class Post:
    """This rank's connections of one group. Any thread."""

    def __init__(self, meeting: Meeting, look: Callable[[], None], callbacks: Callbacks) -> None:
        """`look` raises when the group has failed."""
        self.timeout_s = meeting.timeout_s
        self.callbacks = callbacks
        self._meeting = meeting
        self._look = look
        self._mailbox = Mailbox()
        self._lock = threading.Lock()
        self._senders: dict[int, HostCalls] = {}
        self._sockets: list[socket.socket] = []
        self._outgoing: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []  # that read
        self._is_open = False
        self._ended: BaseException | None = None

    # ---- what users do ----

    def send(self, data: Any, target: int, tag: int, work: HostWork) -> HostWork:
        """Sends what data() gives, bytes that do not change until the work is done."""
        self._open()
        if target == self._meeting.rank:
            self._mailbox.put(target, tag, bytes(data()))
            work.finish()
            return work
        with self._lock:
            if target not in self._senders:
                self._senders[target] = HostCalls(f"braid send to {target}")
            sender = self._senders[target]
        return sender.submit(work, lambda: self._transmit(data(), target, tag), is_async=True)

    def receive(self, request: Request) -> None:
        """Finishes the request's work when its message is in its target."""
        self._open()
        if self._ended is not None:
            return request.work.finish(self._ended)
        return self._mailbox.ask(request)

    def look(self, work: HostWork) -> None:
        """Ends a receive that waits in a group that has failed."""
        try:
            self._look()
        except Exception as error:
            work.finish(error)

    def close(self, why: BaseException, *, is_orderly: bool) -> None:
        """Ends every thread and connection; who waits gets `why`. What was submitted is sent first
        when that is orderly.
        """
        for sender in list(self._senders.values()):
            sender.finish(why) if is_orderly else sender.give_up(why)
        with self._lock:
            self._ended = self._ended or why
            sockets = list(self._sockets)
        for sock in sockets:
            _shut(sock)
        self._mailbox.lose(None, why)
        for sender in self._senders.values():
            sender.join(_END_S)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_S)

    # ---- sending ----

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended
        self._look()

    def _transmit(self, data: Any, target: int, tag: int) -> None:
        view = memoryview(data)
        name = self._meeting.name
        try:
            sock = self._outgoing.get(target) or self._connect(target)
            sock.sendall(_HEADER.pack(tag, view.nbytes))
            sock.sendall(view)
        except Error:
            raise  # Timeout and PeerLost are OSErrors too
        except OSError as error:
            raise PeerLost(f"send to rank {target} of group {name}: {error}") from None

    def _connect(self, target: int) -> socket.socket:
        key = f"post/{target}"
        where = self._meeting.get([key], "messages to be received by rank", self._check)[0]
        address, port = where.rsplit(" ", 1)
        sock = socket.create_connection((address, int(port)), timeout=_GREETING_S)
        self._keep(sock)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hello = _HELLO.pack(_MAGIC, self._meeting.rank, nonce)
        sock.sendall(hello)
        theirs = _read_bytes(sock, _NONCE_BYTES)
        secret = self._secret()
        if not hmac.compare_digest(
            _read_bytes(sock, _PROOF_BYTES), _proof(secret, b"receiver", hello, theirs)
        ):
            raise ConnectionError(f"{address}:{port} does not know the group's secret")
        sock.sendall(_proof(secret, b"sender", hello, theirs))
        sock.settimeout(None)
        self._outgoing[target] = sock
        return sock

    def _secret(self) -> str:
        return self._meeting.secret("post")

    def _keep(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # who has gone already is noticed when it is read
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if self._ended is not None:
                sock.close()
                raise self._ended
            self._sockets.append(sock)

    # ---- receiving ----

    def _open(self) -> None:
        """Listens, from the first message on that this rank sends or asks for."""
        with self._lock:
            if self._is_open or self._meeting.size == 1:
                return
            self._is_open = True
        address = self._meeting.address_of(self._meeting.rank)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        with self._lock:
            self._sockets.append(listener)
        self._start(self._accept, listener)
        self._meeting.set(f"post/{self._meeting.rank}", f"{address} {listener.getsockname()[1]}")

    def _start(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name="braid recv", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._ended is None:
            try:
                sock, _ = listener.accept()
                self._keep(sock)
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            source = self._greet(sock)
        except (OSError, ConnectionError, struct.error):
            return _shut(sock)  # a stranger
        try:
            while True:
                self._read_message(sock, source)
        except OSError as error:
            why = self._ended or PeerLost(
                f"group {self._meeting.name}: rank {source} has left: {error}"
            )
            self._mailbox.lose(source, why)
        return _shut(sock)

    def _greet(self, sock: socket.socket) -> int:
        sock.settimeout(_GREETING_S)
        hello = _read_bytes(sock, _HELLO.size)
        magic, source, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or source >= self._meeting.size:
            raise ConnectionError("not a rank")
        nonce, secret = secrets.token_bytes(_NONCE_BYTES), self._secret()
        sock.sendall(nonce + _proof(secret, b"receiver", hello, nonce))
        proof = _read_bytes(sock, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(secret, b"sender", hello, nonce)):
            raise ConnectionError("it does not know the group's secret")
        sock.settimeout(None)
        return int(source)

    def _read_message(self, sock: socket.socket, source: int) -> None:
        tag, count = _HEADER.unpack(_read_bytes(sock, _HEADER.size))
        request = self._mailbox.claim(source, tag)
        if request is None:
            data = bytearray(count)
            _read(sock, data)
            return self._mailbox.put(source, tag, data)
        try:
            if count != request.target.nbytes:
                _read(sock, bytearray(count))
                return request.work.finish(wrong_size(request, source, count), source)
            _read(sock, request.target)
        except OSError as error:
            request.work.finish(PeerLost(f"recv from rank {source}: {error}"))
            raise
        return request.work.finish(None, source)


def _shut(sock: socket.socket) -> None:
    """Wakes whoever reads from it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()

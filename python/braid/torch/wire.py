"""A connection on which messages go one way: deadlines, and who is at the other end.

Both sides prove that they know the group's secret before the first message. Whoever waits here
looks from time to time whether that makes sense still: `check` raises when it does not.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from braid.torch.receive import Request

LOOK_S = 0.2  # how often somebody who waits looks at the group's health, and at the clock

_HELLO = struct.Struct("<8sI32s")  # magic, rank, nonce
_HEADER = struct.Struct("<qQ")  # tag, bytes
_MAGIC = b"braidp2p"
_NONCE_BYTES = _PROOF_BYTES = 32
_DROPPED_BYTES = 1 << 20  # at a time, of a message that nobody wants


def _proof(secret: str, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), role + hello + nonce, hashlib.sha256).digest()


class Wire:
    """One socket. All methods raise OSError; TimeoutError when `end`, a time of the monotonic
    clock, has passed.
    """

    def __init__(self, sock: socket.socket, check: Callable[[], None]) -> None:
        self._sock, self._check = sock, check
        self.num_sent = 0
        """Bytes, up to now."""
        with contextlib.suppress(OSError):  # who has gone already is noticed when it is read
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def shut(self) -> None:
        """Wakes whoever waits here."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # ---- greeting ----

    def greet_receiver(self, rank: int, secret: str, end: float) -> None:
        """Says who we are; ConnectionError when the other side does not know the secret."""
        hello = _HELLO.pack(_MAGIC, rank, secrets.token_bytes(_NONCE_BYTES))
        self._send(hello, end)
        nonce, proof = self._read_bytes(_NONCE_BYTES, end), self._read_bytes(_PROOF_BYTES, end)
        if not hmac.compare_digest(proof, _proof(secret, b"receiver", hello, nonce)):
            raise ConnectionError("who answers does not know the group's secret")
        self._send(_proof(secret, b"sender", hello, nonce), end)

    def greet_sender(self, size: int, secret: str, end: float) -> int:
        """Which rank it is that connected; ConnectionError when it is none."""
        hello = self._read_bytes(_HELLO.size, end)
        magic, source, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or source >= size:
            raise ConnectionError("not a rank")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._send(nonce + _proof(secret, b"receiver", hello, nonce), end)
        proof = self._read_bytes(_PROOF_BYTES, end)
        if not hmac.compare_digest(proof, _proof(secret, b"sender", hello, nonce)):
            raise ConnectionError("it does not know the group's secret")
        return int(source)

    # ---- messages ----

    def send_message(self, tag: int, data: Any, end: float) -> None:
        """A header and the data."""
        view = memoryview(data)
        self._send(_HEADER.pack(tag, view.nbytes), end)
        self._send(view, end)

    def read_header(self) -> tuple[int, int]:
        """The next message's tag and bytes, whenever it comes."""
        header = bytearray(_HEADER.size)
        self._sock.settimeout(None)
        view = memoryview(header)
        while view.nbytes:
            view = view[self._received(view) :]
        tag, count = _HEADER.unpack(header)
        return tag, count

    def read(self, count: int) -> bytearray:
        """A message's bytes."""
        data = bytearray(count)
        self._sock.settimeout(None)
        view = memoryview(data)
        while view.nbytes:
            view = view[self._received(view) :]
        return data

    def read_into(self, request: Request) -> None:
        """The same into its target, as long as the request is not over; what comes then is
        dropped.
        """
        view = memoryview(request.target)
        self._sock.settimeout(LOOK_S)
        while view.nbytes:
            with request.writing:
                if request.is_over:
                    break
                view = view[self._received(view) :]
        self.drop(view.nbytes)

    def drop(self, count: int) -> None:
        """Reads what nobody wants."""
        while count:
            count -= len(self.read(min(count, _DROPPED_BYTES)))

    # ---- bytes ----

    def _received(self, view: memoryview) -> int:
        """How many bytes came; 0 when none did in the socket's time."""
        try:
            got = self._sock.recv_into(view)
        except TimeoutError:
            return 0
        if got == 0:
            raise ConnectionError("the connection was closed")
        return got

    def _read_bytes(self, count: int, end: float) -> bytes:
        data = bytearray(count)
        self._sock.settimeout(LOOK_S)
        view = memoryview(data)
        while view.nbytes:
            if (got := self._received(view)) == 0:
                self._look(end)
            view = view[got:]
        return bytes(data)

    def _send(self, data: Any, end: float) -> None:
        view = memoryview(data)
        self._sock.settimeout(LOOK_S)
        while view.nbytes:
            try:
                sent = self._sock.send(view)
            except TimeoutError:
                self._look(end)
                continue
            self.num_sent += sent
            view = view[sent:]

    def _look(self, end: float) -> None:
        self._check()
        if time.monotonic() > end:
            raise TimeoutError

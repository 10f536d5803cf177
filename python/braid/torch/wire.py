"""A connection on which messages go one way: deadlines, who is at the other end, and that nobody
between the two changed anything.

Both sides prove that they know the group's secret before the first message. Each message is sealed
with HMAC-SHA256 over its number, tag, length and bytes, under a key that follows from the secret
and from a nonce of either side: who relays the connection reads it, and can do no more than cut it.

  message   tag 8, bytes 8, seal 32 of these; the bytes, seal 32 of all

On one host the bytes themselves are not sealed: nobody can come between, and it would take longer
than to move them.

Whoever waits here looks from time to time whether that makes sense still: `check` raises when it
does not.
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
_NUMBER = struct.Struct("<Q")
_BLOCK_BYTES = 1 << 20  # what is sealed and sent at a time: while it is in the caches


def _proof(secret: str, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), role + hello + nonce, hashlib.sha256).digest()


class Unproved(ConnectionError):  # noqa: N818
    """Who is at the other end is not of this group."""


class Wire:
    """One socket. All methods raise OSError; TimeoutError when `end`, a time of the monotonic
    clock, has passed.
    """

    def __init__(
        self, sock: socket.socket, check: Callable[[], None], *, is_private: bool = False
    ) -> None:
        """`is_private`: the system itself carries the bytes, from process to process (doors.py).
        Then headers alone are sealed.
        """
        self._sock, self._check, self._is_private = sock, check, is_private
        self._key = b""
        self._num_messages = 0
        self._arriving = hmac.new(self._key, digestmod=hashlib.sha256)
        self.num_sent = 0
        """Bytes, up to now."""
        with contextlib.suppress(OSError):  # who has gone already is noticed when it is read
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        """Wakes whoever waits here."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        """The same, and gives the descriptor back."""
        self.cut()
        self._sock.close()

    # ---- greeting ----

    def greet_receiver(self, rank: int, secret: str, end: float) -> None:
        """Says who we are; Unproved when the other side does not know the secret."""
        hello = _HELLO.pack(_MAGIC, rank, secrets.token_bytes(_NONCE_BYTES))
        self._send(hello, end)
        nonce, proof = self._read_bytes(_NONCE_BYTES, end), self._read_bytes(_PROOF_BYTES, end)
        if not hmac.compare_digest(proof, _proof(secret, b"receiver", hello, nonce)):
            raise Unproved("who answers does not know the group's secret")
        self._send(_proof(secret, b"sender", hello, nonce), end)
        self._key = _proof(secret, b"messages", hello, nonce)

    def greet_sender(self, size: int, secret: str, end: float) -> int:
        """Which rank it is that connected; Unproved when it is none."""
        hello = self._read_bytes(_HELLO.size, end)
        magic, source, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or source >= size:
            raise Unproved("not a rank")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._send(nonce + _proof(secret, b"receiver", hello, nonce), end)
        proof = self._read_bytes(_PROOF_BYTES, end)
        if not hmac.compare_digest(proof, _proof(secret, b"sender", hello, nonce)):
            raise Unproved("it does not know the group's secret")
        self._key = _proof(secret, b"messages", hello, nonce)
        return int(source)

    # ---- messages ----

    def send_message(self, tag: int, data: Any, end: float) -> None:
        """A header and the data, each followed by its seal."""
        view = memoryview(data)
        header = _HEADER.pack(tag, view.nbytes)
        seal = self._next_seal(header)
        self._send(header + seal.digest(), end)
        for begin in range(0, view.nbytes, _BLOCK_BYTES):
            block = view[begin : begin + _BLOCK_BYTES]
            if not self._is_private:
                seal.update(block)
            self._send(block, end)
        self._send(seal.digest(), end)

    def read_header(self) -> tuple[int, int]:
        """The next message's tag and bytes, whenever it comes."""
        self._sock.settimeout(None)
        header = self._read_all(_HEADER.size)
        self._arriving = self._next_seal(header)
        self._check_seal()
        tag, count = _HEADER.unpack(header)
        return tag, count

    def read(self, count: int) -> bytearray:
        """A message's bytes."""
        self._sock.settimeout(None)
        data = self._read_all(count)
        self._note(data)
        self._check_seal()
        return data

    def read_into(self, request: Request) -> None:
        """The same into its target, as long as the request is not over; what comes then is
        dropped. A message that was altered may have got there in part: the request fails.
        """
        count, at = request.target.nbytes, 0
        self._sock.settimeout(LOOK_S)
        while at < count:
            with request.writing:
                if request.is_over and not request.has_own_target:
                    break
                view = memoryview(request.target)[at : at + _BLOCK_BYTES]
                got = self._received(view)
                self._note(view[:got])
            at += got
        self.drop(count - at)

    def drop(self, count: int) -> None:
        """Reads what nobody wants."""
        self._sock.settimeout(None)
        while count:
            data = self._read_all(min(count, _BLOCK_BYTES))
            self._note(data)
            count -= len(data)
        self._check_seal()

    # ---- seals ----

    def _next_seal(self, header: bytes | bytearray) -> hmac.HMAC:
        self._num_messages += 1
        number = _NUMBER.pack(self._num_messages)
        return hmac.new(self._key, number + header, hashlib.sha256)

    def _note(self, data: Any) -> None:
        if not self._is_private:
            self._arriving.update(data)

    def _check_seal(self) -> None:
        self._sock.settimeout(None)
        if not hmac.compare_digest(self._read_all(_PROOF_BYTES), self._arriving.digest()):
            raise ConnectionError("a message was altered on its way")

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

    def _read_all(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view.nbytes:
            view = view[self._received(view) :]
        return data

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

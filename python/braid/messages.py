"""Messages between two ranks of a comm; the others take no part."""

from functools import partial
from typing import SupportsIndex, TypeVar

from braid import _braid, arrays
from braid.arguments import checked_rank
from braid.arrays import Array, Stream
from braid.collectives import Collectives
from braid.errors import InvalidArgument
from braid.work import Work

T = TypeVar("T")


class Messages(Collectives):
    """The k-th send of one rank to another meets that one's k-th receive from it. Number and type
    of the elements must agree: a disagreement raises InvalidArgument on both, nothing is written,
    and the comm goes on.

    A message is over, on both ranks, when all of it has arrived. So two ranks that send() to each
    other and recv() afterwards wait until the deadline: one of them begins with recv(), or both use
    isend() and irecv(). A collective of one rank between the two ends of a message is found at
    once, and ends the comm on all ranks.

    Of a GPU tensor the bytes go through pinned host memory, as they are when `stream` comes to
    them; send() and recv() wait for the stream, and cannot be captured. The other end may be host
    memory.
    """

    def send(self, buf: Array, peer: int, *, stream: Stream = None) -> None:
        """Sends `buf` to rank `peer`. Returns when it has all of it."""
        if self._calls.are_under_way:  # it may have to meet one of theirs
            self._message("send", buf, peer, stream).wait()
            return
        to, on = self._peer("send", peer), arrays.stream_of(buf, stream)
        self._calls.run("send", partial(_braid.send, self._core, buf, to, on))

    def recv(self, buf: T, peer: int, *, stream: Stream = None) -> T:
        """Receives from rank `peer` into `buf`, which is returned."""
        if self._calls.are_under_way:
            return self._message("recv", buf, peer, stream).wait()
        source, on = self._peer("recv", peer), arrays.stream_of(buf, stream)
        self._calls.run("recv", partial(_braid.recv, self._core, buf, source, on))
        return buf

    def isend(self, buf: T, peer: int, *, stream: Stream = None) -> Work[T]:
        """As send(), at the same time as what follows. Its result is `buf`."""
        return self._message("isend", buf, peer, stream)

    def irecv(self, buf: T, peer: int, *, stream: Stream = None) -> Work[T]:
        """As recv(), at the same time as what follows. Its result is `buf`."""
        return self._message("irecv", buf, peer, stream)

    def _message(self, name: str, buf: T, peer: int, stream: Stream) -> Work[T]:
        other = self._peer(name, peer)
        on = arrays.stream_of(buf, stream)
        return self._calls.message(name, buf, is_send=name.endswith("send"), peer=other, stream=on)

    def _peer(self, name: str, peer: SupportsIndex) -> int:
        other = checked_rank(name, "peer", peer, self.size)
        if other == self.rank:
            raise InvalidArgument(f"{name}: peer is {peer!r}, which is this rank itself")
        return other

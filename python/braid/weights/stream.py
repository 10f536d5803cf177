"""Whole tensors from one trainer to many workers, for interfaces that know no other form.

A worker joins by a letter to the trainer's address. Then tensors go in buckets: one half of a
bucket is filled while the other is unpacked, so nobody needs memory for more than a bucket.

    worker                               trainer
    join {bucket, sums}            ->
                                   <-    writes a half of the bucket; when it has landed:
                                   <-    bucket {version, number, half, tensors, checksum, is_last}
    unpacks; taken {version, half} ->    may fill that half again

`sums` names the checksum that the worker compares (sums.NAME); the trainer refuses any other. What
went wrong on either side is said to the other one (`bad`), which raises it.

A worker answers every `bucket`, also one of a version that is off: `taken`, or `bad` with the half
that it was reading. Until then the half is its own, whatever became of the version: the trainer
waits, or for the worker to join anew, with other memory.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from braid import _braid, letters
from braid.arrays import Array
from braid.closing import Closing
from braid.engine import Descriptor, Engine, Peer, Ticket, values
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.holdings import as_bytes, dtype_of, extent, take_back
from braid.weights.station import words_of
from braid.weights.sums import NAME

Bytes = npt.NDArray[np.uint8]
_ALIGN = 64


def _half_of(bucket: int) -> int:
    """Bytes of a half."""
    if type(bucket) is not int or bucket < 2 * _ALIGN:
        raise InvalidArgument(
            f"bucket: asked for {2 * _ALIGN} bytes at least, found {bucket!r:.80}"
        )
    return bucket // 2 // _ALIGN * _ALIGN


class _Mail:
    """Letters of one engine, whose messages belong to it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._joiner = letters.Joiner()

    def say(self, peer: Peer, head: dict[str, Any], body: bytes = b"") -> None:
        for frame in letters.frames(head, body):
            self.engine.send(peer, frame)

    def next(self, until: float, wanted: str) -> tuple[dict[str, Any], bytes]:
        while (left := until - time.monotonic()) > 0:
            try:
                message = self.engine.recv(left)
            except Timeout:
                break
            try:
                found = self._joiner.add(message.incarnation, message.data)
            except InvalidArgument:
                continue
            if found is not None:
                return found
        raise Timeout(f"'{self.engine.name}' has waited in vain for {wanted}")


class StreamSender(Closing):
    """The trainer's end. A context manager.

    bucket: bytes; the same on all sides. A tensor that is longer goes in parts.
    """

    def __init__(self, engine: Engine, bucket: int = 1 << 28) -> None:
        self._mail = _Mail(engine)
        self._engine = engine
        self._half = _half_of(bucket)
        self._memory = np.zeros(2 * self._half, np.uint8)
        self._region = engine.register(self._memory)
        self._is_closed = False
        self._workers: dict[int, tuple[Peer, Descriptor]] = {}
        self._untaken: tuple[dict[int, int], dict[int, int]] = {}, {}
        """For each half, the workers that may read it still: of which version, failed or not."""
        self._last = -1

    @property
    def address(self) -> bytes:
        """What workers are told."""
        return self._engine.address.data

    def gather(self, count: int, timeout: float = 60.0) -> None:
        """Waits until workers 0 to count - 1 have joined; one that comes again takes its place."""
        until = time.monotonic() + values.seconds(timeout, "gather")
        missing = set(range(count)) - self._workers.keys()
        while missing:
            head, body = self._mail.next(until, f"workers {sorted(missing)} to join")
            missing -= self._joined(head, body)

    def _joined(self, head: dict[str, Any], body: bytes) -> set[int]:
        if head["kind"] != "join":
            return set()
        address, descriptor = letters.unpack(body)
        rank, bucket = letters.whole(head, "rank"), letters.whole(head, "bucket")
        peer = Peer(address)
        if bucket != 2 * self._half:
            why = f"a bucket of {bucket} bytes at worker {rank}, {2 * self._half} at the trainer"
            self._mail.say(peer, {"kind": "bad", "why": why})
            raise InvalidArgument(why)
        if head.get("sums") != NAME:
            why = f"worker {rank} compares checksums {head.get('sums')!r}, the trainer has '{NAME}'"
            self._mail.say(peer, {"kind": "bad", "why": why})
            raise InvalidArgument(why)
        worker = peer, Descriptor(descriptor)
        if self._workers.get(rank) != worker:  # other memory, which nobody reads yet
            for untaken in self._untaken:
                untaken.pop(rank, None)
        self._workers[rank] = worker
        return {rank}

    def send(
        self, tensors: Iterable[tuple[str, Array]], version: int, timeout: float = 300.0
    ) -> None:
        """All tensors to all workers. Returns when the last one was taken by all.

        A worker that has not taken what an earlier version brought it, one that failed too, is
        waited for, until it joins anew at the latest. InvalidArgument for a version that is not
        later than the last one, one that failed too: workers' words of it may still come.
        """
        if type(version) is not int:  # no letter could name it
            raise InvalidArgument(f"version: asked for an int, found {version!r}")
        until = time.monotonic() + values.seconds(timeout, f"version {version}")
        try:
            self._check_version(version)
            number, packer = 0, _Packer(self._half)
            for part in _parts(tensors, self._half):
                if not packer.fits(part[1]):
                    self._ship(number, packer, version, until, is_last=False)
                    number, packer = number + 1, _Packer(self._half)
                self._await_taken(number % 2, version, until)
                packer.put(self._memory[number % 2 * self._half :], *part)
            self._await_taken(number % 2, version, until)
            self._ship(number, packer, version, until, is_last=True)
            for half in range(2):
                self._await_taken(half, version, until)
        except BaseException as error:  # what yields the tensors may raise anything
            head = {"kind": "bad", "version": version, "why": words_of(error)}
            for peer, _ in self._workers.values():
                with suppress(Error):
                    self._mail.say(peer, head)
            raise

    def _check_version(self, version: int) -> None:
        if version <= self._last:
            raise InvalidArgument(
                f"version {version!r} after {self._last}: each is sent once, also one that failed"
            )
        self._last = version

    def _ship(
        self, number: int, packer: "_Packer", version: int, until: float, *, is_last: bool
    ) -> None:
        half = number % 2
        begin = half * self._half
        tickets: list[Ticket] = []
        try:
            for _, descriptor in self._workers.values():
                ticket = self._engine.write(
                    self._region, descriptor, packer.used, src_offset=begin, dst_offset=begin,
                    timeout=max(0.01, until - time.monotonic()),
                )  # fmt: skip
                tickets.append(ticket)
        finally:
            _land(tickets)
        head = {
            "kind": "bucket",
            "version": version,
            "number": number,
            "half": half,
            "tensors": packer.tensors,
            "used": packer.used,
            "checksum": _braid.crc64(self._memory[begin : begin + packer.used]),
            "is_last": is_last,
        }
        for rank, (peer, _) in self._workers.items():
            self._mail.say(peer, head)
            self._untaken[half][rank] = version

    def _await_taken(self, half: int, version: int, until: float) -> None:
        """Until no worker reads its half any more."""
        while waiting := self._untaken[half]:
            head, body = self._mail.next(until, f"workers {sorted(waiting)} to take a bucket")
            if head["kind"] == "join":
                self._joined(head, body)
            elif head["kind"] in ("taken", "bad"):
                self._note_taken(head)
            if head["kind"] == "bad" and head.get("version") == version:
                raise Cancelled(f"worker {head.get('rank')}: {head.get('why')}")

    def _note_taken(self, head: dict[str, Any]) -> None:
        if head.get("half") is None:  # of a `bad`: it was reading nothing
            return
        untaken, rank = self._untaken[letters.whole(head, "half", 1)], letters.whole(head, "rank")
        if untaken.get(rank) == head.get("version"):
            del untaken[rank]

    def close(self) -> None:
        if not self._is_closed:
            take_back(self._engine, self._region)
            self._is_closed = True


class StreamReceiver(Closing):
    """A worker's end. A context manager."""

    def __init__(self, engine: Engine, rank: int, bucket: int = 1 << 28) -> None:
        self._mail = _Mail(engine)
        self._engine = engine
        self._rank = rank
        self._half = _half_of(bucket)
        self._memory = np.zeros(2 * self._half, np.uint8)
        self._region = engine.register(self._memory)
        self._is_closed = False
        self._trainer: Peer | None = None
        self._reading: int | None = None
        """The half of a bucket that is not answered yet."""

    def join(self, address: bytes) -> None:
        """Tells the trainer of this worker."""
        self._trainer = Peer(address)
        body = letters.pack([self._engine.address.data, self._region.descriptor.data])
        head = {"kind": "join", "rank": self._rank, "bucket": 2 * self._half, "sums": NAME}
        self._mail.say(self._trainer, head, body)

    def receive(
        self, version: int, timeout: float = 300.0
    ) -> Generator[tuple[str, str, Any, Bytes], None, None]:
        """(name, dtype, shape, bytes) of each tensor of the version, in the trainer's order. The
        bytes are the caller's. The trainer is told what is raised or thrown in here, and when the
        caller goes no further (an error of its own, as a rule).
        """
        if self._trainer is None:
            raise InvalidArgument(f"worker {self._rank}: asked to receive before join()")
        until = time.monotonic() + values.seconds(timeout, f"worker {self._rank}: receive")
        try:
            yield from self._tensors(version, until)
        except BaseException as error:
            is_left = isinstance(error, GeneratorExit)
            why = "did not take all of it" if is_left else words_of(error)
            half, self._reading = self._reading, None
            head = {"kind": "bad", "version": version, "rank": self._rank, "why": why, "half": half}
            with suppress(Error):
                self._mail.say(self._trainer, head)
            raise

    def _tensors(self, version: int, until: float) -> Iterator[tuple[str, str, Any, Bytes]]:
        pending: Bytes | None = None
        number, is_last = 0, False
        while not is_last:
            head = self._bucket(version, until)
            self._reading = half = letters.whole(head, "half", 1)
            if letters.whole(head, "number") != number:
                raise InvalidArgument(
                    f"version {version}: bucket {head['number']} has come, and no bucket {number}"
                )
            memory = self._memory[half * self._half : (half + 1) * self._half]
            used = letters.whole(head, "used", self._half)
            if _braid.crc64(memory[:used]) != head.get("checksum"):
                raise InvalidArgument(
                    f"version {version}: a bucket of {used} bytes is not what was sent"
                )
            for name, dtype, shape, nbytes, at, offset, length in head["tensors"]:
                if pending is None:
                    pending = np.empty(nbytes, np.uint8)
                pending[at : at + length] = memory[offset : offset + length]
                if at + length == nbytes:
                    whole, pending = pending, None
                    yield str(name), str(dtype), tuple(shape), whole
            number, is_last = number + 1, head["is_last"] is True
            self._reading = None
            self._say_taken(version, half)

    def _say_taken(self, version: Any, half: Any) -> None:  # noqa: ANN401
        assert self._trainer is not None
        head = {"kind": "taken", "version": version, "half": half, "rank": self._rank}
        self._mail.say(self._trainer, head)

    def _bucket(self, version: int, until: float) -> dict[str, Any]:
        """The next one of the version. Those of others are let go of: nobody reads them."""
        while True:
            head, _ = self._mail.next(until, f"version {version}")
            if head["kind"] == "bad" and head.get("version", version) == version:
                raise Cancelled(f"version {version}: the trainer says: {head.get('why')}")
            if head["kind"] == "bucket" and head.get("version") == version:
                return head
            if head["kind"] == "bucket":
                self._say_taken(head.get("version"), head.get("half"))

    def close(self) -> None:
        if not self._is_closed:
            take_back(self._engine, self._region)
            self._is_closed = True


def _land(tickets: list[Ticket]) -> None:
    """Raises the first error when all have ended: until then they read our memory."""
    errors = []
    for ticket in tickets:
        try:
            ticket.wait()
        except Error as error:
            errors.append(error)
    if errors:
        raise errors[0]


class _Packer:
    """Fills a half, and notes what lies where."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.used = 0
        self.tensors: list[list[Any]] = []

    def fits(self, part: Bytes) -> bool:
        return self.used + part.size <= self._room

    def put(self, memory: Bytes, about: list[Any], part: Bytes) -> None:
        memory[self.used : self.used + part.size] = part
        self.tensors.append([*about, self.used, part.size])
        self.used = min(self._room, math.ceil((self.used + part.size) / _ALIGN) * _ALIGN)


def _parts(tensors: Iterable[tuple[str, Array]], most: int) -> Iterator[tuple[list[Any], Bytes]]:
    """Tensors as bytes, cut where they are longer than a half. A GPU's are copied to the host part
    by part, so that nothing there is as long as a whole one.
    """
    for name, tensor in tensors:
        whole = _in_one_piece(tensor)
        shape = [int(length) for length in tensor.shape]  # NumPy makes [1] of a scalar
        try:
            nbytes, read = _reader(whole)
        except InvalidArgument as error:
            raise InvalidArgument(f"tensor '{name}': {error}") from None
        for at in range(0, max(1, nbytes), most):
            yield [name, dtype_of(whole), shape, nbytes, at], read(at, min(at + most, nbytes))


def _in_one_piece(tensor: Array) -> Array:
    """The values row by row, in the machine's byte order, and not only conjugated when read."""
    if hasattr(tensor, "data_ptr"):
        resolved: Array = tensor.resolve_conj().resolve_neg().contiguous()
        return resolved
    array = np.asarray(tensor)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _reader(whole: Array) -> tuple[int, Callable[[int, int], Bytes]]:
    """How many bytes a contiguous array has, and what gives those from one place to another."""
    if extent(whole)[2] is None:
        data = as_bytes(whole)
        return data.size, lambda begin, end: data[begin:end]
    import torch

    there = whole.detach().reshape(-1).view(torch.uint8)
    return there.numel(), lambda begin, end: there[begin:end].cpu().numpy()

"""Whole tensors from one trainer to many workers, for interfaces that know no other form.

A worker joins by a letter to the trainer's address. Then tensors go in buckets: one half of a
bucket is filled while the other is unpacked, so nobody needs memory for more than a bucket.

    worker                               trainer
    join {bucket, sums}            ->
                                   <-    writes a half of the bucket; when it has landed:
                                   <-    bucket {version, half, tensors, checksum, is_last}
    unpacks; taken {version, half} ->    may fill that half again

`sums` names the checksum that the worker compares (sums.NAME); the trainer refuses any other. What
went wrong on either side is said to the other one (`bad`), which raises it.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from braid import _braid, letters
from braid.arrays import Array
from braid.engine import Descriptor, Engine, Peer
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.holdings import as_bytes, dtype_of, extent
from braid.weights.sums import NAME

Bytes = npt.NDArray[np.uint8]
_ALIGN = 64


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


class StreamSender:
    """The trainer's end. A context manager.

    bucket: bytes; the same on all sides. A tensor that is longer goes in parts.
    """

    def __init__(self, engine: Engine, bucket: int = 1 << 28) -> None:
        self._mail = _Mail(engine)
        self._engine = engine
        self._half = bucket // 2 // _ALIGN * _ALIGN
        self._memory = np.zeros(2 * self._half, np.uint8)
        self._region = engine.register(self._memory)
        self._workers: dict[int, tuple[Peer, Descriptor]] = {}

    @property
    def address(self) -> bytes:
        """What workers are told."""
        return self._engine.address.data

    def gather(self, count: int, timeout: float = 60.0) -> None:
        """Waits until workers 0 to count - 1 have joined; one that comes again takes its place."""
        until = time.monotonic() + timeout
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
        self._workers[rank] = peer, Descriptor(descriptor)
        return {rank}

    def send(
        self, tensors: Iterable[tuple[str, Array]], version: int, timeout: float = 300.0
    ) -> None:
        """All tensors to all workers. Returns when the last one was taken by all."""
        until = time.monotonic() + timeout
        try:
            free: list[set[int]] = [set(), set()]
            half, packer = 0, _Packer(self._half)
            for part in _parts(tensors, self._half):
                if not packer.fits(part[1]):
                    self._ship(half, packer, version, free, until, is_last=False)
                    half, packer = 1 - half, _Packer(self._half)
                self._await_free(free[half], version, until)
                packer.put(self._memory[half * self._half :], *part)
            self._await_free(free[half], version, until)
            self._ship(half, packer, version, free, until, is_last=True)
            for waiting in free:
                self._await_free(waiting, version, until, free)
        except Error as error:
            for peer, _ in self._workers.values():
                self._mail.say(peer, {"kind": "bad", "version": version, "why": str(error)})
            raise

    def _ship(
        self,
        half: int,
        packer: "_Packer",
        version: int,
        free: list[set[int]],
        until: float,
        *,
        is_last: bool,
    ) -> None:
        begin = half * self._half
        self._others = free
        tickets = [
            self._engine.write(
                self._region, descriptor, packer.used, src_offset=begin, dst_offset=begin,
                timeout=max(0.01, until - time.monotonic()),
            )
            for _, descriptor in self._workers.values()
        ]  # fmt: skip
        for ticket in tickets:
            ticket.wait()
        head = {
            "kind": "bucket",
            "version": version,
            "half": half,
            "tensors": packer.tensors,
            "used": packer.used,
            "checksum": _braid.crc64(self._memory[begin : begin + packer.used]),
            "is_last": is_last,
        }
        for rank, (peer, _) in self._workers.items():
            free[half].add(rank)
            self._mail.say(peer, head)

    def _await_free(
        self, waiting: set[int], version: int, until: float, free: list[set[int]] | None = None
    ) -> None:
        """Until all workers have taken what is in that half; `waiting` are those who have not."""
        while waiting:
            head, body = self._mail.next(until, f"workers {sorted(waiting)} to take a bucket")
            if head["kind"] == "join":
                self._joined(head, body)
            if head.get("version") != version:
                continue
            if head["kind"] == "bad":
                raise Cancelled(f"worker {head.get('rank')}: {head.get('why')}")
            if head["kind"] == "taken":
                halves = free or self._others
                halves[letters.whole(head, "half", 1)].discard(letters.whole(head, "rank"))

    def close(self) -> None:
        self._region.unregister()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamReceiver:
    """A worker's end. A context manager."""

    def __init__(self, engine: Engine, rank: int, bucket: int = 1 << 28) -> None:
        self._mail = _Mail(engine)
        self._engine = engine
        self._rank = rank
        self._half = bucket // 2 // _ALIGN * _ALIGN
        self._memory = np.zeros(2 * self._half, np.uint8)
        self._region = engine.register(self._memory)
        self._trainer: Peer | None = None

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
        until = time.monotonic() + timeout
        try:
            yield from self._tensors(version, until)
        except (Error, GeneratorExit) as error:
            why = str(error) or "did not take all of it"
            self._mail.say(
                self._trainer, {"kind": "bad", "version": version, "rank": self._rank, "why": why}
            )
            raise

    def _tensors(self, version: int, until: float) -> Iterator[tuple[str, str, Any, Bytes]]:
        pending: Bytes | None = None
        is_last = False
        while not is_last:
            head = self._bucket(version, until)
            half = letters.whole(head, "half", 1)
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
            is_last = head["is_last"] is True
            assert self._trainer is not None
            self._mail.say(
                self._trainer,
                {"kind": "taken", "version": version, "half": half, "rank": self._rank},
            )

    def _bucket(self, version: int, until: float) -> dict[str, Any]:
        while True:
            head, _ = self._mail.next(until, f"version {version}")
            if head["kind"] == "bad" and head.get("version", version) == version:
                raise Cancelled(f"version {version}: the trainer says: {head.get('why')}")
            if head["kind"] == "bucket" and head.get("version") == version:
                return head

    def close(self) -> None:
        self._region.unregister()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        whole = tensor.contiguous() if hasattr(tensor, "data_ptr") else np.ascontiguousarray(tensor)
        shape = [int(length) for length in tensor.shape]  # NumPy makes [1] of a scalar
        nbytes, read = _reader(whole)
        for at in range(0, max(1, nbytes), most):
            yield [name, dtype_of(whole), shape, nbytes, at], read(at, min(at + most, nbytes))


def _reader(whole: Array) -> tuple[int, Callable[[int, int], Bytes]]:
    """How many bytes a contiguous array has, and what gives those from one place to another."""
    if extent(whole)[2] is None:
        data = as_bytes(whole)
        return data.size, lambda begin, end: data[begin:end]
    import torch

    there = whole.detach().reshape(-1).view(torch.uint8)
    return there.numel(), lambda begin, end: there[begin:end].cpu().numpy()

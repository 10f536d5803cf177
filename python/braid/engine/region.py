"""Memory that peers reach, and what names it and its owner elsewhere."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from braid import _braid

# An address as src/engine/descriptor.cc writes it: magic, version and job; the name; the
# incarnation; the host; process, NICs and count of endpoints; the endpoints; the signature.
_HEAD_BYTES = 14
_INCARNATION_BYTES = 16
_LENGTH = struct.Struct("<I")
_NUMBERS = struct.Struct("<iHI")
_MOST_ENDPOINTS = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """Where an engine is reached: opaque bytes, without a secret. Pickle it, or ship .data."""

    data: bytes

    def __repr__(self) -> str:
        return f"Peer({len(self.data)} bytes)"

    def where(self) -> str:
        """Its engine's name and addresses, for messages: "'decode' at 10.0.0.1:4242". Believes the
        bytes; what they are is checked where they are used.
        """
        try:
            name, at = _text(self.data, _HEAD_BYTES)
            _, at = _text(self.data, at + _INCARNATION_BYTES)
            _, _, count = _NUMBERS.unpack_from(self.data, at)
            at += _NUMBERS.size
            endpoints = []
            for _ in range(min(count, _MOST_ENDPOINTS)):
                endpoint, at = _text(self.data, at)
                endpoints.append(endpoint)
        except struct.error:
            return f"a peer whose address, of {len(self.data)} bytes, is none"
        return f"'{name}' at {' or '.join(endpoints) or 'no address'}"


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Words behind their length, and where they end."""
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    return data[begin : begin + length].decode(errors="replace"), begin + length


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A region as peers name it: opaque bytes, signed by the job. Pickle it, or ship .data.

    Who has it and the job's token may read and write the region.
    """

    data: bytes

    def __repr__(self) -> str:
        return f"Descriptor({len(self.data)} bytes)"


class Region:
    """Registered memory of an engine. Made by Engine.register(); a context manager.

    Registered until unregister(), or until its engine closes; the engine keeps the buffer alive.
    """

    def __init__(
        self, core: _braid.engine.Region, data: bytes, unregister: Callable[[Any, float], None]
    ) -> None:
        self._core = core
        self._unregister = unregister
        self._descriptor = Descriptor(data)

    @property
    def descriptor(self) -> Descriptor:
        """What a peer writes to or reads from."""
        return self._descriptor

    @property
    def id(self) -> int:
        """The number by which messages name it; this engine never uses it again."""
        return self._core.id

    @property
    def nbytes(self) -> int:
        return self._core.nbytes

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return self._core.address

    @property
    def device(self) -> int | None:
        """The GPU; None for memory of the host."""
        return None if self._core.device < 0 else self._core.device

    def unregister(self, timeout: float = 30.0) -> None:
        """When it returns no byte can land here any more, and the memory may be freed.

        Peers that write get InvalidArgument. InvalidArgument here while transfers of this engine
        use the region; Timeout.
        """
        self._unregister(self, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unregister()

    def __repr__(self) -> str:
        where = "host" if self.device is None else f"GPU {self.device}"
        return f"Region({self.id}, {self.nbytes} bytes, {where})"

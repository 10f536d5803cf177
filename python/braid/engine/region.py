"""Memory that peers reach, and what names it and its owner elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from braid import _braid


@dataclass(frozen=True, slots=True)
class Peer:
    """Where an engine is reached: opaque bytes, without a secret. Pickle it, or ship .data."""

    data: bytes

    def __repr__(self) -> str:
        return f"Peer({len(self.data)} bytes)"


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
        """As messages name it; never used again by this engine."""
        return self._core.id

    @property
    def nbytes(self) -> int:
        return self._core.nbytes

    @property
    def address(self) -> int:
        """Of the first byte."""
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

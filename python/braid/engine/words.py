"""What comes from peers and from kernels: messages and watched words."""

from dataclasses import dataclass

from braid import _braid
from braid.closing import Closing
from braid.engine import values
from braid.engine.region import Descriptor


@dataclass(frozen=True, slots=True)
class Message:
    """A message or a notification that has arrived."""

    data: bytes
    sender: str
    """The name of the engine that sent it, for people: names need not differ."""
    incarnation: bytes
    """16 random bytes that tell one engine from all others, those of its restarts too."""


@dataclass(frozen=True, slots=True)
class ScatterPart:
    """One write of Engine.scatter()."""

    dst: Descriptor
    nbytes: int
    src_offset: int = 0
    dst_offset: int = 0


class Watch(Closing):
    """A word of 64 bits, 0 at first, that a kernel, a CUDA graph or a thread bumps; Engine.watch()
    makes it. Ends with close(), with this object, or with its engine.
    """

    def __init__(self, core: _braid.engine.Watch) -> None:
        self._core = core

    @property
    def value(self) -> int:
        return self._core.value

    @value.setter
    def value(self, value: int) -> None:
        self._core.value = values.whole(value, "watch: value")

    @property
    def address(self) -> int:
        """The word's address on the host."""
        return self._core.address

    @property
    def gpu_address(self) -> int:
        """Where a kernel stores, at system scope and behind what it announces; 0 without a GPU."""
        return self._core.gpu_address

    def close(self) -> None:
        """When it returns the callback does not run any more."""
        self._core.close()

"""Players: libraries that make collective calls on this rank. Calls of one player are made in the
same order on every rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from braid.sizes import format_size


@dataclass(frozen=True)
class Call:
    """One collective call."""

    op: str
    total_bytes: int
    """As nccl-tests counts: the buffer for all_reduce and broadcast, the sum over ranks else."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} {format_size(self.total_bytes)} {self.dtype}"


class Player(ABC):
    """One library."""

    name: str

    @abstractmethod
    def prepare(self, calls: Sequence[Call]) -> dict[Call, int]:
        """Takes buffers for these calls, makes each once on soiled results, and gives the wrong
        bytes of all ranks. Collective.
        """

    @abstractmethod
    def run(self, call: Call) -> None:
        """Begins a call that was prepared; on CPUs it is over when this returns. Collective."""

    def wait(self) -> None:  # noqa: B027 - calls on CPUs are over when they return
        """Until all calls that were begun are over."""

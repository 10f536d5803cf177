"""Who is measured on GPUs: the interface, and the memory that contestants share.

A contestant runs a case on buffers of its own kind of memory. Whether it can run one (why_not) and
how much memory it needs are pure, so that all ranks decide alike. prepare() is collective and may
fail; the others then go on without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from braid.cases.gpu import GpuCase

if TYPE_CHECKING:
    import torch

    from braid.bench.pattern import Data

    Tensor: TypeAlias = torch.Tensor

BASELINES = ("nccl", "nccl-best", "symm")
"""NCCL as torch sets it up; NCCL's other settings; torch's symmetric memory."""
VARIANTS = ("unregistered", "links")
"""braid on results that are not registered; braid held to NVLink, and to the host link."""
MSCCLPP = "mscclpp"
"""A baseline that takes part where its library is named: MSCCL++ in NCCL's place."""
_LEAST_BYTES = 2 << 20  # what allocators round to


class Shelf:
    """One growing buffer that views are taken from: cases of a sweep share it.

    `make` gives a buffer and what to do before it goes; what that refers to goes after it.
    """

    def __init__(self, make: Callable[[int], tuple["Tensor", Callable[[], None]]]) -> None:
        self._make = make
        self._held: tuple[Tensor, Callable[[], None]] | None = None

    @property
    def capacity(self) -> int:
        """Bytes held now."""
        return 0 if self._held is None else int(self._held[0].numel())

    def take(self, nbytes: int, dtype: "torch.dtype") -> "Tensor":
        """A view of the first bytes, of a larger buffer when needed. What was in it is lost."""
        if self._held is None or nbytes > self.capacity:
            self.drop()
            self._held = self._make(max(nbytes, _LEAST_BYTES))
        return self._held[0][:nbytes].view(dtype)

    def drop(self) -> None:
        """Gives the memory back, once nobody has a view of it."""
        if self._held is None:
            return
        buffer, release = self._held
        self._held = None
        release()
        del buffer
        del release


class Contestant(ABC):
    """Something that can run a case."""

    name: str
    group: str
    """"braid", a variant of it, or a baseline."""
    send: "Tensor"
    out: "Tensor"
    works_in_place: bool = False
    """True: all_reduce's operand is the result's buffer, filled again before every sample."""

    @property
    def family(self) -> str:
        """braid for its variants too."""
        return "braid" if self.group in VARIANTS else self.group

    def is_for(self, op: str) -> bool:  # noqa: ARG002 - most are for all
        """Whether it is a way of doing `op` at all."""
        return True

    def why_not(self, case: GpuCase) -> str:  # noqa: ARG002 - most run everything
        """Why it cannot run this case; "" when it can."""
        return ""

    @abstractmethod
    def shelves(self, case: GpuCase) -> dict[Shelf, int]:
        """The memory it uses, and how many bytes of each."""

    @abstractmethod
    def prepare(self, case: GpuCase, data: "Data", rank: int) -> None:
        """Takes buffers and fills what is sent. Collective."""

    def enter(self) -> None:  # noqa: B027 - most need no preparation
        """Called before a series of calls."""

    @abstractmethod
    def run(self) -> None:
        """Enqueues one call. Collective."""

    def result(self) -> "Tensor":
        """Where the last call's result is."""
        return self.out

    def load(self, case: GpuCase) -> None:
        """Puts all_reduce's operand where an in-place call wants it."""
        if self.works_in_place and case.op == "all_reduce":
            self.out.copy_(self.send)

    def soil(self, case: GpuCase, data: "Data", rank: int) -> None:
        """Makes the result's buffer hold no result, and operands that live there."""
        data.soil(self.out)
        if case.op == "broadcast" and rank == case.root:
            data.fill(self.out, rank)
        self.load(case)

    def let_go(self) -> None:
        """Forgets its buffers: the case is over."""
        self.send = self.out = None

"""How a call of a group is run: counted, given to the comms of its ranks, noted."""

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import distributed_c10d

from braid.torch.answers import Answers
from braid.torch.checks import check_rank
from braid.torch.comms import Body, Comms
from braid.torch.forms import Asked
from braid.torch.profiles import shown
from braid.torch.rows import check_dtype, plain
from braid.torch.work import GpuWork, seconds_of

Tensors = Sequence[Tensor]


def listed(tensors: Any) -> list[Tensor]:
    """torch has every call for one tensor and for a list."""
    return [plain(t) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]


class CallingGroup(Answers):
    """Without the calls themselves, which say what tensors they read and write."""

    def __init__(self, comms: Comms, store: Any) -> None:
        super().__init__(comms.meeting.rank, comms.meeting.size, comms.meeting.name, store)
        self._comms = comms
        self._is_checked = False

    # Calls that programs make many of ask for the short way first (plain_calls.py), which is there
    # once a call on a GPU was made. Their arguments have torch's own names: also_named() would be
    # one more Python call in each.

    def _short(self, work: GpuWork) -> GpuWork:
        """Of a call that went the short way."""
        self._calls += 1
        return self._noted(work)

    def _run(
        self,
        name: str,
        tensors: Tensors,
        outputs: Tensors,
        body: Body,
        said: Asked,
    ) -> Any:
        check_dtype(name, tensors)
        return self._submit(name, tensors, outputs, body, said)

    def _submit(
        self,
        name: str,
        tensors: Tensors,
        outputs: Tensors,
        body: Body,
        said: Asked,
    ) -> Any:
        self._count_call()
        is_async, limit_s = said.is_async, seconds_of(said.timeout)
        with shown(name):
            work = self._comms.run(name, tensors, outputs, body, is_async=is_async, limit_s=limit_s)
        return self._noted(work)

    def _count_call(self) -> None:
        self._calls += 1
        if self._is_checked:
            return
        self._is_checked = True
        asked = distributed_c10d._world.pg_backend_config.get(self, "")
        others = [part for part in asked.split(",") if part and not part.endswith(":braid")]
        if others and self.rank() == 0:
            warnings.warn(
                f"group {self._name} was asked for as '{asked}'; this torch cannot put a backend"
                " that is written in Python beside another one, so braid does"
                f" {', '.join(others)} too",
                stacklevel=4,
            )

    def _check_rank(self, name: str, argument: str, rank: int) -> None:
        check_rank(name, argument, rank, self.size())

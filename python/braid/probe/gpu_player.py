"""Players on GPUs: braid on registered results, and NCCL as torch sets it up."""

from collections.abc import Callable, Sequence

import torch

import braid
from braid.bench import nccl
from braid.bench.braid_contestant import Braid, plain_shelf, registered_shelf
from braid.bench.case import GpuCase
from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.bench.pattern import Data
from braid.probe.player import Call, Player

_PER_RANK = ("all_gather", "reduce_scatter")  # GpuCase counts a rank's own part of these


class GpuPlayer(Player):
    """One contestant per call; all of them use the same memory."""

    def __init__(self, name: str, make: Callable[[], Contestant], crew: Crew) -> None:
        self.name = name
        self._make, self._crew = make, crew
        self._ready: dict[Call, Contestant] = {}
        self._data: dict[str, Data] = {}

    def prepare(self, calls: Sequence[Call]) -> dict[Call, int]:
        """The largest comes first: memory that others have views of does not grow."""
        crew, wrong = self._crew, {}
        for call in sorted(dict.fromkeys(calls), key=lambda call: -call.bytes * crew.size):
            part = call.bytes // (crew.size if call.op in _PER_RANK else 1)
            case = GpuCase.of(call.op, part, call.dtype, crew.size)
            data = self._data_of(call.dtype)
            contestant = self._ready[call] = self._make()
            contestant.prepare(case, data, crew.rank)
            contestant.soil(case, data, crew.rank)
            contestant.enter()
            contestant.run()
            torch.cuda.synchronize()
            wrong[call] = crew.total(data.wrong_bytes(case, contestant.result()))
        return wrong

    def _data_of(self, dtype: str) -> Data:
        if dtype not in self._data:
            device = torch.device("cuda", torch.cuda.current_device())
            self._data[dtype] = Data(dtype, self._crew.rank, self._crew.size, device)
        return self._data[dtype]

    def run(self, call: Call) -> None:
        """Enqueues one call on the current stream."""
        self._ready[call].run()

    def wait(self) -> None:
        """Until the GPU is done."""
        torch.cuda.synchronize()


def players(comm: braid.Comm, crew: Crew, against: str, timeout_s: float) -> list[Player]:
    """braid, and the baseline that was asked for."""
    device = torch.device("cuda", torch.cuda.current_device())
    send, plain, ours = (
        plain_shelf(device), plain_shelf(device), registered_shelf(comm, device),
    )  # fmt: skip
    found = [GpuPlayer("braid", lambda: Braid("braid", "braid", comm, send, ours), crew)]
    if against == "nccl":
        nccl.join(crew, timeout_s)
        found.append(GpuPlayer("nccl", lambda: nccl.Nccl("nccl", "nccl", None, send, plain), crew))
    return list(found)

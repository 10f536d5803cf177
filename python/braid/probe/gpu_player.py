"""Players on GPUs: braid on registered results, and NCCL as torch sets it up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

import braid
from braid.bench import nccl
from braid.bench.braid_contestant import Braid, plain_shelf, registered_shelf
from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.bench.fit import merged
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase
from braid.plan.formulas.collectives import PER_RANK
from braid.probe.player import Call, Player


class GpuPlayer(Player):
    """One contestant per call; all of them use the same memory."""

    def __init__(self, name: str, make: Callable[[], Contestant], crew: Crew) -> None:
        self.name = name
        self._make, self._crew = make, crew
        self._ready: dict[Call, Contestant] = {}
        self._data: dict[str, Data] = {}

    def prepare(self, calls: Sequence[Call]) -> dict[Call, int]:
        """Memory is as large as any call needs before there is a view of it."""
        crew, wrong = self._crew, {}
        cases = {call: self._case(call) for call in calls}
        self._ready = {call: self._make() for call in cases}
        needs = [self._ready[call].shelves(case) for call, case in cases.items()]
        for shelf, nbytes in merged(needs).items():
            shelf.take(nbytes, torch.uint8)
        for call, case in cases.items():
            data, contestant = self._data_of(call.dtype), self._ready[call]
            contestant.prepare(case, data, crew.rank)
            contestant.soil(case, data, crew.rank)
            contestant.enter()
            contestant.run()
            torch.cuda.synchronize()
            wrong[call] = crew.total(data.wrong_bytes(case, contestant.result()))
        return wrong

    def _case(self, call: Call) -> GpuCase:
        part = call.total_bytes // (self._crew.size if call.op in PER_RANK else 1)
        return GpuCase.of(call.op, part, call.dtype, self._crew.size)

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

    def close(self) -> None:
        """Forgets views of memory."""
        for contestant in self._ready.values():
            contestant.let_go()


@contextmanager
def players(comm: braid.Comm, crew: Crew, against: str, timeout_s: float) -> Iterator[list[Player]]:
    """braid, and the baseline that was asked for; their memory goes when they do. Collective."""
    device = torch.device("cuda", torch.cuda.current_device())
    send, plain, ours = (
        plain_shelf(device), plain_shelf(device), registered_shelf(comm, device),
    )  # fmt: skip
    found = [GpuPlayer("braid", lambda: Braid("braid", "braid", comm, send, ours), crew)]
    if against == "nccl":
        nccl.join(crew, timeout_s)
        found.append(GpuPlayer("nccl", lambda: nccl.Nccl("nccl", "nccl", None, send, plain), crew))
    yield list(found)
    torch.cuda.synchronize()
    crew.barrier()
    for player in found:
        player.close()
    ours.drop()
    nccl.leave()

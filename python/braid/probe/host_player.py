"""Players between CPUs: braid, and Gloo in the same processes."""

from collections.abc import Sequence

import braid
from braid.bench.host import measure
from braid.bench.host.contestants import Braid, Contestant, Gloo
from braid.cases.host import Buffers, Case
from braid.probe.player import Call, Player


class HostPlayer(Player):
    """A contestant of `braid bench` that keeps the buffers of many calls."""

    def __init__(self, comm: braid.Comm, contestant: Contestant) -> None:
        self.name = contestant.name
        self._comm, self._contestant = comm, contestant
        self._buffers: dict[Call, Buffers] = {}

    def prepare(self, calls: Sequence[Call]) -> dict[Call, int]:
        """Every distinct call has buffers of its own."""
        wrong = {}
        for call in dict.fromkeys(calls):
            buffers = Buffers(Case.of(call.op, call.total_bytes, call.dtype, "sum", self._comm))
            self._contestant.prepare(buffers)
            wrong[call], _ = measure.check(self._comm, self._contestant, buffers)
            self._buffers[call] = buffers
        return wrong

    def run(self, call: Call) -> None:
        """One call."""
        self._contestant.prepare(self._buffers[call])
        self._contestant.run()


def players(comm: braid.Comm, against: str) -> list[Player]:
    """braid, and the baseline that was asked for."""
    found: list[Contestant] = [Braid(comm)]
    if against == "gloo":
        found.append(Gloo(comm))
    return [HostPlayer(comm, contestant) for contestant in found]

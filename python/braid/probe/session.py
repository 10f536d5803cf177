"""One rank of the kinds that make calls: a comm, players, and what all ranks decide together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import braid
from braid import launched
from braid.bench import facts
from braid.bench.crew import CommCrew
from braid.bench.deadline import Deadlines
from braid.bench.interrupt import join
from braid.probe.call_kinds import Team
from braid.probe.job import Job
from braid.probe.player import Player
from braid.probe.publish import Figures, Output, Run, measure
from braid.probe.worker import GpuWorker, HostWorker, Worker

_TIMEOUT_S = 60.0
_ROOM_S = 180.0  # for opening libraries and checking, beside the time for measuring


@dataclass(frozen=True)
class Asked:
    """What a rank is to measure."""

    kind: str
    on_gpus: bool
    against: str
    output: Output
    make_jobs: Callable[[Team, Sequence[Player], Worker], list[Job]]
    figures: Figures
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """braid.init's."""


def run_rank(asked: Asked) -> int:
    """The whole run on this rank. The exit code."""
    if asked.on_gpus:
        from braid.bench.no_multicast import forbid_multicast

        forbid_multicast()
        from braid.bench import own_gpu

        own_gpu.take()
    deadlines = Deadlines(launched.rank())
    seconds = _ROOM_S + 2 * asked.output.budget_s
    with (
        deadlines.step(f"bench {asked.kind}", seconds),
        join(progress=False, **asked.options) as comm,
    ):
        crew = CommCrew(comm)
        with _players(asked, comm, crew) as (device, players, worker):
            team = Team(crew, facts.variables())
            run = Run(
                kind=asked.kind,
                device=device,
                jobs=asked.make_jobs(team, players, worker),
                output=asked.output,
                settings=asked.settings,
                ranks=comm.size,
                rank=comm.rank,
                figures=asked.figures,
            )
            return measure(run, lambda came: bool(crew.agree(int(came))[0]))


@contextmanager
def _players(
    asked: Asked, comm: braid.Comm, crew: CommCrew
) -> Iterator[tuple[str, list[Player], Worker]]:
    if not asked.on_gpus:
        from braid.probe import host_player

        yield "", host_player.players(comm, asked.against), HostWorker()
        return
    import torch

    from braid.bench import own_gpu
    from braid.probe import gpu_player

    own_gpu.check_apart(crew)
    comm.all_reduce(torch.ones(1024, device="cuda"))  # makes the GPU's part of the comm
    torch.cuda.synchronize()
    with gpu_player.players(comm, crew, asked.against, _TIMEOUT_S) as players:
        yield torch.cuda.get_device_name(), players, GpuWorker()

"""braid and torch's own backend in one job, and what both take.

A job has two groups of the same ranks: the default one is braid's, the other NCCL's, or Gloo's
between CPUs. What is compared runs on both in turn, in one process, and each round starts with
another one: machines change while they are measured. A sample is the slowest rank's. A third
group, Gloo's, carries nothing but the measurement's own numbers.
"""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import braid.torch  # noqa: F401  makes "braid" a backend
from braid.record.probe import Series, gbps_of, times_of


@dataclass(frozen=True)
class Contestant:
    """One of the two."""

    name: str
    group: Any


def leave_out_collections() -> None:
    """What there is by now is no garbage: Python looked through it once, 200 ms of one sample."""
    gc.collect()
    gc.freeze()


class Contest:
    """One rank of the job. Made once a process; close() ends it."""

    def __init__(self, *, on_cpus: bool) -> None:
        self.device = torch.device("cpu")
        if not on_cpus:
            # A launcher that shows each rank its own GPU alone leaves it the first.
            place = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
            self.device = torch.device("cuda", place)
            torch.cuda.set_device(self.device)
        dist.init_process_group("braid")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        other = "gloo" if on_cpus else "nccl"
        self.contestants = (
            Contestant("braid", dist.group.WORLD),
            Contestant(other, dist.new_group(backend=other)),
        )
        self._meter = dist.new_group(backend="gloo")

    def close(self) -> None:
        """Waits for the others: torch's store is part of rank 0's process where no torchrun is."""
        dist.barrier(self._meter)
        dist.destroy_process_group()

    def told(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order. Collective."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, value, group=self._meter)
        return every

    def wait(self) -> None:
        """Until this rank's device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed_us(self, call: Callable[[], object]) -> float:
        """From all ranks' start until this rank's device is done. Collective."""
        self.wait()
        dist.barrier(self._meter)
        began = time.perf_counter()
        call()
        self.wait()
        return (time.perf_counter() - began) * 1e6

    def measure(
        self,
        what: str,
        calls: Mapping[str, Callable[[], object]],
        samples: int,
        nbytes: int = 0,
        wrong: Mapping[str, int] | None = None,
    ) -> list[Series]:
        """Times of calls by name, in turn; the first round does not count. Collective.

        `nbytes` is what one call moves, as nccl-tests counts; `wrong` are bytes that were found
        wrong before, by name.
        """
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for i in range(samples + 1):
            if i == 1:
                leave_out_collections()
            for name in turned(list(calls), i):
                taken[name].append(self.timed_us(calls[name]))
        wrong = wrong or {}
        return [
            self.series(what, name, us[1:], nbytes, wrong.get(name, 0))
            for name, us in taken.items()
        ]

    def series(
        self, what: str, case: str, own_us: Sequence[float], nbytes: int = 0, wrong: int = 0
    ) -> Series:
        """One case of a record from this rank's samples. Collective."""
        every = self.told(list(own_us))
        times = times_of([max(row) for row in zip(*every, strict=True)])
        return Series(
            what,
            case,
            nbytes,
            times,
            gbps_of(nbytes, times.p50_us) if nbytes else None,
            verdict="wrong data" if wrong else "ok",
            wrong_bytes=wrong,
            by_rank_us={f"rank {r}": round(median(us), 3) for r, us in enumerate(every)},
        )


def turned(things: Sequence[Any], by: int) -> list[Any]:
    """The same, starting with another one each time."""
    start = by % len(things)
    return [*things[start:], *things[:start]]

"""Cases on one host: contestants in turn, sample by sample, each round with another one first.
Every sum is compared before anything is timed, and the slowest rank counts.
"""

import time
from collections.abc import Sequence

import numpy as np

import braid
from braid.bench.moe.contestants import AllToAll, Case, Contestant, Gathering, LowLatency, Normal
from braid.bench.moe.routings import Shape, copies_to, ids_of
from braid.moe import Buffer
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of

_BF16 = 2
_CALLS = 3  # of one sample
_TUNED = 10  # calls after which a buffer that may gather has chosen


def jobs(
    comm: braid.Comm, shape: Shape, tokens: Sequence[int], routings: Sequence[str], gloo: bool
) -> list[Job]:
    return [_job(comm, shape, n, routing, gloo) for routing in routings for n in tokens]


def _job(comm: braid.Comm, shape: Shape, tokens: int, routing: str, gloo: bool) -> Job:
    group = f"{shape.name} {tokens} tokens {routing}"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        hint = Buffer.get_low_latency_rdma_size_hint(
            tokens, shape.hidden, comm.size, shape.num_experts
        )
        ids = ids_of(shape, routing, tokens, comm.rank)
        case = Case(shape, ids, comm.size, comm.rank)
        with (
            Buffer(comm, 64 << 20, hint, low_latency_mode=True) as buffer,
            Buffer(comm, 64 << 20, may_gather=True) as gathering,
        ):
            braids: list[Contestant] = [Normal(buffer, case), LowLatency(buffer, case)]
            braids.append(Gathering(gathering, case))
            for _ in range(_TUNED):
                braids[-1].run()
            present = braids + ([AllToAll(case)] if gloo else [])
            wrong = _check(comm, present, case)
            others = [r for r in range(comm.size) if r != comm.rank]
            copies = sum(copies_to(ids, shape, comm.size, r) for r in others)
            back = sum(
                copies_to(ids_of(shape, routing, tokens, r), shape, comm.size, comm.rank)
                for r in others
            )
            notes = _bytes(buffer, braids[0], (copies + back) * shape.hidden * _BF16)
            times = _race(comm, present, effort, tick)
        moved = 2 * copies * shape.hidden * _BF16
        return [
            _series(group, each.name, moved, times[each.name], wrong.get(each.name, 0), notes)
            for each in present
        ]

    return Job(group, tokens * shape.hidden * _BF16, run)


def _check(comm: braid.Comm, present: Sequence[Contestant], case: Case) -> dict[str, int]:
    """Wrong bytes by name: of the normal ones against each other and against what every row must
    be, of the low-latency one against the tokens themselves.
    """
    import torch

    per_rank = case.shape.num_experts // case.size
    ranks = case.ids // per_rank
    times = torch.stack([(ranks == r).any(1) for r in range(case.size)]).sum(0)
    wanted = (case.x.float() * times[:, None]).to(torch.bfloat16)
    found = {}
    for each in present:
        expected = case.x if isinstance(each, LowLatency) else wanted
        bad = int((each.run().view(torch.int16) != expected.view(torch.int16)).sum())
        found[each.name] = 2 * int(comm.all_reduce(np.array([bad]))[0])
    return found


def _bytes(buffer: Buffer, normal: Contestant, formula: int) -> str:
    """True bytes of one dispatch and combine, all links of this rank, beside the formula's."""
    before = sum(buffer.sent_bytes())
    normal.run()
    true = sum(buffer.sent_bytes()) - before
    return f"rank 0 sends {true} B in one dispatch and combine, {formula} B of them rows (formula)"


def _race(
    comm: braid.Comm, present: Sequence[Contestant], effort: Effort, tick: Tick
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {each.name: [] for each in present}
    for number in range(effort.samples):
        for k in range(len(present)):
            each = present[(number + k) % len(present)]
            comm.barrier()
            begin = time.perf_counter_ns()
            for _ in range(_CALLS):
                each.run()
            took = np.array([(time.perf_counter_ns() - begin) / 1e3 / _CALLS])
            times[each.name].append(float(comm.all_reduce(took, "max")[0]))
        tick(number + 1)
    return times


def _series(
    group: str, name: str, moved: int, samples: list[float], wrong: int, note: str
) -> Series:
    times = times_of(samples)
    return Series(
        group=group,
        case=name,
        bytes=moved,
        times=times,
        gbps=gbps_of(moved, times.p50_us) if moved else None,
        verdict="wrong data" if wrong else "ok",
        wrong_bytes=wrong,
        note=note if name == "braid" else "",
    )


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """Every other's median time by braid's normal mode: above 1, that one is slower."""
    ours = {one.group: one.times.p50_us for one in series if one.case == "braid" and one.times}
    return {
        f"{one.group}, {one.case}": round(one.times.p50_us / ours[one.group], 4)
        for one in series
        if one.case != "braid" and one.times and one.group in ours
    }

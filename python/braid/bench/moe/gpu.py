"""Cases on GPUs: whole dispatches and combines in graphs and eager, beside baselines; and each
kernel alone. Every sum is compared before anything is timed. The L2 is cold, and the slowest rank
counts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import braid
from braid.bench.moe.arrivals import Arrivals, wrong_bytes
from braid.bench.moe.bench import Bench
from braid.bench.moe.clock import Clock
from braid.bench.moe.contestants import (
    AllToAll,
    Case,
    Contestant,
    DeepEpLowLatency,
    DeepEpNormal,
    Gathers,
    LowLatency,
    LowLatencyByRank,
    Normal,
)
from braid.bench.moe.deepep import SMS, DeepEp
from braid.bench.moe.routings import Shape, copies_to, ids_of
from braid.bench.moe.steps import Carried, Side, Steps, Timed
from braid.moe import Buffer, Config
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of

_BF16, _WEIGHT = 2, 4
_SLEEP_CYCLES = 400_000  # the host enqueues a whole call meanwhile
_WARM = 3
BOTH = "both ways, eager, exact sizes"
DEEPEP = DeepEpNormal.name


def jobs(
    comm: braid.Comm,
    shape: Shape,
    tokens: Sequence[int],
    routings: Sequence[str],
    nccl: bool,
    deepep: DeepEp | None = None,
) -> list[Job]:
    return [
        _Bench(comm, shape, n, routing, nccl, deepep).job() for routing in routings for n in tokens
    ]


class _Bench(Bench):
    def __init__(
        self,
        comm: braid.Comm,
        shape: Shape,
        tokens: int,
        routing: str,
        nccl: bool,
        deepep: DeepEp | None = None,
    ) -> None:
        super().__init__(comm, shape, tokens, routing, deepep)
        self.nccl, self.size, self.rank = nccl, comm.size, comm.rank
        self.late: dict[str, int] = {}
        """By name, of all ranks: calls that the GPU began before its host had enqueued them."""

    def job(self) -> Job:
        return Job(self.name, self.tokens * self.shape.hidden * _BF16, self._run)

    def _ids(self, rank: int) -> np.ndarray:
        return ids_of(self.shape, self.routing, self.tokens, rank)

    def _run(self, effort: Effort, tick: Tick) -> list[Series]:
        shape, size = self.shape, self.size
        hint = Buffer.get_low_latency_rdma_size_hint(
            self.tokens, shape.hidden, size, shape.num_experts
        )
        self.case = Case(shape, self._ids(self.rank), size, self.rank, "cuda")
        if self.deepep is not None:
            self.comm.barrier()
            self.deepep.begin(self.tokens)
            torch.cuda.synchronize()
        self.clock = Clock(self.comm, _SLEEP_CYCLES)
        local = shape.num_experts // size
        self.y = torch.zeros(
            (local, self.tokens * size, shape.hidden), dtype=torch.bfloat16, device="cuda"
        )
        with Buffer(self.comm, 64 << 20, hint, low_latency_mode=True) as buffer:
            self.buffer = buffer
            both = self._both()
            wrong = self._check([each for each, _ in both])
            steps, refused = self._steps()
            timed = [Timed(f"{each.name}, {BOTH}", 2 * moved, each.run) for each, moved in both]
            timed += steps
            wrong |= self._check_steps(timed)
            times = self._race(timed, effort, tick)
            series = [
                self._series(each, times[each.name], wrong.get(each.name, 0)) for each in timed
            ]
            series += [_refusal(self.name, name, why) for name, why in refused.items()]
            series += self._kernels(effort)
        torch.cuda.empty_cache()
        return series

    # ---- what is timed ----

    def _copies(self) -> int:
        """To other ranks, in tokens: what links must carry one way."""
        ids = self._ids(self.rank)
        return sum(copies_to(ids, self.shape, self.size, r) for r in self._others())

    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    def _row(self, item_bytes: int = _BF16) -> int:
        return self.shape.hidden * item_bytes

    def _both(self) -> list[tuple[Contestant, int]]:
        copies = self._copies() * self._row()
        all_others = (self.size - 1) * self.tokens * self._row()
        routed: list[Contestant] = [Normal(self.buffer, self.case)]
        if self.shape.num_experts * self.tokens <= 1 << 19:  # bf16 rows of all experts: 60 GB
            routed += [kind(self.buffer, self.case) for kind in (LowLatency, LowLatencyByRank)]
        if self.deepep is not None:
            routed.append(DeepEpNormal(self.deepep.normal, self.case))
            if self.deepep.has_low_latency(self.tokens):
                rows = self.deepep.rows_for(self.tokens)
                routed.append(DeepEpLowLatency(self.deepep.low, self.case, rows))
        found: list[tuple[Contestant, int]] = [(each, copies) for each in routed]
        if self.size > 1:
            found.append((Gathers(self.comm, self.case), all_others))
        if self.nccl:
            found.append((AllToAll(self.case, "nccl"), copies))
        return found

    def _sides(self) -> Iterator[Side]:
        numbers = {"all SMs": 1 << 10, **{f"{sms} SMs": sms for sms in SMS}}
        configs = {words: (Config(num_sms=sms),) * 2 for words, sms in numbers.items()}
        yield Side("", self.buffer, self.buffer, configs, self.tokens)
        if (other := self.deepep) is not None:
            yield Side(
                f"{DEEPEP} ", other.normal,
                other.low if other.has_low_latency(self.tokens) else None,
                {f"{sms} SMs": other.configs(sms) for sms in SMS},
                other.rows_for(self.tokens), alternates=True,
            )  # fmt: skip

    def _steps(self) -> tuple[list[Timed], dict[str, str]]:
        """Single calls, and those of others that could not be made, with the reason."""
        shape, copies = self.shape, self._copies()
        experts_of_rank = shape.num_experts // self.size
        remote = int((self._ids(self.rank) // experts_of_rank != self.rank).sum())
        carried = Carried(copies * self._row(), copies * self._fp8_row(), remote * self._row())
        arrivals = Arrivals(shape, self.routing, self.tokens, self.size, self.rank)
        made: list[Timed] = []
        refused = {}
        for side in self._sides():
            steps = Steps(side, self.case, arrivals, carried)
            kinds = {"normal": steps.normal(self._by_rank())}
            if side.low is not None:
                kinds["low latency"] = steps.low_latency(self._results(side.rows))
            for kind, each in kinds.items():
                try:
                    made += list(each)
                except RuntimeError as error:
                    if not side.prefix:
                        raise
                    refused[f"{side.prefix}{kind}"] = " ".join(str(error).split())
        return made, refused

    def _results(self, rows: int) -> torch.Tensor:
        """Of this rank's experts, for `rows` of each rank."""
        if rows == self.tokens:
            return self.y
        return self.y.new_zeros((len(self.y), rows * self.size, self.shape.hidden))

    def _fp8_row(self) -> int:
        return self._row(1) + self.shape.hidden // 128 * 4

    def _low(self, **asked: Any) -> Any:
        c = self.case
        return self.buffer.low_latency_dispatch(
            c.x, c.ids, self.tokens, self.shape.num_experts, use_fp8=True, **asked
        )

    # ---- checks and times ----

    def _check(self, present: Sequence[Contestant]) -> dict[str, int]:
        """Wrong bytes by name of what is timed, of all ranks."""
        case, by_rank = self.case, self._by_rank()
        # A rank adds the same number up, exactly, and rounds; sums of those are exact, too.
        parts = [
            (case.x.float() * (n / case.shape.num_topk)[:, None]).to(torch.bfloat16).float()
            for n in self._choices()
        ]
        wanted = {
            LowLatency.name: case.x,
            DeepEpLowLatency.name: case.x,
            LowLatencyByRank.name: torch.stack(parts).sum(0).to(torch.bfloat16),
            Gathers.name: case.x * case.size,
        }
        found = {}
        for each in present:
            sums = each.run()
            expected = wanted.get(each.name, by_rank)
            found[f"{each.name}, {BOTH}"] = self.of_all(wrong_bytes(sums, expected))
        return found

    def _choices(self) -> torch.Tensor:
        """How many experts of each rank every token has: [N, T]."""
        ranks = self.case.ids // (self.shape.num_experts // self.size)
        return torch.stack([(ranks == r).sum(1) for r in range(self.size)])

    def _by_rank(self) -> torch.Tensor:
        """Sums of a normal combine of what came: each token by as many ranks as have it."""
        times = (self._choices() > 0).sum(0)
        return (self.case.x.float() * times[:, None]).to(torch.bfloat16)

    def _check_steps(self, timed: Sequence[Timed]) -> dict[str, int]:
        """The same of what single calls leave."""
        found = {}
        for each in timed:
            if each.wrong is None:
                continue
            each.whole()
            torch.cuda.synchronize()
            found[each.name] = self.of_all(each.wrong())
        return found

    def _slowest(self, us: float) -> float:
        return float(self.comm.all_reduce(np.array([us]), "max")[0])

    def _race(self, timed: Sequence[Timed], effort: Effort, tick: Tick) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {each.name: [] for each in timed}
        late = dict.fromkeys(times, 0)
        for each in timed:
            for _ in range(_WARM):
                each.whole()
        for number in range(effort.samples):
            for k in range(len(timed)):
                each = timed[(number + k) % len(timed)]
                each.before()
                late_before = self.clock.num_late
                times[each.name].append(self._slowest(self.clock.time_us([each.call])[0]))
                late[each.name] += self.clock.num_late - late_before
                each.after()
            tick(number + 1)
        self.late = {name: self.of_all(count) for name, count in late.items()}
        return times

    def _kernels(self, effort: Effort) -> list[Series]:
        """Each low-latency kernel of this GPU alone. Between ranks it would also wait for them: in
        a group of one only.
        """
        if self.size > 1:
            return []
        b, c = self.buffer, self.case
        t, k = self.tokens, self.shape.num_topk
        y = self.y
        hooks: list[Any] = []
        handles: list[Any] = []

        def send(**asked: Any) -> None:
            _, _, handle, _, hook = self._low(return_recv_hook=True, **asked)
            handles.append(handle)
            hooks.append(hook)

        def give_back(**asked: Any) -> None:
            _, _, hook = b.low_latency_combine(
                y, c.ids, c.weights, handles[-1], return_recv_hook=True, **asked
            )
            hooks.append(hook)

        def receive() -> None:
            hooks[-1]()

        def send_weights() -> None:
            send(topk_weights=c.weights)

        fp8, row = self._fp8_row(), self._row()
        sent, fanned = t * (row + fp8), t * fp8 + t * k * fp8
        steps = [
            Timed("kernel: cast and send, fp8", sent, send, True),
            Timed("kernel: fan out, fp8", fanned, receive, True),
            Timed("kernel: return, bf16", 2 * t * k * row, give_back, True),
            Timed("kernel: weighted sum, bf16", (k + 1) * t * row, receive, True),
        ]
        by_rank = [
            Timed("kernel: cast and send with weights, fp8", sent, send_weights, True),
            Timed("kernel: fan out with weights, fp8", fanned, receive, True),
            Timed(
                "kernel: return by rank, bf16", (k + 1) * t * row,
                lambda: give_back(partial="rank"), True,
            ),
            Timed("kernel: sum by rank, bf16", 2 * t * row, receive, True),
        ]  # fmt: skip
        return [
            self._series(step, took, 0)
            for chain in (steps, by_rank)
            for step, took in zip(chain, self._chain(chain, effort, hooks, handles), strict=True)
        ]

    def _chain(
        self, steps: Sequence[Timed], effort: Effort, hooks: list[Any], handles: list[Any]
    ) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in steps]
        # One at a time behind a flush: the others of its pass go before or after it, untimed.
        for number in range(_WARM + effort.samples):
            for one in range(len(steps)):
                us = 0.0
                for at, other in enumerate(steps):
                    us = self.clock.time_us([other.call])[0] if at == one else us
                    if at != one:
                        other.call()
                hooks.clear()
                handles.clear()
                if number >= _WARM:
                    times[one].append(us)
        return times

    def _series(self, timed: Timed, samples: list[float], wrong: int) -> Series:
        times = times_of(samples)
        moved = timed.bytes
        note = "GB/s of this GPU's memory, reads and writes" if timed.is_local else ""
        if late := self.late.get(timed.name, 0):  # an eager call's own host is a part of its time
            note = f"in {late} of {self.size * len(samples)} the GPU waited for its host"
        return Series(
            group=self.name,
            case=timed.name,
            bytes=moved,
            times=times,
            gbps=gbps_of(moved, times.p50_us) if moved else None,
            verdict="wrong data" if wrong else "ok",
            wrong_bytes=wrong,
            note=note,
        )


def _refusal(group: str, name: str, why: str) -> Series:
    return Series(group, name, 0, None, None, verdict="unsupported", note=why)


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """Every other's median time of both ways by braid's normal mode's, and DeepEP's of a single
    call by braid's of the same one: above 1, that is slower.
    """
    medians = {(one.group, one.case): one.times.p50_us for one in series if one.times is not None}
    found = {}
    for (group, case), us in medians.items():
        same = case.removeprefix(f"{DEEPEP} ")
        ours = f"braid, {BOTH}" if BOTH in case else same
        if ours != case and (group, ours) in medians:
            found[f"{group}, {case}"] = round(us / medians[group, ours], 4)
    return found

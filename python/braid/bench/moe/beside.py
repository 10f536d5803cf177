"""A GEMM between the halves of low-latency calls: what the copies cost it, and what of the call it
does not hide.

A turn of a call, between events on the current stream alone:
  alone              GEMM
  met                send half, GEMM; all ranks wait until all that every GPU was given is done, so
                     that rows and flags are there; hook, which waits for nobody
  hooked             send half, GEMM, hook, one right behind the other

What is said of it, by the medians of the rank where it is most:
  GEMM slowed        (GEMM between the halves) / (GEMM alone) - 1: peers' rows come meanwhile
  own work           send half and hook of a met turn. What a hook copies to experts' rows, or adds
                     up, is work of the call and no wait
  exposed wait       (send half + GEMM + hook of a hooked turn) - (GEMM alone) - (own work): what
                     both cost beyond each by itself; the GEMM's slowing down counts, too
  of it in the hook  hook - (hook of a met turn): its wait for rows alone
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

import braid
from braid.bench.moe.arrivals import Arrivals
from braid.bench.moe.bench import Bench
from braid.bench.moe.clock import Clock
from braid.bench.moe.contestants import Case
from braid.bench.moe.deepep import MOST_LOW_LATENCY, DeepEp
from braid.bench.moe.hooked import Gemm, Hooked, HookedCombine, HookedDispatch
from braid.bench.moe.launches import blocks_of
from braid.bench.moe.routings import Shape, ids_of
from braid.bench.moe.steps import Side
from braid.moe import Buffer
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick, with_ranks
from braid.record.probe import Series, times_of
from braid.record.ranks import of_samples

GEMM = (4096, 7168, 4096)
"""Rows, depth, columns. Depth and columns are gate and up of DeepSeek-V3's shared expert, which a
layer computes meanwhile. A rank's 128 rows would make it as short as the call; 4096 are 0.24 TFLOP,
243 us or more by the 989 TFLOP/s of an H100's data sheet: several times as long as the call, and on
every multiprocessor.
"""
_SLEEP_CYCLES = 1_000_000  # the host enqueues both halves and the GEMM meanwhile
_WARM = 3
_BF16 = 2

ALONE, SEND, BETWEEN, HOOK, WHOLE = "GEMM alone", "send half", "GEMM between", "hook", "whole"
MET_HOOK, OWN = "hook, met", "own work"
PARTS = (ALONE, SEND, BETWEEN, HOOK, WHOLE, MET_HOOK, OWN)


def jobs(
    comm: braid.Comm,
    shape: Shape,
    tokens: Sequence[int],
    routings: Sequence[str],
    deepep: DeepEp | None = None,
    device: str = "cuda",
) -> list[Job]:
    """Of numbers of tokens that are low latency's. The profiler comes last: whatever it does, the
    times are in the record.
    """
    benches = [
        _Beside(comm, shape, n, routing, deepep, device)
        for routing in routings
        for n in tokens
        if n <= MOST_LOW_LATENCY
    ]
    return [each.timed() for each in benches] + [each.seen() for each in benches]


def settings() -> dict[str, str]:
    """For the record."""
    return {"beside_gemm": "{} x {} by {} x {}, bf16".format(*GEMM[:2], *GEMM[1:])}


@dataclass
class _Found:
    """Of one call: of every part a row for each sample, with every rank's us."""

    rows: dict[str, list[list[float]]] = field(default_factory=lambda: {part: [] for part in PARTS})
    wrong: int = 0
    num_late: int = 0


class _Turns:
    """Turns of calls, and what they need of the GPU's memory."""

    def __init__(self, comm: braid.Comm, device: str) -> None:
        self._gemm = Gemm(*GEMM, device).run
        self._clock = Clock(comm, _SLEEP_CYCLES, device)

    def check(self, call: Hooked) -> int:
        """Wrong bytes of this rank's."""
        call.before()
        call.send()
        call.spoil()
        self._gemm()
        call.hook()
        call.after()
        torch.cuda.synchronize()
        return call.wrong()

    def take(self, call: Hooked) -> tuple[list[float], int]:
        """us of all parts, and how many times the host was late. A hooked call is the last."""
        clock, late_before = self._clock, self._clock.num_late
        (alone,) = clock.time_us([self._gemm])
        call.before()
        met_send, _ = clock.time_us([call.send, self._gemm])
        met_hook = clock.time_met_us(call.hook)
        call.after()
        call.before()
        send, between, hook = clock.time_us([call.send, self._gemm, call.hook])
        call.after()
        torch.cuda.synchronize()
        whole, own = send + between + hook, met_send + met_hook
        return [alone, send, between, hook, whole, met_hook, own], clock.num_late - late_before


class _Beside(Bench):
    def __init__(
        self,
        comm: braid.Comm,
        shape: Shape,
        tokens: int,
        routing: str,
        deepep: DeepEp | None,
        device: str,
    ) -> None:
        super().__init__(comm, shape, tokens, routing, deepep)
        self.device = device
        self.refused: dict[str, str] = {}
        """Calls of others that could not be made, with the reason."""

    def timed(self) -> Job:
        return self._job("beside a GEMM", self._time)

    def seen(self) -> Job:
        return self._job("blocks", lambda _, tick: self._look(tick))

    def _job(self, what: str, run: Callable[[Effort, Tick], list[Series]]) -> Job:
        return Job(f"{self.name} {what}", self.tokens * self.shape.hidden * _BF16, run)

    @contextmanager
    def _calls(self) -> Iterator[list[Hooked]]:
        """Buffers as long as they are needed."""
        comm, shape, tokens = self.comm, self.shape, self.tokens
        hint = Buffer.get_low_latency_rdma_size_hint(
            tokens, shape.hidden, comm.size, shape.num_experts
        )
        ids = ids_of(shape, self.routing, tokens, comm.rank)
        case = Case(shape, ids, comm.size, comm.rank, self.device)
        arrivals = Arrivals(shape, self.routing, tokens, comm.size, comm.rank)
        with Buffer(comm, 0, hint, low_latency_mode=True) as buffer:
            sides = [Side("", buffer, buffer, {}, tokens)]
            if (other := self.deepep) is not None and other.has_low_latency(tokens):
                comm.barrier()
                other.begin(tokens)
                torch.cuda.synchronize()
                sides.append(Side("DeepEP ", other.low, other.low, {}, other.rows_for(tokens)))
            yield [
                each
                for side in sides
                for each in (HookedDispatch(side, case, arrivals), HookedCombine(side, case))
            ]
            torch.cuda.synchronize()

    # ---- times ----

    def _time(self, effort: Effort, tick: Tick) -> list[Series]:
        turns = _Turns(self.comm, self.device)
        with self._calls() as calls:
            found = {each.name: _Found() for each in calls}
            self._check(turns, calls, found)
            present = [each for each in calls if each.name not in self.refused]
            self._race(turns, present, found, effort, tick)
        series = [one for each in present for one in self._series(each.name, found[each.name])]
        return series + [
            Series(self.name, name, 0, None, None, verdict="unsupported", note=why)
            for name, why in self.refused.items()
        ]

    def _check(self, turns: _Turns, calls: Sequence[Hooked], found: dict[str, _Found]) -> None:
        """Before anything is timed."""
        for each in calls:
            try:
                wrong = turns.check(each)
            except RuntimeError as error:
                if each.is_braids:
                    raise
                self.refused[each.name] = " ".join(str(error).split())
                continue
            found[each.name].wrong = self.of_all(wrong)
            for _ in range(_WARM):
                turns.take(each)

    def _race(
        self,
        turns: _Turns,
        calls: Sequence[Hooked],
        found: dict[str, _Found],
        effort: Effort,
        tick: Tick,
    ) -> None:
        """Turn by turn, each round with another call first. What the last turns leave is compared,
        too.
        """
        for number in range(effort.samples):
            for k in range(len(calls)):
                each = calls[(number + k) % len(calls)]
                times, num_late = turns.take(each)
                found[each.name].num_late += num_late
                for part, row in zip(PARTS, self._of_ranks(times), strict=True):
                    found[each.name].rows[part].append(row)
            tick(number + 1)
        for each in calls:
            found[each.name].wrong += self.of_all(each.wrong())
            found[each.name].num_late = self.of_all(found[each.name].num_late)

    def _of_ranks(self, times: Sequence[float]) -> list[list[float]]:
        """Of each part every rank's."""
        gathered = self.comm.all_gather(np.array(times)).reshape(self.comm.size, len(times))
        return [[float(us) for us in row] for row in gathered.T]

    def _series(self, name: str, found: _Found) -> list[Series]:
        """A sample is the slowest rank's."""
        return [
            self._part(f"{name}: {part}", rows, *self._verdict(part, found))
            for part, rows in found.rows.items()
        ]

    def _verdict(self, part: str, found: _Found) -> tuple[int, str]:
        """What is said of a call once: with its whole."""
        if part != WHOLE:
            return 0, ""
        late = f"{found.num_late} measurements of all ranks began before the host was done"
        return found.wrong, late if found.num_late else ""

    def _part(self, case: str, rows: list[list[float]], wrong: int, note: str) -> Series:
        one = Series(
            self.name, case, 0, times_of([max(row) for row in rows]), None,
            verdict="wrong data" if wrong else "ok", wrong_bytes=wrong, note=note,
        )  # fmt: skip
        by_rank = of_samples(list(zip(*rows, strict=True)))
        return with_ranks(one, {f"rank {rank}": times for rank, times in enumerate(by_rank)})

    # ---- what is launched ----

    def _look(self, tick: Tick) -> list[Series]:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        of = f"the GPU has {gpu.multi_processor_count} multiprocessors"
        with self._calls() as calls:
            present = [each for each in calls if each.name not in self.refused]
            said = {each.name: f"{_blocks_of_send(each)}; {of}" for each in present}
        tick(1)
        return [
            Series(self.name, f"{name}: blocks of the send half", 0, None, None, note=words)
            for name, words in said.items()
        ]


def _blocks_of_send(call: Hooked) -> str:
    """In words; so is what the profiler raises, by which no bench ends."""
    is_sent = False

    def send() -> None:
        nonlocal is_sent
        call.send()
        is_sent = True

    call.before()
    try:
        words = ", ".join(map(str, blocks_of(send))) or "none seen by the profiler"
    except Exception as error:
        words = " ".join(f"not seen: {type(error).__name__}: {error}".split())
    if not is_sent:
        send()
    call.hook()
    call.after()
    torch.cuda.synchronize()
    return words


def figures_of(series: Sequence[Series]) -> dict[str, float]:
    """What the head of this file says, of each call; in us but for the first."""
    by_rank = {(one.group, one.case): one.by_rank_us for one in series}
    found = {}
    for group, case in by_rank:
        call = case.removesuffix(f": {WHOLE}")
        if call == case:
            continue
        us = {part: by_rank[group, f"{call}: {part}"] for part in PARTS}
        ranks, name = us[WHOLE], f"{group}, {call}"
        slowed = max(us[BETWEEN][r] / us[ALONE][r] for r in ranks) - 1
        exposed = max(us[WHOLE][r] - us[ALONE][r] - us[OWN][r] for r in ranks)
        in_hook = max(us[HOOK][r] - us[MET_HOOK][r] for r in ranks)
        found[f"{name}: GEMM slowed, of its time alone"] = round(slowed, 4)
        found[f"{name}: exposed wait, us"] = round(exposed, 3)
        found[f"{name}: of it in the hook, us"] = round(in_hook, 3)
    return found

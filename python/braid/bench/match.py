"""One case on this rank: who fits, who is right, how fast everybody is."""

from collections.abc import Callable
from functools import partial

import torch

import braid
from braid.bench.blocks import of_calls
from braid.bench.braid_contestant import plan_of
from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.bench.deadline import Deadlines
from braid.bench.interrupt import Interrupt
from braid.bench.pattern import Data
from braid.bench.proof import Proof
from braid.bench.race import calls_for, race, samples_for
from braid.bench.request import Request, Task
from braid.bench.roster import Roster
from braid.bench.seats import Seats
from braid.bench.timer import Eager, Graphed, Timer
from braid.cases.gpu import GpuCase
from braid.record.gpu import GpuResult, make_run
from braid.record.ranks import of_samples
from braid.terminal.reporter import Reporter

_PILOT_CALLS = 2


class Match:
    """Plays the cases of a run one after the other."""

    def __init__(
        self,
        request: Request,
        comm: braid.Comm,
        crew: Crew,
        roster: Roster,
        data: Data,
        deadlines: Deadlines,
        reporter: Reporter,
        stop: Interrupt,
    ) -> None:
        self._request, self._comm, self._crew, self._roster = request, comm, crew, roster
        self._data, self._deadlines, self._reporter = data, deadlines, reporter
        self._stop = stop
        self.skipped: dict[str, str] = {}
        """Cases that did not take place, and why."""
        self._eager: Timer = Eager(crew)
        self._graphed: Timer = Graphed(crew, request.launches)
        self._seats = Seats(crew, roster.contestants)

    def play(self, task: Task, budget_s: float) -> GpuResult | None:
        """The result, or None when the case did not fit or was interrupted before a sample."""
        request = self._request
        case = GpuCase.of(
            task.op, task.own_bytes, request.dtype, self._crew.size, task.mode, request.root
        )
        timer = self._graphed if case.mode == "graph" else self._eager
        chosen, absent = self._seats.choose(case, task.groups)
        if not chosen:
            self.skipped[f"{case.name} {case.mode}"] = "its buffers do not fit in the GPU's memory"
            return None
        result = self._measure(case, timer, chosen, absent, budget_s)
        timer.forget()  # graphs know addresses
        for contestant in chosen:
            contestant.let_go()
        return result

    def _measure(
        self,
        case: GpuCase,
        timer: Timer,
        chosen: list[Contestant],
        absent: dict[str, str],
        budget_s: float,
    ) -> GpuResult | None:
        proof = Proof(case, self._crew, self._data, self._deadlines, self._request.step_timeout_s)
        pilots: dict[str, float] = {}
        for contestant in chosen:
            self._reporter.say(case.name, f"checking {contestant.name}")
            why = self._check(contestant, case, proof) or self._pilot(contestant, case, pilots)
            if why:
                absent[contestant.name] = why
        if "braid" not in pilots:
            raise RuntimeError(f"{case.name}: braid cannot run it: {absent['braid']}")
        racers = [c for c in chosen if c.name in pilots]
        quickest_us = min(pilots[c.name] for c in racers)
        calls = self._crew.agree(self._request.calls or calls_for(quickest_us))[0]
        for contestant in list(racers):
            self._reporter.say(case.name, f"warming up {contestant.name}")
            why = self._attempt(
                f"{case.name}, warming up {contestant.name}",
                partial(timer.make_ready, contestant, calls),
            ) or self._on_soiled(contestant, case, timer, calls, proof)
            if why:
                absent[contestant.name] = why
                racers.remove(contestant)
        times = self._race(case, timer, racers, calls, budget_s, pilots, proof)
        if not times or not times[0]:
            return None
        runs = []
        for c, mine in zip(racers, times, strict=True):
            rows = self._crew.rows(mine)
            slowest = [max(sample) for sample in zip(*rows, strict=True)]
            runs.append(
                make_run(
                    c.name,
                    c.family,
                    slowest,
                    case.busbw_gbps,
                    proof.wrong[c.name],
                    of_samples(rows),
                    proof.bursts[c.name],
                )
            )
        plan = plan_of(self._comm, case)
        return GpuResult(
            case.op, case.own_bytes, case.total_bytes, case.dtype, case.mode, calls,
            plan.host_share, runs, absent, plan.path, plan.rdma_share,
            case.root if case.op == "broadcast" else None,
            timer.launches,
        )  # fmt: skip

    def blocks(self, op: str, nbytes: int) -> int | None:
        """Thread blocks of braid's calls, as torch's profiler sees them."""
        case = GpuCase.of(op, nbytes, self._request.dtype, self._crew.size)
        chosen, _ = self._seats.choose(case, frozenset())
        if not chosen:
            return None
        ours = chosen[0]
        count: int | None = None

        def profile() -> None:
            nonlocal count
            ours.prepare(case, self._data, self._crew.rank)
            ours.run()
            torch.cuda.synchronize()
            count = of_calls(ours.run)

        why = self._attempt(f"{case.name}, counting thread blocks", profile)
        ours.let_go()
        return None if why else count

    def _race(
        self,
        case: GpuCase,
        timer: Timer,
        racers: list[Contestant],
        calls: int,
        budget_s: float,
        pilots: dict[str, float],
        proof: Proof,
    ) -> list[list[float]]:
        factor = (timer.launches + 1) * calls if timer.launches else calls + 1
        round_s = sum(pilots[c.name] for c in racers) * factor / 1e6
        samples = self._crew.agree(samples_for(budget_s, round_s, self._request.samples))[0]
        self._reporter.expect(samples)

        def sample(contestant: Contestant, case: GpuCase, calls: int) -> float:
            words = f"{case.name}, timing {contestant.name}"
            with self._deadlines.step(words, self._request.step_timeout_s):
                return timer.sample_us(contestant, case, calls)

        return race(
            self._crew, racers, sample, case, calls, samples, self._stop.asked,
            lambda i: self._reporter.step(case.name, f"sample {i} of {samples}"),
            lambda c: proof.burst(c, sum(timer.counts(calls))),
        )  # fmt: skip

    def _check(self, contestant: Contestant, case: GpuCase, proof: Proof) -> str:
        """One call on a soiled result, every byte of it compared. Why it failed, or ""."""

        def call() -> None:
            proof.soil(contestant)
            contestant.enter()
            contestant.run()
            torch.cuda.synchronize()

        words = f"{case.name}, {contestant.name}"
        why = self._attempt(
            f"{words}: buffers", partial(contestant.prepare, case, self._data, self._crew.rank)
        ) or self._attempt(f"{words}: a first call", call)
        if not why:
            proof.call(contestant)
        return why

    def _on_soiled(
        self, contestant: Contestant, case: GpuCase, timer: Timer, calls: int, proof: Proof
    ) -> str:
        """A burst as it will be timed, on a soiled result. Why it failed, or ""."""
        why = self._attempt(
            f"{case.name}, {contestant.name}: a burst on a soiled result",
            partial(timer.on_soiled, contestant, calls, partial(proof.soil, contestant)),
        )
        if not why:
            proof.burst(contestant, timer.counts(calls)[1])
        return why

    def _pilot(self, contestant: Contestant, case: GpuCase, pilots: dict[str, float]) -> str:
        """A first look at its time."""
        with self._deadlines.step(
            f"{case.name}, a first look at {contestant.name}", self._request.step_timeout_s
        ):
            took_us = self._eager.sample_us(contestant, case, _PILOT_CALLS)
            pilots[contestant.name] = self._crew.slowest([took_us])[0]
        return ""

    def _attempt(self, words: str, do: Callable[[], None]) -> str:
        """Does it; the first rank's reason when it failed anywhere. Collective."""
        said = ""
        with self._deadlines.step(words, self._request.step_timeout_s):
            try:
                do()
            except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                if isinstance(error, braid.Error):
                    raise
                said = f"{type(error).__name__}: {error}"
            return self._crew.first_words(said)

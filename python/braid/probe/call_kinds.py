"""The cases of the kinds that make collective calls: latency, overlap, replay.

Every rank runs the same code; whatever depends on a clock is rank 0's, and Effort.stop is
collective. A sample's time is the slowest rank's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns

from braid.bench.crew import Crew
from braid.bench.wire import may_be_nvls, wire_gbps
from braid.cases.operations import busbw_factor
from braid.probe.effort import Effort, calls_for
from braid.probe.job import Job, Tick, finished, with_ranks
from braid.probe.player import Call, Player
from braid.probe.worker import Worker
from braid.record.probe import Series
from braid.record.ranks import named, of_samples
from braid.sizes import format_size


@dataclass
class Team:
    """The ranks, and what their clocks say."""

    crew: Crew
    options: dict[str, str] = field(default_factory=dict)
    """Of the environment: what NCCL may do."""

    def timed_us(self, do: Callable[[], None]) -> float:
        """This rank's time, begun together."""
        self.crew.barrier()
        start = perf_counter_ns()
        do()
        return (perf_counter_ns() - start) / 1e3

    def series(
        self, group: str, case: str, moved: int, do: Callable[[], None], wrong: int, calls: int = 1
    ) -> Job:
        """A job that times `do`, which makes `calls` calls of `moved` bytes together."""

        def run(effort: Effort, tick: Tick) -> list[Series]:
            times = self._sampled(effort, tick, do, calls)
            rows = self.crew.rows(times) if times else []
            slowest = [max(sample) for sample in zip(*rows, strict=True)]
            found = finished(group, case, moved, slowest, wrong, moved)
            return [with_ranks(one, named(of_samples(rows))) for one in found]

        return Job(f"{case}: {group}", moved, run)

    def _sampled(
        self, effort: Effort, tick: Tick, do: Callable[[], None], calls: int
    ) -> list[float]:
        """This rank's samples; rank 0 says how many. The first one warms up."""
        crew = self.crew
        once_us = crew.slowest([self.timed_us(do)])[0]
        repeats = crew.agree(calls_for(once_us) if calls == 1 else 1)[0]

        def burst() -> None:
            for _ in range(repeats):
                do()

        share_us = effort.share_s() * 1e6
        wanted = min(max(int(share_us / max(once_us * repeats, 1.0)), 3), effort.samples)
        times: list[float] = []
        for i in range(crew.agree(wanted)[0]):
            if effort.stop():
                break
            times.append(self.timed_us(burst) / repeats)
            tick(i + 1)
        return times

    def with_wire(self, one: Series, call: Call, who: str) -> Series:
        """Its bus bandwidth on the wire, at the least."""
        ranks = self.crew.size
        busbw = (one.gbps or 0.0) * busbw_factor(call.op, ranks)
        nvls = may_be_nvls(call.op, ranks, who, self.options)
        return replace(one, wire_gbps=round(wire_gbps(call.op, ranks, busbw, nvls=nvls), 4))


def latency(team: Team, players: Sequence[Player], total: Call, messages: int) -> list[Job]:
    """The same bytes in one call and in many."""
    part = replace(total, total_bytes=max(total.total_bytes // messages, 1))
    found = []
    for player in players:
        wrong = player.prepare([total, part])
        for call, count in ((total, 1), (part, messages)):
            job = team.series(
                f"{count} x {format_size(call.total_bytes)}", player.name, call.total_bytes * count,
                _several(player, [call] * count), wrong[call], count,
            )  # fmt: skip
            found.append(_wired(job, team, call, player.name))
    return found


def gain(series: Sequence[Series]) -> dict[str, float]:
    """How many times as fast one call is as many."""
    rates: dict[str, list[float]] = {}
    for one in series:
        rates.setdefault(one.case, []).append(one.gbps or 0.0)
    return {
        f"{who}: one call by many": round(both[0] / both[1], 4)
        for who, both in rates.items()
        if len(both) == 2 and both[1]
    }


def replay(team: Team, players: Sequence[Player], calls: Sequence[Call]) -> list[Job]:
    """The whole trace, and each of its calls on its own."""
    found = []
    moved = sum(call.total_bytes for call in calls)
    for player in players:
        wrong = player.prepare(calls)
        whole = _several(player, calls)
        words = f"whole trace, {len(calls)} calls"
        found.append(team.series(words, player.name, moved, whole, sum(wrong.values()), len(calls)))
        for call in dict.fromkeys(calls):
            job = team.series(
                f"{call}, {calls.count(call)} in the trace", player.name, call.total_bytes,
                _several(player, [call]), wrong[call],
            )  # fmt: skip
            found.append(_wired(job, team, call, player.name))
    return found


def to_first(series: Sequence[Series]) -> dict[str, float]:
    """Each other player's time by the first one's, of the same group: above 1 the first is
    faster.
    """
    found: dict[str, float] = {}
    first: dict[str, Series] = {}
    for one in series:
        ours = first.setdefault(one.group, one)
        if ours is not one and ours.times and one.times:
            ratio = one.times.p50_us / max(ours.times.p50_us, 1e-9)
            found[f"{one.group}: {one.case} by {ours.case}"] = round(ratio, 4)
    return found


def overlap(team: Team, players: Sequence[Player], call: Call, worker: Worker) -> list[Job]:
    """Calls alone, work alone, and both at once. The work is made to last as long as the call."""
    found = []
    for player in players:
        wrong = player.prepare([call])[call]
        alone = _several(player, [call])
        alone()
        took_us = team.crew.slowest([team.timed_us(alone)])[0]
        rounds = team.crew.agree(worker.rounds_for(took_us))[0]

        def both(player: Player = player, rounds: int = rounds) -> None:
            worker.beside(lambda: player.run(call), rounds)
            player.wait()

        def work(rounds: int = rounds) -> None:
            worker.work(rounds)

        found += [
            team.series("call alone", player.name, call.total_bytes, alone, wrong),
            team.series("work alone", player.name, 0, work, 0),
            team.series("both", player.name, call.total_bytes, both, 0),
        ]
    return found


def hidden(series: Sequence[Series]) -> dict[str, float]:
    """How much of the call the work hides (1: all of it; below 0: they slow each other down), and
    what of it shows, in us.
    """
    times = {(s.case, s.group): s.times.p50_us for s in series if s.times}
    found = {}
    for (who, group), both in times.items():
        call, work = times.get((who, "call alone")), times.get((who, "work alone"))
        if group == "both" and call and work:
            part = (call + work - both) / min(call, work)
            found[f"{who}: part hidden"] = round(part, 4)
            found[f"{who}: effective communication time, us"] = round(both - work, 3)
    return found


def _several(player: Player, calls: Sequence[Call]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            player.run(call)
        player.wait()

    return run


def _wired(job: Job, team: Team, call: Call, who: str) -> Job:
    def run(effort: Effort, tick: Tick) -> list[Series]:
        return [team.with_wire(one, call, who) for one in job.run(effort, tick)]

    return replace(job, run=run)

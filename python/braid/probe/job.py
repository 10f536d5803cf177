"""Cases of a run, one after the other, with progress, an end when asked to stop, and a record that
grows with every case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from braid.probe.effort import Effort, calls_for
from braid.probe.lane import Busy, Lane, together_us
from braid.record.parts import RankTimes
from braid.record.probe import Series, gbps_of, times_of
from braid.record.ranks import of_samples
from braid.sizes import format_size
from braid.terminal.reporter import Reporter

ALONE, BESIDE = "alone, in turn with ", "beside "
Tick = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """One case: `run` measures it, and gives None when it was stopped before its first sample."""

    op: str
    """Its group and name, for people."""
    bytes: int
    run: Callable[[Effort, Tick], list[Series]]

    @property
    def name(self) -> str:
        """With its size."""
        return f"{self.op} {format_size(self.bytes)}"


@dataclass
class Runner:
    """Does jobs."""

    effort: Effort
    reporter: Reporter
    series: list[Series] = field(default_factory=list)
    stopped: str = ""

    def run(self, jobs: Sequence[Job], save: Callable[[], None]) -> None:
        """All of them; `save` after each."""
        self.reporter.start(len(jobs))
        self.effort.cases = len(jobs)
        for i, job in enumerate(jobs):
            self.reporter.say(job.name, "checking")
            self.reporter.expect(self.effort.samples)
            self.series += job.run(self.effort, partial(self._tick, job))
            self.effort.case_done()
            self.reporter.case_done()
            save()
            if self.effort.stop():
                self.stopped = f"interrupted in case {i + 1} of {len(jobs)}"
                return

    def _tick(self, job: Job, sample: int) -> None:
        self.reporter.step(job.name, f"sample {sample} of {self.effort.samples}")


def lanes_together(
    group: str, case: str, lanes: Sequence[Lane], nbytes: int, slots: int = 1
) -> Job:
    """All lanes at once, every byte checked before."""

    def run(effort: Effort, tick: Tick) -> list[Series]:
        for lane in lanes:
            lane.resize(nbytes, slots)
        wrong = sum(lane.wrong_bytes() for lane in lanes)
        copies = calls_for(max(together_us(lanes, 2)))
        rows = []

        def sample() -> float:
            rows.append(together_us(lanes, copies))
            return max(rows[-1])

        sample()  # warms up
        rows.clear()
        samples = effort.repeat(sample, tick)
        found = finished(group, case, nbytes, samples, wrong, nbytes * len(lanes), lanes)
        if len(lanes) < 2:
            return found
        every = of_samples(list(zip(*rows, strict=True)))
        by_lane = {lane.name: times for lane, times in zip(lanes, every, strict=False)}
        return [with_ranks(one, by_lane) for one in found]

    return Job(f"{group} {case}", nbytes, run)


def lane_beside(words: str, lane: Lane, others: Sequence[Lane], nbytes: int) -> Job:
    """One lane alone, and while the others are busy, sample by sample in turn."""

    def run(effort: Effort, tick: Tick) -> list[Series]:
        for each in (lane, *others):
            each.resize(nbytes)
        wrong = lane.wrong_bytes()
        busy = Busy(others)
        copies = calls_for(lane.start(2).took_us())
        alone = []

        def sample() -> float:
            alone.append(lane.start(copies).took_us())
            return busy.sample_us(lane, copies)

        try:
            sample()
            alone.clear()
            beside = effort.repeat(sample, tick)
        except RuntimeError as error:
            why = str(error)
            return [
                Series(
                    BESIDE + words, lane.name, nbytes, None, None, verdict="unsupported", note=why
                )
            ]
        return [
            *finished(ALONE + words, lane.name, nbytes, alone, wrong, nbytes, [lane]),
            *finished(BESIDE + words, lane.name, nbytes, beside, wrong, nbytes, [lane]),
        ]

    return Job(f"{lane.name} beside {words}", nbytes, run)


def with_ranks(one: Series, by_rank: dict[str, RankTimes]) -> Series:
    """The same case, with what each rank's or lane's times were."""
    medians = {name: times.p50_us for name, times in by_rank.items()}
    return replace(one, by_rank_us=medians, by_rank=by_rank)


def finished(
    group: str,
    case: str,
    nbytes: int,
    samples_us: Sequence[float],
    wrong: int,
    moved: int,
    lanes: Sequence[Lane] = (),
) -> list[Series]:
    """A case's series; nothing when it was stopped before its first sample. `moved` are the bytes
    of all lanes together.
    """
    if not samples_us:
        return []
    times = times_of(samples_us)
    one = lanes[0] if len(lanes) == 1 else None
    return [
        Series(
            group=group,
            case=case,
            bytes=nbytes,
            times=times,
            gbps=gbps_of(moved, times.p50_us) if moved else None,
            verdict="wrong data" if wrong else "ok",
            wrong_bytes=wrong,
            note=next((lane.note for lane in lanes if lane.note), ""),
            start=one.start_name if one else "",
            end=one.end_name if one else "",
        )
    ]

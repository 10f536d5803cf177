"""A step of a job, and the same bytes as plain writes, in turn."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from braid.bench.engine.player import Player
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of
from braid.sizes import format_size

_START_S = 60.0
_CALL_S = 150.0
PLAIN, UPDATE, UNCHECKED = "plain writes", "update", "update, no checksums"


@dataclass(frozen=True)
class Shape:
    """Of the job."""

    trainers: int
    workers: int
    tensors: int


class Ranks:
    """All processes of a job."""

    def __init__(self, shape: Shape, way: str, nbytes: int, *, checks: bool) -> None:
        command = [sys.executable, "-m", "braid.bench.weights.peer"]
        sides = [("trainer", n, shape.trainers) for n in range(shape.trainers)]
        sides += [("worker", n, shape.workers) for n in range(shape.workers)]
        self._players = [Player(f"{side} {n}", command) for side, n, _ in sides]
        self._trainers = self._players[: shape.trainers]
        self._workers = self._players[shape.trainers :]
        nics = [] if way == "local" else [[way, "127.0.0.1"]]
        token = secrets.token_hex(16)
        for player, (side, rank, count) in zip(self._players, sides, strict=True):
            player.tell(
                "open", side=side, rank=rank, count=count, nbytes=nbytes, tensors=shape.tensors,
                nics=nics, token=token, checks=checks,
            )  # fmt: skip
        answers = [player.answer(_START_S) for player in self._players]
        told = [answer["holdings"] for answer in answers]
        self._plain = [answer["plain"] for answer in answers[shape.trainers :]]
        for player in self._players:
            player.ask("join", _START_S, told=told)
        self._version = 0

    def close(self) -> None:
        for player in self._players:
            player.close()

    def check(self) -> int:
        """Sends a version once; how many bytes are wrong on all workers."""
        self._version += 1
        for player in self._trainers:
            player.ask("fill", _CALL_S, number=self._version)
        self._at_once("update", version=self._version)
        found = [player.ask("check", _CALL_S, number=self._version) for player in self._workers]
        return sum(int(answer["wrong_bytes"]) for answer in found)

    def update_us(self) -> float:
        self._version += 1
        return self._at_once("update", version=self._version)

    def plain_us(self) -> float:
        return self._at_once("plain", plain=self._plain)

    def _at_once(self, order: str, **words: object) -> float:
        """By all trainers: us from the first one's begin to the last one's end."""
        for rank, player in enumerate(self._trainers):
            player.tell(order, rank=rank, **words)
        found = [player.answer(_CALL_S) for player in self._trainers]
        begin = min(int(answer["began_ns"]) for answer in found)
        return (max(int(answer["ended_ns"]) for answer in found) - begin) / 1e3


def job(shape: Shape, way: str, nbytes: int) -> Job:
    """Every byte of a version is compared before anything is timed."""
    words = f"{shape.trainers} to {shape.workers}"
    group = f"{format_size(nbytes)}, {shape.tensors} tensors, {words}, {way}"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        jobs = {checks: Ranks(shape, way, nbytes, checks=checks) for checks in (True, False)}
        try:
            wrong = {checks: ranks.check() for checks, ranks in jobs.items()}
            times: dict[str, list[float]] = {PLAIN: [], UPDATE: [], UNCHECKED: []}

            def sample() -> float:
                times[PLAIN].append(jobs[True].plain_us())
                times[UPDATE].append(jobs[True].update_us())
                times[UNCHECKED].append(jobs[False].update_us())
                return 0.0

            jobs[True].plain_us()
            effort.repeat(sample, tick)
        finally:
            for ranks in jobs.values():
                ranks.close()
        bad = {PLAIN: 0, UPDATE: wrong[True], UNCHECKED: wrong[False]}
        return [_series(group, name, nbytes, found, bad[name]) for name, found in times.items()]

    return Job(f"weights {way} {words}", nbytes, run)


def _series(group: str, name: str, nbytes: int, samples: list[float], wrong: int) -> Series:
    times = times_of(samples)
    return Series(
        group=group, case=name, bytes=nbytes, times=times, gbps=gbps_of(nbytes, times.p50_us),
        verdict="wrong data" if wrong else "ok", wrong_bytes=wrong,
    )  # fmt: skip


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """The time of plain writes by an update's: the share of their rate that an update has."""
    p50 = {(one.group, one.case): one.times.p50_us for one in series if one.times}
    return {
        f"{group}, {name}": round(p50[group, PLAIN] / us, 4)
        for (group, name), us in p50.items()
        if name != PLAIN and (group, PLAIN) in p50
    }

"""A step of a job, and the same bytes as plain writes, in turn; on one host, or from one host to
another one over three rails of given rates; or between GPUs, and there beside the driver's copies.
"""

import contextlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.bench.engine.hosts import RATES_MBIT
from braid.bench.engine.network import SOURCE, TARGET, TwoHosts
from braid.bench.engine.player import Player
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of
from braid.sizes import format_size

_START_S = 60.0
_CALL_S = 150.0
PLAIN, UPDATE, UNCHECKED = "plain writes", "update", "update, no checksums"
COPIES = "plain copies"
"""Of the driver's, between GPUs."""
RAILS = "rails"
"""The way between two hosts."""


@dataclass(frozen=True)
class Shape:
    """Of the job."""

    trainers: int
    workers: int
    tensors: int
    part: int | None = None
    """Bytes with a checksum of their own; None: as users have it."""
    gpus: int = 0
    """Ranks have one each, trainers first, in turn where there are fewer; 0: the host's memory."""

    def place(self, side: str, rank: int) -> str | None:
        """The GPU of a rank, as torch names it; None: it has none."""
        number = rank if side == "trainer" else self.trainers + rank
        return f"cuda:{number % self.gpus}" if self.gpus else None


class Ranks:
    """All processes of a job."""

    def __init__(self, shape: Shape, way: str, nbytes: int, *, checks: bool) -> None:
        self._hosts = TwoHosts(RATES_MBIT) if way == RAILS else None
        if self._hosts is not None:
            self._hosts.__enter__()
        sides = [("trainer", n, shape.trainers) for n in range(shape.trainers)]
        sides += [("worker", n, shape.workers) for n in range(shape.workers)]
        self._players = [self._player(side, n, shape.place(side, n)) for side, n, _ in sides]
        self._trainers = self._players[: shape.trainers]
        self._workers = self._players[shape.trainers :]
        token = secrets.token_hex(16)
        sender = {} if shape.part is None else {"part": shape.part}
        for player, (side, rank, count) in zip(self._players, sides, strict=True):
            player.tell(
                "open", side=side, rank=rank, count=count, nbytes=nbytes, tensors=shape.tensors,
                token=token, checks=checks, sender=sender, **self._places(way, side),
            )  # fmt: skip
        answers = [player.answer(_START_S) for player in self._players]
        told = [answer["holdings"] for answer in answers]
        self._plain = [answer["plain"] for answer in answers[shape.trainers :]]
        for player, (side, rank, _) in zip(self._players, sides, strict=True):
            player.ask("join", _START_S, told=told, side=side, rank=rank)
        self._version = 0

    def _player(self, side: str, rank: int, place: str | None) -> Player:
        command = [sys.executable, "-m", "braid.bench.weights.peer"]
        if place is not None:
            command = [sys.executable, "-m", "braid.bench.weights.gpu_peer", place]
        if self._hosts is None:
            return Player(f"{side} {rank}", command)
        host = SOURCE if side == "trainer" else TARGET
        return Player(f"{side} {rank}", command, self._hosts.prefix(host), {"BRAID_HOST_ID": side})

    def _places(self, way: str, side: str) -> dict[str, object]:
        """Where a rank's port is, and its NICs."""
        if self._hosts is not None:
            places = self._hosts.addresses(SOURCE if side == "trainer" else TARGET)
            return {"hosts": places, "nics": [["tcp", each] for each in places]}
        return {"hosts": ["127.0.0.1"], "nics": [] if way == "local" else [[way, "127.0.0.1"]]}

    def close(self) -> None:
        with contextlib.ExitStack() as last:
            if self._hosts is not None:
                last.callback(self._hosts.close)
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
    rates = "/".join(f"{rate:g}" for rate in RATES_MBIT)
    where = f"rails of {rates} Mbit/s" if way == RAILS else way
    group = f"{format_size(nbytes)}, {shape.tensors} tensors, {words}, {where}"

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
        return _all_series(group, nbytes, times, bad)

    return Job(f"weights {way} {words}", nbytes, run)


def gpu_job(shape: Shape, nbytes: int) -> Job:
    """Between GPUs. Nothing sums a GPU's memory, so an update is one without checksums."""
    words = f"{shape.trainers} to {shape.workers}"
    few = "" if shape.gpus >= shape.trainers + shape.workers else f" on {shape.gpus}"
    group = f"{format_size(nbytes)}, {shape.tensors} tensors, {words}, GPUs{few}"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        from braid.bench.weights.copies import Copies

        ranks = Ranks(shape, "local", nbytes, checks=False)
        try:
            wrong = ranks.check()
            copies = Copies(shape, nbytes)
            times: dict[str, list[float]] = {COPIES: [], PLAIN: [], UNCHECKED: []}

            def sample() -> float:
                times[COPIES].append(copies.us())
                times[PLAIN].append(ranks.plain_us())
                times[UNCHECKED].append(ranks.update_us())
                return 0.0

            copies.us()
            ranks.plain_us()
            effort.repeat(sample, tick)
        finally:
            ranks.close()
        bad = {COPIES: 0, PLAIN: 0, UNCHECKED: wrong}
        return _all_series(group, nbytes, times, bad)

    return Job(f"weights GPUs {words}", nbytes, run)


def gpu_ratios_of(shape: Shape, series: Sequence[Series]) -> dict[str, float]:
    """The time of the driver's copies by an update's and by plain writes': the share of the links'
    rate that they have; and the GB/s that come into each worker's GPU.
    """
    p50 = {(one.group, one.case): one.times.p50_us for one in series if one.times}
    rates = {
        f"{one.group}, {one.case}, GB/s into each worker": round(one.gbps / shape.workers, 2)
        for one in series
        if one.gbps
    }
    return rates | {
        f"{group}, {name} against {COPIES}": round(p50[group, COPIES] / us, 4)
        for (group, name), us in p50.items()
        if name != COPIES and (group, COPIES) in p50
    }


def _all_series(
    group: str, nbytes: int, times: Mapping[str, list[float]], wrong: Mapping[str, int]
) -> list[Series]:
    """None of whom was not timed: the run was stopped before."""
    return [
        _series(group, name, nbytes, found, wrong[name]) for name, found in times.items() if found
    ]


def _series(group: str, name: str, nbytes: int, samples: list[float], wrong: int) -> Series:
    times = times_of(samples)
    return Series(
        group=group, case=name, bytes=nbytes, times=times, gbps=gbps_of(nbytes, times.p50_us),
        verdict="wrong data" if wrong else "ok", wrong_bytes=wrong,
    )  # fmt: skip


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """The time of plain writes by an update's: the share of their rate that an update has; and of
    rails the share of the sum of their rates.
    """
    p50 = {(one.group, one.case): one.times.p50_us for one in series if one.times}
    sums = {
        f"{one.group}, {one.case}, part of the rails' sum": round(
            one.gbps / (sum(RATES_MBIT) / 8e3), 4
        )
        for one in series
        if one.gbps and "rails of" in one.group
    }
    return sums | {
        f"{group}, {name}": round(p50[group, PLAIN] / us, 4)
        for (group, name), us in p50.items()
        if name != PLAIN and (group, PLAIN) in p50
    }

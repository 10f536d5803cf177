"""Ranks that are killed at a random moment of a call: what the others see, and when they end.

One trial: 2 to 4 ranks in calls of a random operation and 4 KiB to 8 MiB; within the first 100 ms
one of them, at times two, get SIGKILL. Nobody may be there a second after the deadline, who ends
must have been told by a named error, and nothing may stay in /dev/shm.

  scripts/kill_ranks --trials 500 --links shm       prints how it went; exit code 1: a trial failed
  scripts/kill_ranks --json records/kills.json      also keeps every trial, by lane
"""

import argparse
import json
import multiprocessing as mp
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import braid
from braid.bench import facts
from braid.launch import free_port

DEADLINE_S, SPARE_S = 4.0, 1.0
_CALLS_BEGIN_S = 60.0
_fork = mp.get_context("fork")

LANES = {
    "shm": {"BRAID_LINKS": "shm"},
    "staged": {"BRAID_LINKS": "staged"},
    "rdma:tcp": {"BRAID_LINKS": "rdma", "BRAID_RDMA_PROVIDER": "tcp"},
    "all": {"BRAID_LINKS": "shm,staged,rdma"},
}


def _calls(comm: braid.Comm, draw: random.Random) -> Any:
    """One call, to be made again and again; alike on all ranks."""
    count = draw.choice([1 << 10, 1 << 12, 1 << 16, 1 << 18, 1 << 21])
    mine = np.arange(count, dtype=np.float32)
    kind = draw.choice(["all_reduce", "all_gather", "broadcast", "all_to_all"])
    if kind == "all_reduce":
        return lambda: comm.all_reduce(mine)
    if kind == "all_gather":
        return lambda: comm.all_gather(mine[: count // comm.size])
    if kind == "broadcast":
        return lambda: comm.broadcast(mine, root=0)
    return lambda: comm.all_to_all(mine[: count // comm.size * comm.size])


def _rank(rank: int, environment: dict[str, str], seed: int, pipe: Any) -> None:
    os.environ |= {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        with braid.init(progress=False) as comm:
            call = _calls(comm, random.Random(seed))
            call()
            pipe.send("ready")
            while True:
                call()
    except braid.Error as error:
        pipe.send((type(error).__name__, str(error)))


@dataclass
class Trial:
    """One job that lost ranks."""

    seed: int
    ranks: int
    killed: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # what each survivor was told
    slowest_s: float = 0.0  # from the kill until the last survivor was gone
    wrong: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """Of many trials."""

    lane: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def ends(self) -> Counter[str]:
        """How many survivors were told what."""
        return Counter(name for trial in self.trials for name in trial.ends)

    @property
    def slowest_s(self) -> float:
        """Of all survivors."""
        return max((trial.slowest_s for trial in self.trials), default=0.0)

    @property
    def failures(self) -> list[str]:
        """A line each."""
        return [
            f"{self.lane}, seed {trial.seed}, {trial.ranks} ranks: {text}"
            for trial in self.trials
            for text in trial.wrong
        ]

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {name}" for name, count in sorted(self.ends.items()))
        return (
            f"{len(self.trials)} trials, {len(self.failures)} failed; survivors: {ends};"
            f" the slowest was gone after {self.slowest_s:.2f} s"
        )

    def as_run(self, seconds: float) -> dict[str, Any]:
        """Of a record."""
        return {
            "links": self.lane,
            "seconds": round(seconds, 1),
            "failed": len(self.failures),
            "survivors": dict(sorted(self.ends.items())),
            "slowest_s": round(self.slowest_s, 3),
            "trials": [
                {**vars(trial), "slowest_s": round(trial.slowest_s, 3)} for trial in self.trials
            ],
        }


def lose_ranks(lane: str, seed: int) -> Trial:
    """One job, from its start to its end."""
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    environment = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", **LANES[lane]}
    environment |= {"MASTER_PORT": str(free_port()), "BRAID_JOB_TOKEN": secrets.token_hex(16)}
    environment |= {"BRAID_TIMEOUT": f"{DEADLINE_S:g}s", "BRAID_TUNE": "off", "BRAID_LOG": "error"}
    before = set(os.listdir("/dev/shm"))
    started = []
    for rank in range(size):
        ours, theirs = _fork.Pipe(duplex=False)
        process = _fork.Process(target=_rank, args=(rank, environment, seed, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    done = Trial(seed, size)
    try:
        _kill_some(started, draw, done)
    finally:
        for process, _ in started:
            process.kill()
            process.join()
    pids = [str(process.pid) for process, _ in started]
    left = [
        name for name in set(os.listdir("/dev/shm")) - before if any(pid in name for pid in pids)
    ]
    done.wrong += [f"{name} stayed in /dev/shm" for name in left]
    return done


def _said(pipe: Any, patience_s: float) -> Any:
    """What a rank said; nothing where it has not, or ended without a word."""
    try:
        return pipe.recv() if pipe.poll(patience_s) else ("nothing", "")
    except EOFError:
        return ("nothing", "")


def _kill_some(started: list[Any], draw: random.Random, done: Trial) -> None:
    for rank, (process, pipe) in enumerate(started):
        if (said := _said(pipe, _CALLS_BEGIN_S)) != "ready":
            process.join(SPARE_S)
            done.wrong.append(
                f"rank {rank} did not begin, ended with {process.exitcode}, and said {said}"
            )
            return
    time.sleep(draw.uniform(0, 0.1))
    num_killed = 2 if len(started) > 2 and draw.random() < 0.2 else 1
    done.killed = draw.sample(range(len(started)), num_killed)
    for rank in done.killed:
        started[rank][0].kill()
    began = time.monotonic()
    for rank, (process, pipe) in enumerate(started):
        if rank in done.killed:
            continue
        process.join(max(0.01, began + DEADLINE_S + SPARE_S - time.monotonic()))
        done.slowest_s = max(done.slowest_s, time.monotonic() - began)
        said = _said(pipe, 0)
        done.ends.append(said[0])
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGABRT)
            done.wrong.append(f"rank {rank} is still there, and said {said}")
        elif process.exitcode != 0 or said[0] not in ("PeerLost", "Timeout"):
            done.wrong.append(f"rank {rank} ended with {process.exitcode} and said {said}")


def keep(path: Path, runs: list[dict[str, Any]]) -> None:
    """Writes the record of all lanes."""
    commit, dirty = facts.commit()
    record = {
        "schema": "braid.kills/1",
        "command": ["scripts/kill_ranks", *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "machine": f"{os.cpu_count()} cores",
        "deadline_s": DEADLINE_S,
        "spare_s": SPARE_S,
        "runs": runs,
    }
    path.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Kill ranks in calls, at random.")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--links", choices=sorted(LANES), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where every trial is kept")
    chosen = parser.parse_args()
    runs, failures = [], 0
    for lane in chosen.links or ["shm", "staged", "rdma:tcp"]:
        tally, began = Tally(lane), time.monotonic()
        for i in range(chosen.trials):
            tally.trials.append(lose_ranks(lane, chosen.seed + i))
        runs.append(tally.as_run(time.monotonic() - began))
        print(f"{lane}: {tally}; {time.monotonic() - began:.0f} s", flush=True)
        for line in tally.failures[:20]:
            print(f"  {line}", flush=True)
        failures += len(tally.failures)
    if chosen.json is not None:
        keep(chosen.json, runs)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())

"""Measures collectives over two hosts in two stages, and writes records/nodes_cpu.json.

    sudo .venv/bin/python tests/nodes/measure.py [--bytes N] [--rounds N] [--out FILE]

Two hosts (network namespaces) of 4 CPU ranks, one cable of 800 Mbit/s between them. In one run and
in turn: braid in two stages, braid straight from rank to rank ("flat"), and Gloo. What the cable
carried is counted by the kernel; what it should have is the plan's model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "two_hosts"))
from rails import Rails, why_not

from braid.plan.formulas import nodes

HERE = Path(__file__).parent
RATE_MBIT = 800.0
OPS = ("all_gather", "reduce_scatter", "all_reduce")
MODELS = {"staged": nodes.staged_cable_bytes, "flat": nodes.flat_cable_bytes}


class Job:
    """The ranks, told what to do."""

    def __init__(self, rails: Rails, per_host: int, *arguments: str, **options: str) -> None:
        self.per_host = per_host
        self.ranks = rails.start(HERE / "rank.py", *arguments, per_host=per_host, **options)

    def tell(self, line: str) -> list[dict[str, Any]]:
        stdin = self.ranks[0].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()
        return [self._answer(rank) for rank in self.ranks]

    @staticmethod
    def _answer(rank: subprocess.Popen[str]) -> dict[str, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with code {rank.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def quit(self) -> None:
        stdin = self.ranks[0].stdin
        assert stdin is not None
        stdin.write("quit\n")
        stdin.flush()
        for rank in self.ranks:
            if rank.wait(timeout=30) != 0:
                raise RuntimeError("a rank failed")

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def calls(job: Job, way: str, op: str, nbytes: int, count: int) -> dict[str, Any]:
    """Of each call the slowest rank's seconds, and the busier host's bytes on the cable."""
    answers = job.tell(f"calls {way} {op} {nbytes} {count}")
    rows = list(zip(*(answer["calls"] for answer in answers), strict=True))
    hosts = (0, job.per_host)
    return {
        "wrong": sum(answer["wrong"] for answer in answers),
        "seconds": [max(row["seconds"] for row in ranks) for ranks in rows],
        "cable_bytes": [max(ranks[host]["sent"] for host in hosts) for ranks in rows],
    }


def compare(job: Job, op: str, nbytes: int, rounds: int, ways: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {way: {"wrong": 0, "seconds": [], "cable_bytes": []} for way in ways}
    for way in ways:  # connections, buffers
        calls(job, way, op, nbytes, 1)
    for _ in range(rounds):
        for way in ways:
            one = calls(job, way, op, nbytes, 1)
            for key, value in one.items():
                found[way][key] += value
    return {"op": op, "bytes": nbytes, **found}


def judge(row: dict[str, Any], per_host: int, rate_mbit: float) -> dict[str, Any]:
    """Ratios of medians; what the cable should carry is the model's."""
    op, nbytes = row["op"], row["bytes"]
    model = nodes.staged_cable_bytes(op, 2, per_host, nbytes)
    least_s = model / nodes.bytes_per_second(rate_mbit)
    staged = statistics.median(row["staged"]["seconds"])
    verdict = {
        "op": op,
        "bytes": nbytes,
        "model_cable_bytes": model,
        "cable_of_model": statistics.median(row["staged"]["cable_bytes"]) / model,
        "time_of_bytes_by_rate": staged / least_s,
    }
    for way in ("flat", "gloo"):
        if way in row:
            verdict[f"{way}_by_staged"] = statistics.median(row[way]["seconds"]) / staged
    return verdict


def measure(nbytes: list[int], rounds: int, per_host: int, with_gloo: bool) -> dict[str, Any]:
    ways = ["staged", "flat", *(["gloo"] if with_gloo else [])]
    with Rails([RATE_MBIT]) as rails:
        job = Job(rails, per_host, *ways[2:], tune="off", timeout="60s")
        try:
            rows = [compare(job, op, size, rounds, ways) for op in OPS for size in nbytes]
            job.quit()
        except BaseException:
            job.kill()
            raise
    return {
        "rows": rows,
        "verdict": [judge(row, per_host, RATE_MBIT) for row in rows],
        "wrong": sum(row[way]["wrong"] for row in rows for way in ways),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", default=[8 << 20, 32 << 20])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("records/nodes_cpu.json"))
    args = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return 77
    from braid.bench import facts

    commit, dirty = facts.commit()
    record: dict[str, Any] = {
        "schema": "braid.nodes_cpu/1",
        "command": " ".join(sys.argv).replace(str(args.out), args.out.name),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "hosts": 2,
        "per_host": args.per_host,
        "dtype": "float32",
        "cable_mbit": RATE_MBIT,
        "load_average": os.getloadavg()[0],
    }
    record |= measure(args.bytes, args.rounds, args.per_host, with_gloo=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record["verdict"], indent=1))
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

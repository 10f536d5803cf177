#!/usr/bin/env python3
"""What a change of the control plane costs: set-up and the smallest calls of CPU ranks.

    scripts/control_cost.py --before OTHER/.venv/bin/python --out records/control_plane.json

Runs jobs of the braid that OTHER's Python has and of this checkout's in turn. In each, every rank
joins groups one after the other, all ranks starting at a barrier, and then makes calls of
all_reduce of 1 KiB; the record has every sample, the slowest rank's. `seal_bench`, when it is
built, adds what sealing one frame costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RANK = """
import json, sys, time
import numpy as np
import braid
joins, calls = int(sys.argv[1]), int(sys.argv[2])
with braid.init(progress=False, tune=False) as comm:
    port = int(__import__("os").environ["MASTER_PORT"]) + 8
    setups, times = [], []
    for index in range(joins):
        identity = braid.Identity(comm.rank, comm.size, local_rank=comm.rank,
                                  store_port=20000 + (port + 8 * index) % 12000, job_id=str(index))
        comm.barrier()
        began = time.perf_counter()
        other = braid.join(identity, job_token="for this measurement", progress=False, tune=False)
        setups.append(time.perf_counter() - began)
        other.close()
    mine = np.ones(256, "f4")
    for _ in range(calls):
        began = time.perf_counter()
        comm.all_reduce(mine)
        times.append(time.perf_counter() - began)
    slowest = [comm.all_reduce(np.array(series), "max") for series in (setups, times)]
    if comm.rank == 0:
        print("samples", json.dumps([series.tolist() for series in slowest]))
"""


def samples_of(python: str, ranks: int, joins: int, calls: int) -> dict[str, list[float]]:
    """One job: milliseconds of joins, microseconds of calls."""
    command = [python, "-m", "braid.cli", "run", "-n", str(ranks), "--", python, "-c", RANK]
    done = subprocess.run(
        [*command, str(joins), str(calls)], capture_output=True, text=True, check=True, cwd="/"
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("samples "))
    join_s, call_s = json.loads(line.removeprefix("samples "))
    return {
        "join_ms": [round(1e3 * value, 4) for value in join_s],
        "call_us": [round(1e6 * value, 2) for value in call_s],
    }


def summary(runs: list[dict[str, list[float]]]) -> dict[str, float]:
    """Least and middle of all samples; of calls, the middle of the runs' middles too."""
    joins = [value for run in runs for value in run["join_ms"]]
    calls = [value for run in runs for value in run["call_us"]]
    return {
        "join_ms_least": min(joins),
        "join_ms_median": round(statistics.median(joins), 4),
        "call_us_least": min(calls),
        "call_us_p10": round(statistics.quantiles(calls, n=10)[0], 2),
        "call_us_median": round(statistics.median(calls), 2),
    }


def frames() -> list[dict[str, float]] | None:
    bench = ROOT / "build/release/tests/seal_bench"
    if not bench.exists():
        return None
    measured: list[dict[str, float]] = json.loads(
        subprocess.run([bench], capture_output=True, check=True).stdout
    )
    return measured


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--before", required=True, help="a Python that has the braid to compare with"
    )
    parser.add_argument("--before-commit", default="", help="what that braid was built from")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--joins", type=int, default=12)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    pythons = {"before": given.before, "after": sys.executable}
    runs: dict[str, list[dict[str, list[float]]]] = {name: [] for name in pythons}
    for index in range(given.runs):
        order = list(pythons) if index % 2 == 0 else list(reversed(pythons))
        for name in order:
            runs[name].append(samples_of(pythons[name], given.ranks, given.joins, given.calls))
    record = {
        "schema": "braid.control/1",
        "command": f"scripts/control_cost.py --runs {given.runs} --ranks {given.ranks}"
        f" --joins {given.joins} --calls {given.calls}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
        "before_commit": given.before_commit,
        "ranks": given.ranks,
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "summary": {name: summary(each) for name, each in runs.items()},
        "frames": frames(),
        "runs": runs,
    }
    print(json.dumps({key: record[key] for key in ("load", "summary", "frames")}, indent=1))
    if given.out:
        given.out.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Two checkouts beside each other on GPUs: what an eager call costs the host, what it takes on the
GPU, and what packet and line kernels take on streams of one GPU.

    scripts/gpu_beside.py --before OTHER --out records/beside_2.json [--ranks 2] [--runs 5]
    scripts/gpu_beside.py --before OTHER --out records/beside_kernels.json --ranks 0
                                                     the kernels alone, which one GPU is enough for

Both were built by `scripts/gpu_test build`. Jobs of either run in turn, each beginning with the
other one; in a job all ranks make the same calls, and a sample is the slowest rank's. Without
tuning, so that both have the plans of their tables. `packets_check` (scripts/device_checks) gives
the kernels' times where both trees have built it. Every sample is kept.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.02  # of the other's time

RANK = """
import json, sys, time
import torch, braid
torch.cuda.set_device(int(__import__("os").environ["LOCAL_RANK"]) % torch.cuda.device_count())
found = {}
with braid.init(progress=False, tune=False) as comm:
    for nbytes in (4 << 10, 64 << 10, 1 << 20, 16 << 20):
        whole = torch.zeros(nbytes // 4, device="cuda")
        block = torch.zeros(nbytes // 4 // comm.size, device="cuda")
        calls = {
            "all_reduce": lambda: comm.all_reduce(whole),
            "all_gather": lambda: comm.all_gather(block, out=whole),
            "reduce_scatter": lambda: comm.reduce_scatter(whole, out=block),
            "broadcast": lambda: comm.broadcast(whole, root=0),
        }
        for op, call in calls.items():
            for _ in range(10):
                call()
            host_us, gpu_us = [], []
            for _ in range(12):
                torch.cuda.synchronize()
                comm.barrier()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                call()
                begin.record()
                began = time.perf_counter()
                for _ in range(16):
                    call()
                host_us.append((time.perf_counter() - began) / 16e-6)
                end.record()
                torch.cuda.synchronize()
                gpu_us.append(begin.elapsed_time(end) * 1e3 / 16)
            every = comm.all_gather_object([host_us, gpu_us])
            slowest = [[max(each) for each in zip(*one)] for one in zip(*every)]
            for what, samples in zip(("host", "call"), slowest):
                found[f"{what} {op} {nbytes}"] = [round(us, 2) for us in samples]
    if comm.rank == 0:
        print("samples", json.dumps(found))
"""


def samples_of(tree: Path, ranks: int) -> dict[str, list[float]]:
    """Microseconds of one job of the braid that was built in `tree`."""
    command = [sys.executable, "-m", "braid.cli", "run", "-n", str(ranks), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", RANK],
        env={**os.environ, "PYTHONPATH": str(tree / "python")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("samples "))
    found: dict[str, list[float]] = json.loads(line.removeprefix("samples "))
    return found


def kernels_of(tree: Path) -> dict[str, list[float]]:
    """Microseconds as packets_check prints them; empty where it was not built."""
    program, kernels = tree / "build/device_checks/packets_check", tree / "build/gpu/kernels/coll"
    if not program.exists():
        return {}
    names = ("copies", "packets_reduce_floats", "packets_reduce_whole")
    files = [kernels / "packets" / f"{name}.fatbin" for name in names]
    done = subprocess.run(
        [program, *files], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.findall(r"^(.*): ([0-9.]+) us$", done.stdout, re.MULTILINE)
    return {f"kernel {name}": [float(us)] for name, us in found}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure: medians of the runs' medians, and their ratio."""
    medians: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "after": []})
    for run in runs:
        for what, samples in run["us"].items():
            medians[what][run["tree"]].append(statistics.median(samples))
    rows = []
    for what, sides in sorted(medians.items()):
        if not sides["before"] or not sides["after"]:
            continue  # one tree alone has it
        before, after = (statistics.median(sides[side]) for side in ("before", "after"))
        rows.append(
            {"what": what, "before_us": round(before, 2), "after_us": round(after, 2)}
            | {"ratio": round(after / before, 4)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--before-commit", default="", help="where it has no git")
    parser.add_argument("--commit", default="", help="likewise of this one")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2, help="0: kernels alone")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    from braid.bench import facts

    commit, dirty = facts.commit(
        given.commit
    )  # before minutes of measuring, which a refusal would lose
    trees = {"before": given.before.resolve(), "after": ROOT}
    runs = []
    for index in range(given.runs):
        for side in list(trees) if index % 2 == 0 else list(reversed(trees)):
            tree = trees[side]
            calls = samples_of(tree, given.ranks) if given.ranks else {}
            runs.append({"tree": side, "us": calls | kernels_of(tree)})
    rows = summary(runs)
    record = {
        "schema": "braid.gpu_beside/1",
        "command": f"scripts/gpu_beside.py --runs {given.runs} --ranks {given.ranks}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "before_commit": given.before_commit,
        "ranks": given.ranks,
        "rows": rows,
        "runs": runs,
    }
    given.out.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    for row in rows:
        mark = "  SLOWER" if row["ratio"] > LIMIT else ""
        times = f"{row['before_us']:9.2f} {row['after_us']:9.2f} {row['ratio']:7.3f}"
        print(f"{row['what']:<60} {times}{mark}")


if __name__ == "__main__":
    main()

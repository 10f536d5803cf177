"""How long stage 1 takes, and how long when its result is in the cache: records/tuning.json.

.venv/bin/python scripts/measure_tuning.py [--ranks 4] [--out records/tuning.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

LINKS = "shm,staged,rdma"
PACE = "shm=200MB/s,staged=100MB/s,rdma=50MB/s"


def rank_main(cache: str) -> None:
    """One rank: joins twice, tuning the first time; rank 0 prints both times in seconds."""
    import braid

    seconds = []
    for tune in ("force", "auto"):
        start = time.perf_counter()
        with braid.init(tune=tune, cache_dir=cache, links=LINKS, pace=PACE) as comm:
            comm.barrier()
            seconds.append(time.perf_counter() - start)
            if comm.rank == 0 and tune == "auto":
                print(json.dumps({"seconds": seconds, "log": comm.balance_log()}))


def main() -> int:
    """Runs the ranks three times and writes the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("records/tuning.json"))
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(args.cache)
        return 0
    from braid.bench import facts

    runs = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            launch = [sys.executable, "-m", "braid.cli", "run", "-n", str(args.ranks), "--"]
            command = [*launch, __file__, "--cache", cache]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout))
    commit, dirty = facts.commit()
    record = {
        "schema": "braid.tuning/1",
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "ranks": args.ranks,
        "options": {"links": LINKS, "pace": PACE},
        "tuned_s": [run["seconds"][0] for run in runs],
        "cached_s": [run["seconds"][1] for run in runs],
        "log": runs[-1]["log"],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    tuned, cached = statistics.median(record["tuned_s"]), statistics.median(record["cached_s"])
    print(f"{args.ranks} ranks: tuned in {tuned:.2f} s, from the cache in {cached:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

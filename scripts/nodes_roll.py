"""What the roll over nodes takes: 128 ranks sign and meet twice, 10 ms away, among strangers.

    .venv/bin/python scripts/nodes_roll.py [--times 9] [--out FILE]

Runs build/release's test_nccl (NodesRoll.SixteenNodesOfEightTenMillisecondsAway), as make test does
once, and writes records/nodes_roll.json. Takes some seconds.
"""

import argparse
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from said import said

PROGRAM = Path("build/release/tests/bindings/nccl/test_nccl")
MOST_SIGN_MS = 1000.0  # beside NCCL's init


def run(program: Path) -> dict[str, Any]:
    """What one run of the test says; empty when it failed."""
    passed, line = said(program, "NodesRoll.SixteenNodesOfEightTen*", "roll")
    return line if passed else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--out", type=Path, default=Path("records/nodes_roll.json"))
    args = parser.parse_args()
    from braid.bench import facts

    commit, dirty = facts.commit()
    runs = [run(args.program) for _ in range(args.times)]
    record = {
        "schema": "braid.nodes_roll/1",
        "command": f"scripts/nodes_roll.py --times {args.times}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "runs": runs,
        "failed": sum(not one for one in runs),
    }
    passed = record["failed"] == 0
    if passed:
        for what in ("sign_ms", "two_meetings_ms"):
            record[f"median_{what}"] = statistics.median(one[what] for one in runs)
        passed = max(one["sign_ms"] for one in runs) <= MOST_SIGN_MS
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

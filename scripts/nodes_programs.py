"""Random programs over several nodes of fake GPUs, and a library that fails at every call: many.

    .venv/bin/python scripts/nodes_programs.py [--programs 100000] [--failures 1000] [--out FILE]

Runs build/release's test_nccl (NodesPrograms, tests/bindings/nccl/nodes_programs_test.cc), of which
make test runs a few, and writes records/nodes_programs.json. What is not asked for (0) stays in the
record as it was. Every run of programs and its seeds are in the record.
10,000 programs take a minute or two of a core at rest, 1000 failures ten minutes of waiting.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from said import said

PROGRAM = Path("build/release/tests/bindings/nccl/test_nccl")
A_RUN = 10_000  # programs; each run has seeds of its own, and the record grows by it
SEEDS = 100
PARTS = ("failures", "programs")


def run(program: Path, name: str, **environment: str) -> dict[str, Any]:
    """What the test says of itself, whether it passed, and the seconds that it took."""
    began = time.monotonic()
    passed, line = said(program, f"NodesPrograms.{name}*", "programs|failures", **environment)
    return {**line, "passed": passed, "seconds": round(time.monotonic() - began, 1)}


def kept(out: Path) -> dict[str, Any]:
    """The parts of an older record, each with the commit that it is of."""
    if not out.exists():
        return {}
    old: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {part: {"commit": old["commit"], **old[part]} for part in PARTS if part in old}


def run_failures(program: Path, wanted: int, at_once: int) -> dict[str, Any]:
    """Failures mostly wait for deadlines: some processes at once have a part of them each."""
    began = time.monotonic()

    def part(number: int) -> dict[str, Any]:
        return run(
            program,
            "AFailure",
            BRAID_NODES_FAILURES=str(wanted),
            BRAID_NODES_PART=str(number),
            BRAID_NODES_PARTS=str(at_once),
        )

    with ThreadPoolExecutor(at_once) as threads:
        parts = list(threads.map(part, range(at_once)))
    slowest = "most_s_to_the_last_rank"
    total: dict[str, Any] = {}
    for one in parts:
        total = add(total, one)
    total[slowest] = max((one[slowest] for one in parts if slowest in one), default=None)
    return {**total, "at_once": at_once, "seconds": round(time.monotonic() - began, 1)}


def add(total: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """Numbers added; passed when both did."""
    if not total:
        return one
    passed = bool(total["passed"] and one["passed"])
    sums = {key: round(total.get(key, 0) + one.get(key, 0), 1) for key in {**total, **one}}
    return {**sums, "passed": passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--failures", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8, help="processes, of failures")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="a copy of test_nccl")
    parser.add_argument("--out", type=Path, default=Path("records/nodes_programs.json"))
    args = parser.parse_args()
    from braid.bench import facts

    commit, dirty = facts.commit()
    record: dict[str, Any] = {
        "schema": "braid.nodes_programs/1",
        "command": f"scripts/nodes_programs.py --programs {args.programs} "
        f"--failures {args.failures}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
    }
    record |= kept(args.out)
    if args.failures:
        record["failures"] = {
            "commit": commit,
            **run_failures(args.program, args.failures, args.at_once),
        }
    if args.programs:
        record.pop("programs", None)
    total: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    for begin in range(0, args.programs, A_RUN):
        seed = begin // A_RUN * SEEDS
        one = run(
            args.program,
            "EveryByte",
            BRAID_NODES_PROGRAMS=str(min(A_RUN, args.programs - begin)),
            BRAID_NODES_SEED=str(seed),
        )
        total = add(total, one)
        runs.append({"first_seed": seed, **one})
        record["programs"] = {"commit": commit, **total, "runs": runs}
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    parts = [record[part] for part in PARTS if part in record]
    return 0 if all(part["passed"] for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())

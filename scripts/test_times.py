"""What `make test` took, step by step, out of its log.

    (time make test) > LOG 2>&1
    .venv/bin/python scripts/test_times.py "from nothing=LOG" [NAME[@COMMIT]=LOG...]

Writes records/make_test.json, or --out: the seconds of a step, of its processors, and of what was
made for it beside other steps; of the whole what bash's `time` says. To be run in the checkout that
was tested.
"""

import argparse
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STEP = re.compile(r"^=== (\w+): (passed|FAILED).* (\d+) s \((\d+) s of processor\)$", re.MULTILINE)
BESIDE = re.compile(r"^(\w+): made beside other steps in (\d+) s \((\d+) s of processor\)$", re.M)
TIME = re.compile(r"^(real|user|sys)\s+(\d+)m([0-9.]+)s$", re.MULTILINE)


def run_of(name: str, log: str) -> dict[str, Any]:
    """What a log says; an error where it is none of a whole run."""
    times = {what: round(60 * int(m) + float(s), 1) for what, m, s in TIME.findall(log)}
    if times.keys() != {"real", "user", "sys"}:
        raise SystemExit(f"test_times: {name}: no times at the end of this log")
    beside = {step: int(cpu) for step, _, cpu in BESIDE.findall(log)}
    steps = [
        {"step": step, "outcome": outcome, "seconds": int(took), "cpu_s": int(cpu)}
        | ({"made_beside_cpu_s": beside[step]} if step in beside else {})
        for step, outcome, took, cpu in STEP.findall(log)
    ]
    return {"run": name, "passed": "test: all steps passed" in log, **times, "steps": steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="NAME[@COMMIT]=LOG")
    parser.add_argument("--out", type=Path, default=Path("records/make_test.json"))
    args = parser.parse_args()
    from braid.bench import facts

    runs = []
    commit, dirty = facts.commit()
    for given in args.logs:
        what, _, path = given.partition("=")
        name, _, of = what.partition("@")
        runs.append(run_of(name, Path(path).read_text(encoding="utf-8")) | {"commit": of or commit})
    record = {
        "schema": "braid.make_test/1",
        "command": "time make test",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "machine": f"{os.cpu_count()} cores",
        "runs": runs,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        cpu_min = (run["user"] + run["sys"]) / 60
        print(f"{run['run']}: {run['real'] / 60:.1f} min, {cpu_min:.1f} of processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())

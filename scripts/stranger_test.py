"""A minute of another user at every door of jobs that run and train, each kind of attempt counted.

    .venv/bin/python scripts/stranger_test.py [--seconds 60] [--json records/strangers.json]

Runs the tests of strangers, which make test has for some seconds each. Needs root, which alone can
start a process of another user: a record that was made without it says which tests were skipped.
"""

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    "tests/python/test_another_user.py",
    "tests/python/test_strangers.py",
    "tests/python/torch_backend/test_stranger.py",
]


class Keeper:
    """What each test came to, and what it noted by record_property."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test: its call, or a set-up that skipped or failed."""
        if report.when != "call" and report.outcome == "passed":
            return
        self.runs.append(
            {
                "test": report.nodeid.split("::")[-1],
                "outcome": report.outcome,
                "seconds": round(report.duration, 1),
                **dict(report.user_properties),
            }
        )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="A minute of another user beside jobs.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="where what was tried is kept")
    chosen = parser.parse_args()
    os.environ["BRAID_STRANGER_S"] = str(chosen.seconds)
    keeper = Keeper()
    code = pytest.main(["-q", *(str(ROOT / test) for test in TESTS)], plugins=[keeper])
    if chosen.json is not None:
        from braid.bench import facts

        commit, dirty = facts.commit()
        record = {
            "schema": "braid.strangers/1",
            "command": f"scripts/stranger_test.py --seconds {chosen.seconds} --json {chosen.json}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "dirty": dirty,
            "machine": f"{os.cpu_count()} cores",
            "runs": keeper.runs,
        }
        chosen.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

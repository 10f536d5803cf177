"""Prefillers that are killed or stopped at random moments while six requests are pushed from them:
no wrong page, no hang, and no byte in a page that was given back. Writes records/kv_kills.json.

    .venv/bin/python scripts/kv_kills.py [MOMENTS]        50, half of them over tcp
"""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "tests/python/kv")]


def moment(way: str, seed: int) -> dict[str, Any]:
    """One of them, with a decoder of its own: what it gave, and how long it took."""
    from braid import kv

    kv_peers, failures = import_module("kv_peers"), import_module("test_failures")

    began = time.monotonic()
    settings = {"silence": failures.SILENCE_S, "beat": 0.2, "engine_lease": failures.SILENCE_S}
    found: dict[str, Any] = {"way": way, "seed": seed, "wrong": ""}
    with kv_peers.Side(kv.Decoder, kv_peers.LAYOUT, "decode", way, **settings) as decode:
        try:
            found["arrived"] = failures.kill_or_stop_once(decode, way, seed)
        except AssertionError as error:
            found["wrong"] = f"{error}"[:200] or "a page is wrong, or changed after its end"
    found["seconds"] = round(time.monotonic() - began, 2)
    return found


def main() -> int:
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    runs = []
    for seed in range(moments):
        runs.append(moment(("local", "tcp")[seed % 2], 100 + seed))
        print(json.dumps(runs[-1]), flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    record = {
        "schema": "braid.kv_kills/1",
        "command": ["scripts/kv_kills.py", str(moments)],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": f"{os.cpu_count()} cores",
        "ranks": 2,
        "requests_each": 6,
        "runs": runs,
    }
    (ROOT / "records/kv_kills.json").write_text(json.dumps(record, indent=1) + "\n")
    wrong = sum(bool(run["wrong"]) for run in runs)
    print(f"kv_kills: {len(runs)} moments, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prefillers and decoders that are killed or stopped at random moments while six requests go from
one to the other: no wrong page, no hang, and no byte in a page that was given back. Writes
records/kv_kills.json.

    .venv/bin/python scripts/kv_kills.py [MOMENTS]      50, half of them over tcp, half of each side
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


def moment(way: str, side: str, seed: int) -> dict[str, Any]:
    """One of them, with the other side of its own: what it gave, and how long it took."""
    from braid import kv

    kv_peers, failures = import_module("kv_peers"), import_module("test_failures")

    began = time.monotonic()
    settings = {"silence": failures.SILENCE_S, "engine_lease": failures.SILENCE_S}
    found: dict[str, Any] = {"way": way, "side": side, "seed": seed, "wrong": ""}
    role: type = kv.Decoder if side == "prefiller" else kv.Prefiller
    if side == "prefiller":
        strike, own = failures.kill_or_stop_once, {"beat": 0.2}
    else:
        strike, own = failures.kill_or_stop_a_decoder_once, {"lease": 3}
    with kv_peers.Side(role, kv_peers.LAYOUT, "other", way, **settings, **own) as other:
        try:
            found["arrived"] = strike(other, way, seed)
        except AssertionError as error:
            found["wrong"] = f"{error}"[:200] or "a page is wrong, or changed after its end"
    found["seconds"] = round(time.monotonic() - began, 2)
    return found


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    runs = []
    for seed in range(moments):
        side = ("prefiller", "decoder")[seed // 2 % 2]
        runs.append(moment(("local", "tcp")[seed % 2], side, 100 + seed))
        print(json.dumps(runs[-1]), flush=True)
    record = {
        "schema": "braid.kv_kills/1",
        "command": ["scripts/kv_kills.py", str(moments)],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
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

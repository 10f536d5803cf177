"""Dispatch and combine between two hosts, and what crosses: records/moe_two_hosts.json.

    sudo .venv/bin/python tests/two_hosts/moe.py [--rate 200,400] [--tokens 128,4096] [--ways rails]
        [--calls 2] [--out FILE [--add]]

Two and four ranks on each of two network namespaces, joined by one rail of a set rate. The shape
is DeepSeek-V3's, rows of two bytes a channel, uniform routing. Beside each count of the NICs stands
what the routing says must cross: one row for each (token, node), or, where every rank is reached
directly, for each (token, rank); with heads (ids, weights, and where they go). "cores_busy" is
what all ranks took of the machine's cores meanwhile: where that is near their number, the
processor and not the line is the limit.

--add: the runs join those of FILE, which are of the same commit.
"""

import argparse
import itertools
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from rails import Rails, why_not

from braid.bench.moe.routings import SHAPES, ids_of

HERE = Path(__file__).parent
SHAPE = SHAPES["deepseek-v3"]
ROW = 2 * SHAPE.hidden
HEAD = 16 + 8 * SHAPE.num_topk  # of a copy: token, local ids, weights
RECORD, PLACE = 16, 16  # src/moe/host/stream.h


def crossing(tokens: int, per_host: int) -> dict[str, int]:
    """Rows from the first host to the second one: for each token and node, for each and rank."""
    by_node = by_rank = 0
    for rank in range(per_host):
        owners = ids_of(SHAPE, "uniform", tokens, rank) // (SHAPE.num_experts // (2 * per_host))
        there = [(owners == other).any(1) for other in range(per_host, 2 * per_host)]
        by_rank += int(sum(met.sum() for met in there))
        by_node += int(np.any(there, axis=0).sum())
    return {"token and node": by_node, "token and rank": by_rank}


def formula(operation: str, direct: bool, rows: dict[str, int]) -> dict[str, int]:
    """Bytes of rows alone, and with all that goes with them; from one host to the other."""
    nodes, ranks = rows["token and node"], rows["token and rank"]
    if operation == "dispatch" and not direct:
        heads = ranks * (RECORD + PLACE + HEAD + PLACE) + nodes * RECORD
        return {"rows": nodes * ROW, "all": nodes * ROW + heads}
    if operation == "dispatch":  # heads and rows are neighbours but for a gap
        return {"rows": ranks * ROW, "all": ranks * (ROW + HEAD + 2 * (RECORD + PLACE))}
    if operation == "combine":
        return {"rows": ranks * ROW, "all": ranks * ROW}
    return {"rows": nodes * ROW, "all": nodes * (ROW + 128 + RECORD + PLACE)}


def measure(per_host: int, tokens: int, calls: int, rate: float, direct: bool) -> dict[str, Any]:
    with Rails([rate]) as rails:
        ranks = rails.start(
            HERE / "moe_rank.py", str(tokens), str(calls), *(["direct"] if direct else []),
            per_host=per_host, timeout="300s", tune="off",
        )  # fmt: skip
        answers = [json.loads(rank.communicate()[0]) for rank in ranks]
    rows = crossing(tokens, per_host)
    operations = {}
    for name, first in answers[0]["rows"].items():
        slowest = [max(each) for each in zip(*(a["rows"][name]["seconds"] for a in answers),
                                             strict=True)]  # fmt: skip
        must = formula(name, direct, rows)
        sent = first["nic_bytes"] / calls
        operations[name] = {
            "seconds": slowest,
            "nic_bytes": first["nic_bytes"],
            "nic_bytes_a_call": sent,
            "formula": must,
            "by_formula": sent / must["all"],
            "by_rows": sent / must["rows"],
            "of_line": sent * 8 / statistics.median(slowest) / (rate * 1e6),
            "cores_busy": sum(a["rows"][name]["cpu_seconds"] for a in answers) / sum(slowest),
        }
    return {
        "ranks_a_host": per_host, "tokens": tokens, "calls": calls, "rate_mbit": rate,
        "way": "every rank directly" if direct else "along rails",
        "crossing": rows, "operations": operations, "wrong": sum(a["wrong"] for a in answers),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", default="400")
    parser.add_argument("--tokens", default="128,4096")
    parser.add_argument("--per-host", default="2,4")
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--ways", default="rails,direct")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--add", action="store_true")
    args = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return 77
    from braid.bench import facts

    commit, dirty = facts.commit()
    command, runs = " ".join(sys.argv), []
    if args.add:
        before = json.loads(args.out.read_text(encoding="utf-8"))
        if before["commit"] != commit:
            print(f"{args.out} is of {before['commit']}, this is {commit}")
            return 2
        command, runs = f"{before['command']}; {command}", before["runs"]
        dirty = bool(before["dirty"])  # the file itself is what has changed
    cases = itertools.product(
        map(int, args.per_host.split(",")),
        map(int, args.tokens.split(",")),
        map(float, args.rate.split(",")),
        args.ways.split(","),
    )
    for per_host, tokens, rate, way in cases:
        runs.append(measure(per_host, tokens, args.calls, rate, way == "direct"))
        for name, row in runs[-1]["operations"].items():
            print(
                f"{per_host} a host, {tokens} tokens, {rate:.0f} Mbit/s, {runs[-1]['way']}, {name}:"
                f" {row['nic_bytes_a_call'] / 1e6:.2f} MB, {row['by_formula']:.4f} of the formula,"
                f" {row['of_line']:.2f} of the line, {row['cores_busy']:.2f} cores busy",
                flush=True,
            )
    if args.out:
        record = {
            "schema": "braid.moe_two_hosts/1", "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit,
            "dirty": dirty, "ranks": 8, "shape": SHAPE.name, "row_bytes": ROW, "runs": runs,
        }  # fmt: skip
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(run["wrong"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())

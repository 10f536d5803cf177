"""Plans of published layouts, on paper: how long they take, how even they are, and what the busiest
NIC would need for its bytes. Writes records/weights_plan.json.

    .venv/bin/python scripts/weights_plan.py
"""

import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from braid.weights import Piece, Replicate, Shard, boxes, piece_of, plan
from braid.weights.pieces import Placement, Shape

ROOT = Path(__file__).resolve().parent.parent
NIC_GBPS = 50.0
"""400 Gbit/s, one NIC for each rank."""
Shapes = dict[str, Shape]


def dense(layers: int, hidden: int, inner: int, vocabulary: int, kv: int) -> Shapes:
    """A Llama's matrices and norms."""
    out: Shapes = {"embed": (vocabulary, hidden), "head": (vocabulary, hidden)}
    for n in range(layers):
        out |= {f"layers.{n}.{name}": (hidden, hidden) for name in ("q", "o")}
        out |= {f"layers.{n}.{name}": (kv, hidden) for name in ("k", "v")}
        out |= {f"layers.{n}.{name}": (inner, hidden) for name in ("gate", "up")}
        out |= {f"layers.{n}.down": (hidden, inner)}
        out |= {f"layers.{n}.{name}": (hidden,) for name in ("norm", "norm2")}
    return out


def kimi_k2() -> Shapes:
    """61 layers of multi-head latent attention, 384 experts in all but the first."""
    out: Shapes = {"embed": (163840, 7168), "head": (163840, 7168)}
    for n in range(61):
        out |= {
            f"layers.{n}.q_a": (1536, 7168),
            f"layers.{n}.q_b": (64 * 192, 1536),
            f"layers.{n}.kv_a": (576, 7168),
            f"layers.{n}.kv_b": (64 * 256, 512),
            f"layers.{n}.o": (7168, 64 * 128),
            f"layers.{n}.norm": (7168,),
        }
        if n == 0:
            out |= {f"layers.0.{m}": (18432, 7168) for m in ("gate", "up", "down_t")}
            continue
        out[f"layers.{n}.router"] = (384, 7168)
        out |= {f"layers.{n}.shared_{m}": (2048, 7168) for m in ("gate", "up", "down_t")}
        out |= {f"layers.{n}.experts_{m}": (384, 2048, 7168) for m in ("gate", "up", "down_t")}
    return out


def side(
    shapes: Shapes,
    mesh: Shape,
    placements_of: Callable[[str], Sequence[Placement]],
    dtype: str,
    held: Callable[[str, Shape], bool] = lambda _name, _at: True,
) -> list[list[Piece]]:
    """What every rank of a mesh holds."""
    out = []
    for at in itertools.product(*(range(length) for length in mesh)):
        rank = []
        for number, (name, shape) in enumerate(shapes.items()):
            if held(name, at):
                for start, size in boxes(shape, mesh, at, placements_of(name)):
                    rank.append(piece_of(name, dtype, shape, start, size, number))
        out.append(rank)
    return out


def tensor_parallel(name: str) -> Placement:
    if "norm" in name:
        return Replicate()
    return Shard(1) if name.endswith((".o", ".down")) else Shard(0)


def a_thousand() -> tuple[Any, Any]:
    shapes = dense(111, 2048, 5632, 32000, 256)
    workers = side(shapes, (2,), lambda name: [tensor_parallel(name)], "bfloat16")
    return side(shapes, (4,), lambda _: [Shard(0)], "bfloat16"), workers


def seventy_billion() -> tuple[Any, Any]:
    shapes = dense(80, 8192, 28672, 128256, 1024)
    workers = side(shapes, (4, 8), lambda name: [Replicate(), tensor_parallel(name)], "bfloat16")
    return side(shapes, (64,), lambda _: [Shard(0)], "bfloat16"), workers


def a_trillion() -> tuple[Any, Any]:
    """Trainers PP 2, EP 8, FSDP 16, whose FSDP groups have gathered their tensors; workers EP 32
    in four groups, all but experts on each, in one byte a number.
    """
    shapes = kimi_k2()

    def stage_of(name: str) -> int:
        if not name.startswith("layers."):
            return int(name == "head")
        return int(int(name.split(".")[1]) >= 31)

    def expert(name: str) -> Placement:
        return Shard(0) if "experts_" in name else Replicate()

    trainers = side(
        shapes, (2, 8, 16), lambda name: [Replicate(), expert(name), Replicate()], "float8_e4m3fn",
        lambda name, at: at[0] == stage_of(name),
    )  # fmt: skip
    workers = side(shapes, (4, 32), lambda name: [Replicate(), expert(name)], "float8_e4m3fn")
    return trainers, workers


LAYOUTS = {
    "1000 tensors, FSDP 4 to TP 2": a_thousand,
    "70 B, FSDP 64 to 4 x TP 8": seventy_billion,
    "1 T (Kimi K2), PP 2 x EP 8 x FSDP 16 to 4 x EP 32": a_trillion,
}


def measured(name: str) -> dict[str, Any]:
    trainers, workers = LAYOUTS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    table = plan(trainers, workers)
    took = time.process_time() - began
    sent, received = table.bytes_sent(), table.bytes_received()
    busiest = max(*sent, *received)
    return {
        "layout": name,
        "trainers": len(trainers),
        "workers": len(workers),
        "tensors": len({piece.name for rank in workers for piece in rank}),
        "routes": len(table.routes),
        "processor_s": round(took, 3),
        "memory_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
        "sent_bytes": {"least": min(sent), "most": max(sent)},
        "received_bytes": {"least": min(received), "most": max(received)},
        "sent_spread": round(max(sent) / (sum(sent) / len(sent)) - 1, 4),
        "received_spread": round(max(received) / (sum(received) / len(received)) - 1, 4),
        "busiest_nic_s": round(busiest / NIC_GBPS / 1e9, 4),
    }


def main() -> int:
    """Each layout in a process of its own, for its memory."""
    if len(sys.argv) == 2:
        print(json.dumps(measured(sys.argv[1])))
        return 0
    runs = []
    for name in LAYOUTS:
        said = subprocess.run(
            [sys.executable, __file__, name], check=True, capture_output=True, text=True
        )
        runs.append(json.loads(said.stdout))
        print(json.dumps(runs[-1], indent=1))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    record = {
        "schema": "braid.weights_plan/1",
        "command": ["scripts/weights_plan.py"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "ranks": 1,
        "nic_gbps": NIC_GBPS,
        "runs": runs,
    }
    (ROOT / "records/weights_plan.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

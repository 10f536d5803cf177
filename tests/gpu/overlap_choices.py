"""What tuning chooses, beside every way it chose among, in one run: the contract is that no call is
slower than the sequential way by more than 2 %.

    braid run -n 2 tests/gpu/overlap_choices.py                        a rank per GPU
    braid run -n 2 tests/gpu/overlap_choices.py --share --json c.json  all ranks on the first GPU

Layers are those of one rank of eight, whatever the number of ranks. Of each the public operation
is called once, which tunes, and then takes turns with all ways: rounds in an order that all ranks
know, the slowest rank's time of some calls in a row, medians. Before, each way's result is
compared with the sequential one's. `host_us` is what a call costs the host, which at few rows is
longer than the GPU takes. Exit code 1: a wrong result, or a choice that is too slow by more than
NOISE beyond the contract.
"""

import argparse
import datetime
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

import braid
from braid.bench import facts
from braid.bench.overlap.models import MODELS
from braid.bench.overlap.stand import normal
from braid.overlap import ag_gemm, gemm_ar, gemm_rs, operations, sequential, shapes
from braid.overlap.shapes import NAMES, Op
from braid.overlap.tuner import SEQUENTIAL

OF = 8  # a layer's ranks
MOST_ERROR = 4e-3  # of each product's own; two of them differ by twice as much at most
ALLOWED, NOISE = 1.02, 0.03
CALLS = {Op.AG_GEMM: ag_gemm, Op.GEMM_RS: gemm_rs, Op.GEMM_AR: gemm_ar}
CHOSEN = "chosen"
HOST_CALLS = 30
SLEEP_CYCLES = 60_000_000


def layers(comm, rows):
    for model, (width, between) in MODELS.items():
        for m in rows:
            yield model, Op.AG_GEMM, m // comm.size, between // OF, width
            yield model, Op.GEMM_RS, m, width, between // OF
            yield model, Op.GEMM_AR, m, width, between // OF


def most(comm, values):
    return comm.all_reduce(np.array(values, dtype=np.float64), "max")


def time_us(comm, call, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    comm.barrier()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def host_us(comm, call):
    """Of a call while the GPU has something else to do."""
    torch.cuda.synchronize()
    comm.barrier()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    return (time.perf_counter() - begin) / HOST_CALLS * 1e6


def row_of(comm, layer, samples):
    model, op, rows, columns, depth = layer
    x, w = normal(rows, depth, torch.bfloat16), normal(columns, depth, torch.bfloat16)
    shape = shapes.shape_of(op, x, w, None, "nk", comm.size)
    public = lambda: CALLS[op](x, w, comm)  # noqa: E731
    in_turn = lambda: sequential.run(comm, op, x, w, None, False)  # noqa: E731
    public()
    kernels = operations._kernels_of(comm)
    chosen = str(kernels.ways[shape])
    ways = {str(way): partial(kernels.ready(shape, way).run, comm, x, w, None)
            for way in kernels.candidates(shape)}  # fmt: skip
    ways[CHOSEN] = public
    right = in_turn().double()
    errors = [float((call().double() - right).norm() / right.norm()) for call in ways.values()]
    error = float(most(comm, [max(errors)])[0])
    first = most(comm, [time_us(comm, call, 3) for call in ways.values()])
    counts = {name: int(min(max(1500 / us, 1), 20)) for name, us in zip(ways, first, strict=True)}
    times = {name: [] for name in ways}
    for number in range(samples):
        for name in np.random.default_rng(number).permutation(list(ways)):
            times[name].append(float(most(comm, [time_us(comm, ways[name], counts[name])])[0]))
    hosts = [median(host_us(comm, call) for _ in range(3)) for call in (public, in_turn)]
    hosts = most(comm, hosts)
    medians = {name: median(found) for name, found in times.items()}
    fixed = {name: us for name, us in medians.items() if name != CHOSEN}
    best = min(fixed, key=fixed.get)
    m = rows * comm.size if op is Op.AG_GEMM else rows
    return {
        "layer": f"{NAMES[op]}, {model}, m {m}",
        "columns": columns, "depth": depth, "ways": len(fixed), "largest_error": error,
        "chosen": chosen, "chosen_us": medians[CHOSEN], "the_same_us": fixed[chosen],
        "best": best, "best_us": fixed[best], "in_turn_us": fixed[str(SEQUENTIAL)],
        "chosen_by_best": medians[CHOSEN] / fixed[best],
        "chosen_by_in_turn": medians[CHOSEN] / fixed[str(SEQUENTIAL)],
        "host_us": {"call": float(hosts[0]), "in turn": float(hosts[1])},
        "samples_us": times,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--rows", default="64,512,1024,2048,8192")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.cuda.set_device(0 if asked.share else int(os.environ.get("LOCAL_RANK", "0")))
    rows, faults = [], []
    with braid.init(progress=False) as comm:
        for layer in layers(comm, [int(m) for m in asked.rows.split(",")]):
            row = row_of(comm, layer, asked.samples)
            rows.append(row)
            if row["largest_error"] > 2 * MOST_ERROR:
                faults.append(f"{row['layer']}: error {row['largest_error']:.1e}")
            if row["chosen_by_in_turn"] > ALLOWED + NOISE:
                faults.append(f"{row['layer']}: {row['chosen_by_in_turn']:.2f} of in turn")
            if comm.rank == 0:
                print(
                    f"{row['layer']}: {row['chosen']}: {row['chosen_us']:.0f} us,"
                    f" best {row['best_us']:.0f} ({row['best']}), in turn {row['in_turn_us']:.0f};"
                    f" by best {row['chosen_by_best']:.3f}, by in turn"
                    f" {row['chosen_by_in_turn']:.3f}; host {row['host_us']['call']:.0f} and"
                    f" {row['host_us']['in turn']:.0f} us",
                    flush=True,
                )
            torch.cuda.empty_cache()
        commit, dirty = facts.commit(asked.commit)
        record = {
            "schema": "braid.overlap_choices/1",
            "command": f"braid run -n {comm.size} " + " ".join(sys.argv),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "dirty": dirty,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "ranks": comm.size,
            "shared_gpu": asked.share,
            "rows": rows,
            "faults": faults,
        }
        if asked.json and comm.rank == 0:
            asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if comm.rank == 0:
            print("overlap_choices:", "; ".join(faults) or "right", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

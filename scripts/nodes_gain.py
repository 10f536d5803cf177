"""What `braid plan nodes` says that stages gain at the rate of a record's own network, and how much
of it calls reached.

    .venv/bin/python scripts/nodes_gain.py records/nodes_gpus_auto_h200_8.json ..

The rate is that of NCCL whole in the record's largest all_gather: what its ring takes out of a
node, by its time. So NCCL's time of that call is the model's by definition, and no other one is.
Prints lines of a table.
"""

import sys
from pathlib import Path

from braid.plan.formulas.nodes import ring_cable_bytes, staged_cable_bytes
from braid.plan.stages import NIC_PART, Nics, Stages
from braid.record.gpu import FORM, GpuRecord, GpuResult

OPS = ("all_gather", "reduce_scatter")


def us(result: GpuResult, who: str) -> float:
    """The median."""
    return next(run.median_us for run in result.runs if run.who == who)


def rate_gbps(record: GpuRecord, nodes: int) -> float:
    """Out of a node, as NCCL whole reached it."""
    gathers = [result for result in record.results if result.op == OPS[0]]
    largest = max(gathers, key=lambda result: result.total_bytes)
    left = ring_cable_bytes(OPS[0], nodes, record.ranks // nodes, largest.total_bytes)
    return left / us(largest, "nccl") / 1e3


def line(record: GpuRecord, result: GpuResult, gbps: float, nodes: int) -> str:
    """One call: both rates out of a node, both gains, and what is reached of the model's."""
    model = Stages(result.op, nodes, record.ranks // nodes, Nics(1, gbps / NIC_PART))
    shape = result.op, nodes, record.ranks // nodes, result.total_bytes
    nccl_us, braid_us = us(result, "nccl"), us(result, "braid")
    in_stages = result.path == "in stages"
    braid = f"{staged_cable_bytes(*shape) / braid_us / 1e3:.2f}" if in_stages else "NCCL's"
    expected = model.ring_us(result.total_bytes) / model.staged_us(result.total_bytes)
    reached = nccl_us / braid_us
    nccl = f"{ring_cable_bytes(*shape) / nccl_us / 1e3:.2f}"
    gains = f"{expected:.2f} | {reached:.2f} | {reached / expected:.2f}"
    return f"| {result.op} | {result.total_bytes >> 20} | {nccl} | {braid} | {gains} |"


def main() -> int:
    """A table of each record."""
    for name in sys.argv[1:]:
        record = FORM.load(Path(name))
        nodes = record.host.num_hosts
        gbps = rate_gbps(record, nodes)
        print(f"{name}: {gbps:.2f} GB/s")
        print("| | MiB | NCCL's GB/s | braid's GB/s | model's gain | reached | share |")
        for result in record.results:
            if result.op in OPS:
                print(line(record, result, gbps, nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

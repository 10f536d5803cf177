"""One of four ranks on one GPU that are two nodes of two: the drop-in over several nodes.

    LD_PRELOAD=python/braid/libbraid-nccl.so NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
        NCCL_NET=Socket NCCL_MAX_CTAS=2 BRAID_NCCL_NODES=on \
        python3 -m braid.cli run -n 4 tests/gpu/nodes.py

To NCCL every rank is a host of its own (NCCL_HOSTID), to braid every pair (BRAID_HOST_ID): inside a
pair calls go by braid, between pairs by NCCL's sockets on loopback. Nothing is timed.

`scripts/gpu_test nodes` is that line, once without and once with BRAID_NCCL_NODES_EXACT=on.

Results are compared bit by bit with the CPU's: fp32 in rank order in a node, one rounding, fp32 in
the order of nodes, one rounding; exact ones without the first rounding; an average divides in the
last step. The exit code is 1 when one element differs, or when a call went where it should not.
NODES_SECONDS is how long, NODES_SEED which calls, NODES_RECORD a file for what was found,
NODES_COMMIT what it says of the code.
"""

import ctypes
import json
import os
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

RANK = int(os.environ["RANK"])
IS_EXACT = os.environ.get("BRAID_NCCL_NODES_EXACT", "off") in ("on", "1")
PER_NODE = int(os.environ.get("NODES_PER_NODE", "2"))
os.environ["NCCL_HOSTID"] = f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{RANK // PER_NODE}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import braid  # noqa: E402

SECONDS = float(os.environ.get("NODES_SECONDS", "12"))
SEED = int(os.environ.get("NODES_SEED", "7"))
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv"]
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WHOLE = [torch.int32, torch.int64, torch.uint8]
REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def counts() -> tuple[dict[str, int], dict[str, int]]:
    taken, handed_on = (ctypes.c_uint64 * len(OPS))(), (ctypes.c_uint64 * len(OPS))()
    library = ctypes.CDLL("libnccl.so.2")
    library.braid_nccl_counts(taken, handed_on, ctypes.c_size_t(len(OPS)))
    return dict(zip(OPS, taken, strict=True)), dict(zip(OPS, handed_on, strict=True))


def operand(rank: int, call: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The same on every rank that asks."""
    made = torch.Generator().manual_seed(1000 * (call + 1_000_000 * SEED) + rank)
    if dtype.is_floating_point:
        return (torch.randn(count, generator=made, dtype=torch.float64) * 3).to(dtype)
    return torch.randint(0, 50, (count,), generator=made, dtype=torch.int64).to(dtype)


def add(parts: list[torch.Tensor], name: str, divisor: int) -> torch.Tensor:
    """In the order of `parts`, rounded once."""
    dtype = parts[0].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = wide if dtype.is_floating_point else torch.int64
    total = parts[0].to(exact)
    for part in parts[1:]:
        if name == "min":
            total = torch.minimum(total, part.to(exact))
        elif name == "max":
            total = torch.maximum(total, part.to(exact))
        else:
            total = total + part.to(exact)
    if name == "avg" and divisor > 1:
        if dtype.is_floating_point:
            total = total / divisor
        else:
            total = torch.div(total.to(dtype).to(torch.int64), divisor, rounding_mode="trunc")
    return total.to(dtype)


def sum_over_nodes(operands: list[torch.Tensor], name: str) -> torch.Tensor:
    size = len(operands)
    inside = "sum" if name == "avg" else name
    dtype = operands[0].dtype
    if IS_EXACT and dtype in (torch.bfloat16, torch.float16) and name in ("sum", "avg"):
        wide = sum_over_nodes([one.to(torch.float32) for one in operands], name)
        return wide.to(dtype)
    partials = [
        add(operands[first : first + PER_NODE], inside, 1) for first in range(0, size, PER_NODE)
    ]
    return add(partials, name, size)


class Checks:
    def __init__(self) -> None:
        self.calls = 0
        self.wrong = 0

    def see(self, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        self.calls += 1
        same = torch.equal(found.cpu().view(torch.uint8), wanted.view(torch.uint8))
        if not same:
            self.wrong += 1
            print(f"rank {RANK}: {what} differs", flush=True)

    def all_gather(self, call: int, count: int, dtype: torch.dtype, in_place: bool) -> None:
        size = dist.get_world_size()
        wanted = torch.cat([operand(rank, call, count, dtype) for rank in range(size)])
        recv = torch.zeros(count * size, dtype=dtype, device="cuda")
        own = operand(RANK, call, count, dtype).cuda()
        if in_place:
            recv[RANK * count : (RANK + 1) * count] = own
            own = recv[RANK * count : (RANK + 1) * count]
        dist.all_gather_into_tensor(recv, own)
        self.see(recv, wanted, f"all_gather of {count} {dtype}, in place {in_place}")

    def reduce_scatter(self, call: int, count: int, dtype: torch.dtype, name: str) -> None:
        size = dist.get_world_size()
        all_of = [operand(rank, call, count * size, dtype) for rank in range(size)]
        mine = slice(RANK * count, (RANK + 1) * count)
        wanted = sum_over_nodes([one[mine] for one in all_of], name)
        recv = torch.empty(count, dtype=dtype, device="cuda")
        dist.reduce_scatter_tensor(recv, all_of[RANK].cuda(), op=REDOPS[name])
        self.see(recv, wanted, f"reduce_scatter {name} of {count} {dtype}")


def random_calls(checks: Checks) -> None:
    """All types, operators and some sizes for so many seconds by rank 0's clock."""
    chooser = random.Random(SEED)
    end = time.monotonic() + SECONDS
    call = 0
    while True:
        call += 1
        if call % 20 == 0:
            go_on = torch.tensor([1 if time.monotonic() < end else 0], device="cuda")
            dist.broadcast(go_on, 0)
            if int(go_on) == 0:
                return
        dtype = chooser.choice(FLOATS + WHOLE)
        count = chooser.choice([1, 7, 1000, 40_001, 300_000])
        if chooser.random() < 0.4:
            checks.all_gather(call, count, dtype, chooser.random() < 0.5)
        else:
            checks.reduce_scatter(call, count, dtype, chooser.choice(list(REDOPS)))


def grouped(checks: Checks) -> None:
    """FSDP's way: several in one group."""
    size = dist.get_world_size()
    counts_of = [100, 5000, 77]
    sends = [operand(RANK, 50_000 + i, n, torch.bfloat16).cuda() for i, n in enumerate(counts_of)]
    recvs = [torch.zeros(n * size, dtype=torch.bfloat16, device="cuda") for n in counts_of]
    with dist._coalescing_manager(device=torch.device("cuda", 0)):
        for recv, send in zip(recvs, sends, strict=True):
            dist.all_gather_into_tensor(recv, send)
    for i, n in enumerate(counts_of):
        wanted = torch.cat([operand(r, 50_000 + i, n, torch.bfloat16) for r in range(size)])
        checks.see(recvs[i], wanted, f"all_gather {i} of a group")


def in_a_graph(checks: Checks) -> None:
    size, count = dist.get_world_size(), 2048
    send = torch.zeros(count, dtype=torch.float32, device="cuda")
    recv = torch.zeros(count * size, dtype=torch.float32, device="cuda")
    scattered = torch.zeros(count, dtype=torch.float32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_gather_into_tensor(recv, send)
        dist.reduce_scatter_tensor(scattered, recv)
    for call in range(60_000, 60_005):
        send.copy_(operand(RANK, call, count, torch.float32))
        graph.replay()
        torch.cuda.synchronize()
        blocks = [operand(rank, call, count, torch.float32) for rank in range(size)]
        checks.see(recv, torch.cat(blocks), "all_gather in a graph")
        checks.see(
            scattered, sum_over_nodes([blocks[RANK]] * size, "sum"), "reduce_scatter in a graph"
        )


def record(checks: Checks, seconds: float) -> None:
    """Every rank's counts, into the file that is asked for."""
    taken, handed_on = counts()
    own = {"results": checks.calls, "wrong": checks.wrong, "taken": taken, "handed_on": handed_on}
    ranks: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    path = os.environ.get("NODES_RECORD")
    if RANK != 0 or path is None:
        return
    found = {
        "schema": "braid.nodes_gpu/1",
        "command": f"NODES_SECONDS={SECONDS:g} NODES_SEED={SEED} scripts/gpu_test nodes",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("NODES_COMMIT", "unknown"),
        "dirty": "NODES_COMMIT" not in os.environ,
        "gpu": torch.cuda.get_device_name(0),
        "nccl": ".".join(str(one) for one in torch.cuda.nccl.version()),
        "nodes": dist.get_world_size() // PER_NODE,
        "per_node": PER_NODE,
        "is_exact": IS_EXACT,
        "seconds": round(seconds, 1),
        "ranks": ranks,
    }
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    began = time.monotonic()
    checks = Checks()
    checks.all_gather(1, 1000, torch.float32, False)
    checks.reduce_scatter(2, 1000, torch.float32, "sum")
    grouped(checks)
    in_a_graph(checks)
    random_calls(checks)
    torch.cuda.synchronize()
    record(checks, time.monotonic() - began)
    taken, handed_on = counts()
    wanted = os.environ.get("BRAID_NCCL_NODES", "off") == "on"
    astray = handed_on["all_gather"] + handed_on["reduce_scatter"] if wanted else 0
    print(
        f"rank {RANK}: {checks.calls} results, {checks.wrong} wrong; taken over {taken}, "
        f"handed on {handed_on}, why: {braid.stats()['nccl']['why']}",
        flush=True,
    )
    dist.destroy_process_group()
    return 1 if checks.wrong or astray else 0


if __name__ == "__main__":
    sys.exit(main())

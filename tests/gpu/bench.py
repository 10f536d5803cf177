"""One rank of the GPU benchmark: braid against NCCL (torch.distributed), interleaved, every result
checked first.

    braid run -n 4 tests/gpu/bench.py --sizes 16MiB,256MiB [--ops all_gather,...] [--json FILE]

Sizes are bytes per rank of what is sent (all_gather), of the buffer (all_reduce, broadcast), or of
one rank's result (reduce_scatter); for all_to_all the whole send buffer. Needs torch.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import braid
from braid.cli import facts
from braid.cli.launch import free_port

OPS = ["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast"]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1}


def parse_size(text: str) -> int:
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


class Case:
    """Buffers of one op and size, what the result must be, and who can run it."""

    def __init__(self, comm: braid.Comm, op: str, nbytes: int, registered: bool) -> None:
        self.comm, self.op, self.nbytes = comm, op, nbytes
        n = comm.size
        self.gpu = torch.device("cuda", torch.cuda.current_device())
        count = nbytes // 2 // n * n  # whole blocks of an all_to_all
        send_count = count * n if op == "reduce_scatter" else count
        out_count = count * n if op == "all_gather" else count
        self.send = self.data(comm.rank, send_count)
        self.out = torch.empty(out_count, dtype=torch.bfloat16, device=self.gpu)
        self.registered = registered
        if registered:
            comm.register(self.out)

    def close(self) -> None:
        if self.registered:
            self.comm.unregister(self.out)

    def data(self, rank: int, count: int) -> torch.Tensor:
        """Position- and rank-dependent numbers."""
        i = torch.arange(count, dtype=torch.int32, device=self.gpu)
        return ((i * 7919 + rank * 104729) % 2003 - 1001).to(torch.bfloat16)

    def expected(self) -> torch.Tensor:
        n, rank, count = self.comm.size, self.comm.rank, self.send.numel()
        if self.op == "all_gather":
            return torch.cat([self.data(r, count) for r in range(n)])
        if self.op == "broadcast":
            return self.data(0, count)
        if self.op == "all_to_all":
            part = count // n
            return torch.cat(
                [self.data(r, count)[rank * part : (rank + 1) * part] for r in range(n)]
            )
        total = torch.zeros(count, dtype=torch.float32, device=self.gpu)
        for r in range(n):
            total += self.data(r, count).float()
        whole = total.to(torch.bfloat16)
        return whole if self.op == "all_reduce" else whole.chunk(n)[rank].clone()

    def with_braid(self) -> None:
        comm = self.comm
        if self.op == "all_gather":
            comm.all_gather(self.send, self.out)
        elif self.op == "all_reduce":
            comm.all_reduce(self.send, out=self.out)
        elif self.op == "reduce_scatter":
            comm.reduce_scatter(self.send, out=self.out)
        elif self.op == "all_to_all":
            comm.all_to_all(self.send, self.out)
        else:
            comm.broadcast(self.send if comm.rank == 0 and not self.registered else self.out)

    def with_nccl(self) -> None:
        if self.op == "all_gather":
            dist.all_gather_into_tensor(self.out, self.send)
        elif self.op == "all_reduce":  # NCCL's own call is out of place as well; torch's is not
            dist.all_reduce(self.out)
        elif self.op == "reduce_scatter":
            dist.reduce_scatter_tensor(self.out, self.send)
        elif self.op == "all_to_all":
            dist.all_to_all_single(self.out, self.send)
        else:
            dist.broadcast(self.out, 0)

    def wrong(self, run: Callable[[], None]) -> int:
        """Wrong elements of one call on a soiled result."""
        in_place = self.op == "broadcast" or (run == self.with_nccl and self.op == "all_reduce")
        self.out.fill_(77)
        if in_place and (self.op != "broadcast" or self.comm.rank == 0):
            self.out.copy_(self.send)
        torch.cuda.synchronize()
        self.comm.barrier()
        run()
        torch.cuda.synchronize()
        if self.op == "broadcast" and self.comm.rank == 0:
            return 0
        want = self.expected()
        if run == self.with_nccl and "reduce" in self.op:
            close = torch.isclose(self.out.float(), want.float(), rtol=0.05, atol=16.0)
            return int((~close).sum())
        return int((self.out.view(torch.int16) != want.view(torch.int16)).sum())


def sample_us(comm: braid.Comm, run: Callable[[], None], calls: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    comm.barrier()
    run()  # the ranks meet inside this one
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def graphed(run: Callable[[], None], calls: int) -> Callable[[], None]:
    """`calls` calls in one CUDA graph."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(calls):
            run()
    return graph.replay


def busbw_factor(op: str, n: int) -> float:
    return {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n, "reduce_scatter": n - 1}.get(
        op, (n - 1) / n if op == "all_to_all" else 1.0
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="16MiB,64MiB,256MiB")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--shares", default="", help="host shares to try, e.g. 0,0.05,0.08")
    parser.add_argument("--unregistered", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--commit", default=facts.commit()[0], help="for a tree without git")
    parser.add_argument("--tune", action="store_true", help="measure the host link's share first")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    results = []
    with braid.init(tune="force" if args.tune else False, progress=False) as comm:
        port = np.array([free_port() if comm.rank == 0 else 0], dtype=np.int32)
        comm.broadcast(port)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{port[0]}", rank=comm.rank, world_size=comm.size
        )
        for op in args.ops.split(","):
            for size in map(parse_size, args.sizes.split(",")):
                results += measure(comm, args, op, size)
        dist.destroy_process_group()
        if comm.rank == 0 and args.json:
            Path(args.json).write_text(json.dumps(record(comm, args, results), indent=1) + "\n")
    return 0


def record(
    comm: braid.Comm, args: argparse.Namespace, results: list[dict[str, Any]]
) -> dict[str, Any]:
    """What was run, on what, and every sample."""
    return {
        "schema": "braid.gpu/1",
        "command": " ".join(["braid run -n", str(comm.size), *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": args.commit,
        "dirty": args.commit == facts.commit()[0] and facts.commit()[1],
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "options": {k: v for k, v in os.environ.items() if k.startswith(("BRAID_GPU", "NCCL"))},
        "ranks": comm.size,
        "results": results,
    }


def measure(comm: braid.Comm, args: argparse.Namespace, op: str, size: int) -> list[dict[str, Any]]:
    case = Case(comm, op, size, not args.unregistered)
    shares: list[float | None] = [None]
    if args.shares:
        shares = [float(s) for s in args.shares.split(",")]
    gpu = torch.cuda.current_device()
    runs: dict[str, Callable[[], None]] = {"nccl": case.with_nccl}

    def held(share: float | None) -> Callable[[], None]:
        def run() -> None:
            if share is not None:
                comm._force_host_share(gpu, op, share)
            case.with_braid()

        return run

    for share in shares:
        runs["braid" if share is None else f"braid {share:.3f}"] = held(share)
    wrong = {}
    for name, run in runs.items():
        bad = case.wrong(case.with_nccl if name == "nccl" else run)
        wrong[name] = int(comm.all_reduce(np.array([bad], dtype=np.int64))[0])
    calls = 20 if size <= 4 << 20 else 5
    if args.graph:
        runs = {name: graphed(run, calls) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(args.samples + 1):
        for name, run in runs.items():
            us = sample_us(comm, run, 2 if args.graph else calls) / (calls if args.graph else 1)
            slowest = float(comm.all_reduce(np.array([us]), "max")[0])
            if i:
                times[name].append(slowest)
    case.close()
    rows = []
    base = statistics.median(times["nccl"])
    for name, samples in times.items():
        median = statistics.median(samples)
        busbw = size / median / 1e3 * busbw_factor(op, comm.size)
        rows.append(
            {"op": op, "bytes": size, "who": name, "samples_us": samples, "wrong": wrong[name]}
        )
        if comm.rank == 0:
            print(
                f"{op:15s} {size >> 10:8d} KiB  {name:12s} {median:9.1f} us  busbw {busbw:7.1f}"
                f"  ratio {base / median:5.2f}  wrong {wrong[name]}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    sys.exit(main())

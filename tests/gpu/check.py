"""One rank of the GPU conformance run: every collective on GPU tensors against the CPU twin, byte
for byte.

    braid run -n 4 tests/gpu/check.py [--quick]
    BRAID_GPU_RDMA=on BRAID_GPU_RDMA_SHARE=20 BRAID_GPU_LINES=0 BRAID_GPU_DIRECT=0 \\
        braid run -n 2 tests/gpu/check.py --large    a part of large messages through libfabric

Needs torch. Ranks share a GPU when there are fewer GPUs than ranks. Rank 0 prints one line per
group of cases; the exit code is 1 when one byte differs.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import braid

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]


class Check:
    def __init__(self, comm: braid.Comm, gpu: torch.device) -> None:
        self.comm = comm
        self.gpu = gpu
        self.wrong = 0
        self.done = 0
        self.seed = 0

    def random(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Position- and rank-dependent bytes; every bit pattern of integers, plain floats."""
        self.seed += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.comm.rank)
        if dtype in WHOLE:
            raw = torch.randint(
                0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator
            )
            return raw.view(dtype)
        return torch.randn(count, generator=generator, dtype=torch.float32).to(dtype)

    def same(self, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        self.done += 1
        a = got.cpu().contiguous().view(torch.uint8)
        b = want.contiguous().view(torch.uint8)
        if a.shape == b.shape and torch.equal(a, b):
            return
        self.wrong += 1
        if self.wrong <= 5:
            bad = (a != b).nonzero().flatten() if a.shape == b.shape else []
            first = int(bad[0]) if len(bad) else -1
            print(
                f"rank {self.comm.rank}: WRONG {what}: {len(bad)}/{b.numel()} bytes from {first}",
                flush=True,
            )

    def on_gpu(self, host: torch.Tensor, shift: int = 0) -> torch.Tensor:
        """A copy on the GPU that begins `shift` elements into its allocation."""
        whole = torch.empty(host.numel() + shift, dtype=host.dtype, device=self.gpu)
        part = whole[shift:]
        part.copy_(host)
        return part

    def all_ops(self, count: int, dtype: torch.dtype, op: str, shift: int) -> None:
        comm, n = self.comm, self.comm.size
        what = f"{count} x {dtype} {op} shift {shift}"
        one = self.random(count, dtype)
        many = self.random(count * n, dtype)
        if dtype in FLOATS or dtype in WHOLE or dtype in NARROW:
            want = comm.all_reduce(one.clone(), op)
            self.same(
                "all_reduce in place " + what, comm.all_reduce(self.on_gpu(one, shift), op), want
            )
            out = torch.empty(count, dtype=dtype, device=self.gpu)
            self.same(
                "all_reduce " + what, comm.all_reduce(self.on_gpu(one, shift), op, out=out), want
            )
            want = comm.reduce_scatter(many, op)
            self.same(
                "reduce_scatter " + what, comm.reduce_scatter(self.on_gpu(many, shift), op), want
            )
        self.same(
            "all_gather " + what, comm.all_gather(self.on_gpu(one, shift)), comm.all_gather(one)
        )
        self.same(
            "all_to_all " + what, comm.all_to_all(self.on_gpu(many, shift)), comm.all_to_all(many)
        )
        buf = self.on_gpu(many, shift)
        self.same(
            "all_to_all in place " + what, comm.all_to_all(buf, out=buf), comm.all_to_all(many)
        )
        root = count % n
        self.same(
            "broadcast " + what,
            comm.broadcast(self.on_gpu(one, shift), root),
            comm.broadcast(one.clone(), root),
        )
        out = torch.empty(count * n, dtype=dtype, device=self.gpu)
        mine = out[comm.rank * count : (comm.rank + 1) * count]
        mine.copy_(one)
        self.same(
            "all_gather in place " + what, comm.all_gather(mine, out=out), comm.all_gather(one)
        )

    def all_sizes(self, sizes: list[int], dtype: torch.dtype, op: str) -> None:
        for size in sizes:
            for shift in (0, 1):
                self.all_ops(size, dtype, op, shift)

    def registered(self, count: int, dtype: torch.dtype) -> None:
        comm, n = self.comm, self.comm.size
        one, many = self.random(count, dtype), self.random(count * n, dtype)
        out = comm.register(torch.empty(count * n, dtype=dtype, device=self.gpu))
        for share in (0.0, 0.3, 1.0):
            for op in ("all_gather", "all_to_all", "reduce_scatter", "all_reduce", "broadcast"):
                comm._force_host_share(self.gpu.index, op, share)
            what = f"registered, host share {share}, {count} x {dtype}"
            out.fill_(1)
            self.same(
                "all_gather " + what,
                comm.all_gather(self.on_gpu(one), out=out),
                comm.all_gather(one),
            )
            out.fill_(1)
            self.same(
                "all_to_all " + what,
                comm.all_to_all(self.on_gpu(many), out=out),
                comm.all_to_all(many),
            )
            part = out[:count]
            self.same(
                "all_reduce registered",
                comm.all_reduce(self.on_gpu(one), out=part),
                comm.all_reduce(one.clone()),
            )
            self.same(
                "all_gather from a skewed address " + what,
                comm.all_gather(self.on_gpu(one, 1), out=out),
                comm.all_gather(one),
            )
            self.same(
                "all_to_all to a skewed address " + what,
                comm.all_to_all(self.on_gpu(many), out=self.on_gpu(many, 3)),
                comm.all_to_all(many),
            )
            part.copy_(one)
            self.same(
                "all_reduce registered in place",
                comm.all_reduce(part),
                comm.all_reduce(one.clone()),
            )
            part.copy_(one)
            self.same(
                "broadcast registered",
                comm.broadcast(part, n - 1),
                comm.broadcast(one.clone(), n - 1),
            )
            self.same(
                "reduce_scatter " + what,
                comm.reduce_scatter(self.on_gpu(many)),
                comm.reduce_scatter(many),
            )
        comm.unregister(out)

    def counts(self, most: int, seed: int) -> list[list[int]]:
        """[from][to], the same on all ranks: a third of them 0."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.comm.size, self.comm.size)
        drawn = torch.randint(-most // 2, most + 1, shape, generator=generator)
        return [[max(0, int(count)) for count in row] for row in drawn]

    def uneven(self, most: int, dtype: torch.dtype, seed: int) -> None:
        comm, rank = self.comm, self.comm.rank
        table = self.counts(most, seed)
        sent, received = table[rank], [row[rank] for row in table]
        many = self.random(sum(sent), dtype)
        want = comm.all_to_all(many, None, sent, received)
        for shift in (0, 1, 3):
            what = f"uneven all_to_all up to {most} x {dtype} shift {shift}"
            out = self.on_gpu(torch.zeros(sum(received), dtype=dtype), shift)
            self.same(what, comm.all_to_all(self.on_gpu(many, shift), out, sent, received), want)
        self.same(what + " told", comm.all_to_all(self.on_gpu(many), None, sent), want)

    def all_uneven(self, quick: bool) -> None:
        sizes = [1, 7, 1000, 70_001, 1_000_003] + ([] if quick else [6_000_000, 40_000_000])
        for seed, most in enumerate(sizes):
            for dtype in (torch.bfloat16, torch.float64, torch.int8):
                self.uneven(most, dtype, seed)
        for share in (0.0, 0.3, 1.0):
            self.comm._force_host_share(self.gpu.index, "all_to_all", share)
            self.uneven(8_000_000, torch.float32, 50)
        self.comm._force_host_share(self.gpu.index, "all_to_all", None)

    def graph_uneven(self, most: int) -> None:
        comm, rank = self.comm, self.comm.rank
        table = self.counts(most, 99)
        sent, received = table[rank], [row[rank] for row in table]
        buf = torch.zeros(sum(sent), device=self.gpu)
        out = torch.zeros(sum(received), device=self.gpu)
        comm.all_to_all(buf, out, sent, received)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.all_to_all(buf, out, sent, received)
        for _ in range(5):
            many = self.random(sum(sent), torch.float32)
            buf.copy_(many)
            graph.replay()
            self.same(f"graph uneven {most}", out, comm.all_to_all(many, None, sent, received))

    def graph(self, count: int) -> None:
        """Capture once, replay with new data each time."""
        comm = self.comm
        buf = torch.zeros(count, device=self.gpu)
        comm.all_reduce(buf)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.all_reduce(buf)
        for _ in range(5):
            one = self.random(count, torch.float32)
            buf.copy_(one)
            graph.replay()
            self.same(f"graph all_reduce {count}", buf, comm.all_reduce(one.clone()))

    def graph_gather(self, count: int) -> None:
        """The same for an all_gather, whose proxy no replay tells anything."""
        comm = self.comm
        buf = torch.zeros(count, device=self.gpu)
        out = torch.zeros(count * comm.size, device=self.gpu)
        comm.all_gather(buf, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.all_gather(buf, out=out)
        for _ in range(5):
            one = self.random(count, torch.float32)
            buf.copy_(one)
            graph.replay()
            self.same(f"graph all_gather {count}", out, comm.all_gather(one))

    def root_ahead(self) -> None:
        """The root of a small broadcast waits for nobody: it is through before the others call."""
        comm = self.comm
        for turn, count in enumerate((1, 1000, 1000, 20_000, 7, 3000, 16_000, 2)):
            root = turn // 2 % comm.size
            one = self.random(count, torch.float32)
            want = comm.broadcast(one.clone(), root)
            tensor = self.on_gpu(one)
            if comm.rank == root:
                comm.broadcast(tensor, root)
                torch.cuda.synchronize()
            comm.barrier()  # of the hosts
            if comm.rank != root:
                comm.broadcast(tensor, root)
            self.same(f"root ahead, turn {turn}", tensor, want)
            if turn % 3 == 2:  # what comes next is of another kind
                self.all_ops(100 * turn, torch.float32, "sum", 0)

    def broadcasts(self, *sizes: int) -> None:
        """From every root, on the grid of vectors and not, up to several direct kernels in a row:
        every byte tells its place and its root, and bytes beside stay as they are.
        """
        for size in sizes:
            place = torch.arange(size, device=self.gpu)
            place = place * 7 + place // 251
            for root, shift in ((r, s) for r in range(self.comm.size) for s in (0, 3)):
                want = ((place + 101 * root) & 255).to(torch.uint8)
                around = torch.zeros(size + 16, dtype=torch.uint8, device=self.gpu)
                tensor = around[shift : shift + size]
                if self.comm.rank == root:
                    tensor.copy_(want)
                self.comm.broadcast(tensor, root)
                self.done += 1
                beside = int(around[:shift].sum()) + int(around[shift + size :].sum())
                if beside or not torch.equal(tensor, want):
                    self.wrong += 1
                    print(
                        f"rank {self.comm.rank}: WRONG broadcast of {size} from {root}", flush=True
                    )

    def rdma(self) -> None:
        """Where a NIC must carry a part, it did."""
        told = self.comm.health()["gpu"]["rdma"]
        if self.comm.rank == 0:
            print(f"rdma: {told['how']}, {told['sent_slots']} slots sent", flush=True)
        if os.environ.get("BRAID_GPU_RDMA") == "on" and told["sent_slots"] == 0:
            self.wrong += 1

    def streams(self) -> None:
        """Calls on two streams of one comm are ordered among each other."""
        one = self.random(300_000, torch.float32)
        want = self.comm.all_reduce(one.clone())
        tensors = [self.on_gpu(one) for _ in range(6)]
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        for i, tensor in enumerate(tensors):
            self.comm.all_reduce(tensor, stream=side if i % 2 else None)
        torch.cuda.synchronize()
        for tensor in tensors:
            self.same("two streams", tensor, want)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="for compute-sanitizer: small shapes")
    parser.add_argument("--large", action="store_true", help="only shapes that use every link")
    args = parser.parse_args()
    quick = args.quick
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    with braid.init(tune=False, progress=False) as comm:
        check = Check(comm, gpu)

        def group(name: str, body: Callable[..., None], *args: Any) -> None:
            begin = time.monotonic()
            body(*args)
            took_s = time.monotonic() - begin
            if comm.rank == 0:
                print(
                    f"{name}: {check.done} cases, {check.wrong} wrong, {took_s:.1f} s", flush=True
                )

        if args.tiny:
            for dtype in (torch.bfloat16, torch.float32, torch.int8):
                group(f"tiny {dtype}", check.all_sizes, [0, 1, 1000, 30_001], dtype, "sum")
            group("tiny registered", check.registered, 200_000, torch.float32)
            return 1 if check.wrong else 0
        if args.large:
            for count in (5_000_000, 8_000_000):
                group(f"large {count}", check.all_ops, count, torch.bfloat16, "sum", 0)
                group(f"registered {count}", check.registered, count, torch.float32)
            group("graph all_gather", check.graph_gather, 4_000_000)
            group("rdma", check.rdma)
            return 1 if check.wrong else 0
        sizes = [0, 1, 3, 1000, 4097, 70_001]
        if not quick:
            sizes += [17, 1_000_003]
        for dtype in FLOATS + WHOLE + NARROW:
            for op in ("sum",) if quick else ("sum", "avg", "min", "max", "prod"):
                group(f"{dtype} {op}", check.all_sizes, sizes, dtype, op)
        for dtype in (torch.bfloat16, torch.float32, torch.int8):
            group(f"middle {dtype}", check.all_sizes, [262_144, 1_000_000, 1_000_003], dtype, "sum")
        for count in (5_000_000, 25_000_003) if quick else (5_000_000, 40_000_000):
            group(f"large {count}", check.all_ops, count, torch.bfloat16, "sum", 0)
            group(f"registered {count}", check.registered, count, torch.float32)
        for count in (24_000_000, 38_000_000):  # not registered: direct kernels in a row
            group(f"pieces {count}", check.all_ops, count, torch.bfloat16, "sum", 0)
        group("uneven", check.all_uneven, quick)
        group("streams", check.streams)
        group("root ahead", check.root_ahead)
        group("broadcasts", check.broadcasts, 6_000_001, 20_000_000, 64 << 20, 200_000_003)
        for count in (1000, 500_000, 3_000_000, 12_000_000):
            group(f"graph {count}", check.graph, count)
        for count in (1000, 12_000_000):
            group(f"graph uneven {count}", check.graph_uneven, count)
        if comm.rank == 0:
            print(
                f"gpu check: {comm.size} ranks: {check.done} cases, {check.wrong} wrong", flush=True
            )
        return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

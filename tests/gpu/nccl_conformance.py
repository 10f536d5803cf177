"""One rank of the drop-in's conformance run: torch.distributed over NCCL's names, all exact.

    LD_PRELOAD=python/braid/libbraid-nccl.so python -m torch.distributed.run --nproc-per-node 4 \
        tests/gpu/nccl_conformance.py [--quick] [--time] [--only NAME,...]

Data are small whole numbers, so that every order of adding gives the same bits. Rank 0 prints one
line per section: how many results were compared, and how many calls were taken over and handed on.
The exit code is 1 when one element differs, or when a section's calls went where they should not.

Where there are fewer GPUs than ranks they share them, and to NCCL each is a host of its own, by
sockets (NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1).

--time compares all_reduce with NCCL's in one process: a second group is made with the drop-in told
to stay out of it, and samples of both alternate.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv"]
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
]
REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class Shim:
    """The drop-in's own functions; without it nothing is ever taken over."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libnccl.so.2")
            self.counts_of = self.library.braid_nccl_counts
        except (OSError, AttributeError):
            self.library = None

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        taken, handed_on = (ctypes.c_uint64 * len(OPS))(), (ctypes.c_uint64 * len(OPS))()
        if self.library:
            self.counts_of(taken, handed_on, ctypes.c_size_t(len(OPS)))
        return dict(zip(OPS, taken, strict=True)), dict(zip(OPS, handed_on, strict=True))

    def take_over(self, on: bool) -> None:
        if self.library:
            self.library.braid_nccl_take_over(ctypes.c_int(on))


class Check:
    def __init__(self, shim: Shim, quick: bool) -> None:
        self.shim = shim
        self.quick = quick
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.gpu = torch.device("cuda", torch.cuda.current_device())
        self.done = self.wrong = 0
        self.failed = False
        # In a race NCCL may win any call, so none is expected to be taken over.
        is_raced = os.environ.get("BRAID_TUNE") != "off" and not os.environ.get("BRAID_NCCL_OPS")
        is_there = shim.library is not None and os.environ.get("BRAID_NCCL") != "off"
        self.expects_shim = is_there and not is_raced

    # ---- data ----

    def data(self, rank: int, count: int, dtype: torch.dtype, op: str = "sum") -> torch.Tensor:
        """What `rank` sends: any rank can make it again."""
        i = torch.arange(count, device=self.gpu, dtype=torch.int64)
        if op == "prod":
            return (1 + (i * 7 + rank * 3) % 2).to(dtype)
        if op == "avg":  # the sum divides by the number of ranks
            return ((i * 5 + rank) % 2 * self.size).to(dtype)
        return ((i * 7 + rank * 3 + i // 1024) % 5).to(dtype)

    def reduced(self, ranks: list[int], count: int, dtype: torch.dtype, op: str) -> torch.Tensor:
        exact = torch.float64 if dtype.is_floating_point else torch.int64
        total = self.data(ranks[0], count, dtype, op).to(exact)
        for rank in ranks[1:]:
            other = self.data(rank, count, dtype, op).to(exact)
            if op == "prod":
                total *= other
            elif op == "min":
                total = torch.minimum(total, other)
            elif op == "max":
                total = torch.maximum(total, other)
            else:
                total += other
        if op == "avg":
            total = total / len(ranks) if dtype.is_floating_point else total // len(ranks)
        return total.to(dtype)

    def place(self, tensor: torch.Tensor, shift: int) -> torch.Tensor:
        """A copy that begins `shift` elements into its allocation."""
        whole = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device=self.gpu)
        whole[shift:].copy_(tensor)
        return whole[shift:]

    def same(self, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        self.done += 1
        if torch.equal(got, want):
            return
        self.wrong += 1
        if self.wrong <= 5:
            bad = (got != want).nonzero().flatten()
            first = int(bad[0]) if bad.numel() else -1
            print(
                f"rank {self.rank}: WRONG {what}: {bad.numel()} of {want.numel()}, first {first}: "
                f"{got.flatten()[first].item()} for {want.flatten()[first].item()}",
                flush=True,
            )

    # ---- operations ----

    def reductions(self, count: int, dtype: torch.dtype, op: str, shift: int, group=None) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        n, me = len(ranks), dist.get_rank(group)
        what = f"{count} x {dtype} {op} shift {shift}"
        mine = self.data(self.rank, count, dtype, op)
        t = self.place(mine, shift)
        dist.all_reduce(t, REDOPS[op], group=group)
        self.same("all_reduce " + what, t, self.reduced(ranks, count, dtype, op))
        many = self.place(self.data(self.rank, count * n, dtype, op), shift)
        want = self.reduced(ranks, count * n, dtype, op)[me * count : (me + 1) * count]
        out = torch.empty(count, dtype=dtype, device=self.gpu)
        dist.reduce_scatter_tensor(out, many, REDOPS[op], group=group)
        self.same("reduce_scatter " + what, out, want)
        own = many[me * count : (me + 1) * count]
        dist.reduce_scatter_tensor(own, many, REDOPS[op], group=group)
        self.same("reduce_scatter in place " + what, own, want)

    def copies(self, count: int, dtype: torch.dtype, shift: int, group=None) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        n, me = len(ranks), dist.get_rank(group)
        what = f"{count} x {dtype} shift {shift}"
        mine = self.place(self.data(self.rank, count, dtype), shift)
        gathered = torch.cat([self.data(r, count, dtype) for r in ranks])
        out = torch.empty(count * n, dtype=dtype, device=self.gpu)
        dist.all_gather_into_tensor(out, mine, group=group)
        self.same("all_gather " + what, out, gathered)
        out = torch.empty(count * n, dtype=dtype, device=self.gpu)
        own = out[me * count : (me + 1) * count]
        own.copy_(mine)
        dist.all_gather_into_tensor(out, own, group=group)
        self.same("all_gather in place " + what, out, gathered)
        root = ranks[count % n]
        t = mine.clone()
        dist.broadcast(t, root, group=group)
        self.same("broadcast " + what, t, self.data(root, count, dtype))
        many = self.place(self.data(self.rank, count * n, dtype), shift)
        out = torch.empty(count * n, dtype=dtype, device=self.gpu)
        dist.all_to_all_single(out, many, group=group)
        blocks = [self.data(r, count * n, dtype)[me * count : (me + 1) * count] for r in ranks]
        self.same("all_to_all " + what, out, torch.cat(blocks))

    # ---- sections ----

    def small(self) -> None:
        for dtype in DTYPES:
            for op in REDOPS:
                if op == "avg" and self.size & (self.size - 1):
                    continue  # no power of two: NCCL and braid may round apart
                for count in (1, 3, 127, 4097):
                    self.reductions(count, dtype, op, count % 2)
            for count in (1, 3, 127, 4097):
                self.copies(count, dtype, count % 2)

    def middle(self) -> None:
        for count in (65_537, 1 << 20, (1 << 20) + 3):
            for dtype in (torch.float32, torch.bfloat16, torch.int8):
                self.reductions(count, dtype, "sum", 0)
                self.copies(count, dtype, 1)

    def large(self) -> None:
        for count in ((16 << 20) + 5, (32 if self.quick else 128) << 20):
            self.reductions(count, torch.bfloat16, "sum", 0)
            self.copies(count // self.size + 1, torch.bfloat16, 0)
            torch.cuda.empty_cache()

    def empty(self) -> None:
        t = torch.empty(0, device=self.gpu)
        dist.all_reduce(t)
        self.same("all_reduce of nothing", t, torch.empty(0, device=self.gpu))

    def streams(self) -> None:
        """Work before the call is waited for, work behind it waits."""
        count = 8 << 20
        side = torch.cuda.Stream()
        for step in range(6):
            with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
                t = torch.zeros(count, device=self.gpu)
                torch.cuda._sleep(2_000_000 * (1 + self.rank))
                t += self.rank + step
                work = dist.all_reduce(t, async_op=True)
                ahead = torch.ones(1 << 20, device=self.gpu) * step
                work.wait()
                t += ahead[0]
                want = sum(range(self.size)) + self.size * step + step
                self.same(f"stream step {step}", t, torch.full_like(t, want))

    def ahead(self) -> None:
        """The root of a small broadcast waits for nobody: it is through before the others call, as
        with NCCL. PyTorch's tests of models that differ among ranks rest on that.
        """
        store = dist.distributed_c10d._get_default_store()
        for turn, count in enumerate((1, 5000, 5000, 700, 20_000, 3)):
            root, told = turn // 2 % self.size, f"root {turn} is through"
            t = self.data(self.rank, count, torch.float32)
            if self.rank == root:
                dist.broadcast(t, root)
                torch.cuda.synchronize()
                store.set(told, "")
            else:
                store.wait([told], timedelta(seconds=20))
                dist.broadcast(t, root)
            self.same(f"broadcast of a root ahead {turn}", t, self.data(root, count, torch.float32))
            if turn % 3 == 2:  # what comes next is of another kind
                self.reductions(100 * turn, torch.float32, "sum", 0)
                self.copies(100 * turn, torch.float32, 0)

    def graphs(self) -> None:
        for count in (64, 40_000, 6 << 20):
            self.graph_of(count)

    def graph_of(self, count: int) -> None:
        """Eager first, as users warm up; then one graph of all ops, replayed with new inputs."""
        n, me = self.size, self.rank
        inp = torch.zeros(count * n, device=self.gpu)
        red, cast = torch.empty_like(inp), torch.empty(count, device=self.gpu)
        out, part = torch.empty_like(inp), torch.empty(count, device=self.gpu)
        swap = torch.empty_like(inp)

        def step() -> None:
            red.copy_(inp)
            dist.all_reduce(red)
            dist.all_gather_into_tensor(out, inp[:count])
            dist.reduce_scatter_tensor(part, inp)
            cast.copy_(inp[:count])
            dist.broadcast(cast, 1)
            dist.all_to_all_single(swap, inp)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for replay in range(5):
            each = [self.data(r + replay, count * n, torch.float32) for r in range(n)]
            inp.copy_(each[me])
            graph.replay()
            what = f"graph of {count}, replay {replay}"
            self.same("all_reduce " + what, red, sum(each))
            self.same("all_gather " + what, out, torch.cat([e[:count] for e in each]))
            self.same("reduce_scatter " + what, part, sum(each)[me * count :][:count])
            self.same("broadcast " + what, cast, each[1][:count])
            swapped = torch.cat([e[me * count :][:count] for e in each])
            self.same("all_to_all " + what, swap, swapped)
        torch.cuda.synchronize()

    def groups(self) -> None:
        """Several calls in one ncclGroupStart/End, of one kind and of two."""
        tensors = [self.data(self.rank, 1000 * (i + 1), torch.float32) for i in range(5)]
        with dist._coalescing_manager(device=self.gpu, async_ops=True) as manager:
            for t in tensors:
                dist.all_reduce(t)
        manager.wait()
        everyone = list(range(self.size))
        for i, t in enumerate(tensors):
            want = self.reduced(everyone, 1000 * (i + 1), torch.float32, "sum")
            self.same(f"grouped all_reduce {i}", t, want)
        outs = [torch.empty(500 * self.size, device=self.gpu) for _ in range(3)]
        with dist._coalescing_manager(device=self.gpu, async_ops=True) as manager:
            for i, out in enumerate(outs):
                dist.all_gather_into_tensor(out, self.data(self.rank + i, 500, torch.float32))
        manager.wait()
        for i, out in enumerate(outs):
            want = torch.cat([self.data(r + i, 500, torch.float32) for r in everyone])
            self.same(f"grouped all_gather {i}", out, want)
        # Lists of unequal tensors are a group of broadcasts or of reductions to one rank.
        sizes = [100 + 50 * r for r in everyone]
        parts = [torch.empty(s, device=self.gpu) for s in sizes]
        dist.all_gather(parts, self.data(self.rank, sizes[self.rank], torch.float32))
        for r, part in enumerate(parts):
            self.same(f"all_gather of unequal {r}", part, self.data(r, sizes[r], torch.float32))

    def handed_on(self) -> None:
        """What NCCL does itself."""
        n, me = self.size, self.rank
        t = self.data(me, 1000, torch.float32)
        dist.reduce(t, 0)
        if me == 0:
            self.same("reduce", t, self.reduced(list(range(n)), 1000, torch.float32, "sum"))
        right, left = (me + 1) % n, (me - 1) % n
        got = torch.empty(1000, device=self.gpu)
        swaps = [
            dist.P2POp(dist.isend, self.data(me, 1000, torch.float32), right),
            dist.P2POp(dist.irecv, got, left),
        ]
        for work in dist.batch_isend_irecv(swaps):
            work.wait()
        self.same("ring of sends", got, self.data(left, 1000, torch.float32))
        sent = [self.data(me, 10 + r + me, torch.float32) for r in range(n)]
        received = [torch.empty(10 + r + me, device=self.gpu) for r in range(n)]
        dist.all_to_all(received, sent)
        for r in range(n):
            self.same(
                f"unequal all_to_all {r}", received[r], self.data(r, 10 + r + me, torch.float32)
            )
        premul = dist._make_nccl_premul_sum(2.0)
        t = self.data(me, 1000, torch.float32)
        dist.all_reduce(t, premul)
        want = 2 * self.reduced(list(range(n)), 1000, torch.float32, "sum")
        self.same("all_reduce with a factor", t, want)

    def communicators(self) -> None:
        """Groups of all ranks, of halves, and of one; used in turn, made and destroyed."""
        halves = [list(range(0, self.size, 2)), list(range(1, self.size, 2))]
        for _ in range(2):
            whole = dist.new_group(list(range(self.size)))
            half = [dist.new_group(ranks) for ranks in halves]
            mine = half[self.rank % 2]
            for count in (5, 30_000, 3 << 20):
                self.reductions(count, torch.float32, "sum", 0, group=whole)
                self.reductions(count, torch.float32, "max", 0, group=mine)
                self.copies(count, torch.float32, 0, group=mine)
                self.copies(count, torch.float32, 0, group=whole)
            torch.cuda.synchronize()
            dist.destroy_process_group(mine)
            dist.destroy_process_group(whole)

    def abort(self) -> None:
        """A call that nobody else comes to is given up when its communicator is aborted."""
        group = dist.new_group(list(range(self.size)))
        # Each of them once with all ranks: at its first call NCCL connects and braid races, on the
        # host, and both wait there.
        counts = (4, 1 << 20, (32 if self.size < 5 else 8) << 20)
        for count in counts:
            dist.all_reduce(torch.zeros(count, device=self.gpu), group=group)
        self.reductions(1 << 20, torch.float32, "sum", 0, group=group)
        torch.cuda.synchronize()
        dist.barrier()
        if self.rank == 0:
            for count in counts:
                dist.all_reduce(torch.zeros(count, device=self.gpu), group=group, async_op=True)
            time.sleep(1)
        else:
            time.sleep(3)
        began = time.monotonic()
        dist.distributed_c10d._abort_process_group(group)
        torch.cuda.synchronize()
        took = torch.tensor([time.monotonic() - began < 20])
        self.same("abort in time", took, torch.ones_like(took))
        self.reductions(1 << 20, torch.float32, "sum", 0)  # the others go on

    # ---- running ----

    def section(self, name: str, body: Callable[[], None], *, all_ours: bool = False) -> None:
        began, before = time.monotonic(), self.shim.counts()
        done, wrong = self.done, self.wrong
        body()
        torch.cuda.synchronize()
        after = self.shim.counts()
        taken, handed = (
            {op: b[op] - a[op] for op in OPS if b[op] != a[op]}
            for a, b in zip(before, after, strict=True)
        )
        right = not all_ours or not self.expects_shim or (sum(taken.values()) > 0 and not handed)
        verdict = torch.tensor([self.wrong - wrong, 0 if right else 1], device=self.gpu)
        dist.all_reduce(verdict)
        self.failed = self.failed or bool(verdict.sum())
        if self.rank == 0:
            print(
                f"{name}: {self.done - done} results, {int(verdict[0])} wrong on all ranks, "
                f"{time.monotonic() - began:.1f} s; taken over {taken or 'nothing'}, "
                f"handed on {handed or 'nothing'}{'' if right else ': NOT WHERE THEY SHOULD GO'}",
                flush=True,
            )


def sections(check: Check) -> dict[str, tuple[Callable[[], None], bool]]:
    """Name, body, and whether every call of it must be taken over."""
    takes_all_sizes = check.size < 3 or "," in os.environ.get("BRAID_NCCL_OPS", "")
    return {
        "small": (check.small, True),
        "empty": (check.empty, False),
        "middle": (check.middle, True),
        "large": (check.large, takes_all_sizes),
        "streams": (check.streams, True),
        "ahead": (check.ahead, True),
        "graphs": (check.graphs, takes_all_sizes),
        "groups": (check.groups, False),
        "handed_on": (check.handed_on, False),
        "communicators": (check.communicators, False),
        "abort": (check.abort, False),
    }


def time_one(tensor: torch.Tensor, group: dist.ProcessGroup, calls: int) -> float:
    """Microseconds of one all_reduce, the slowest rank's."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    end.record()
    end.synchronize()
    took = torch.tensor([begin.elapsed_time(end) * 1000 / calls], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def time_against_nccl(shim: Shim, samples: int) -> None:
    everyone = list(range(dist.get_world_size()))
    shim.take_over(False)
    theirs = dist.new_group(everyone)
    one = torch.zeros(1, device="cuda")
    dist.all_reduce(one, group=theirs)  # made here, while we stay out
    torch.cuda.synchronize()
    shim.take_over(True)
    ours = dist.new_group(everyone)
    dist.all_reduce(one, group=ours)
    for size in (
        8 << 10,
        128 << 10,
        1 << 20,
        8 << 20,
        64 << 20,
        128 << 20,
        256 << 20,
        512 << 20,
        1 << 30,
    ):
        tensor = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        calls = 20 if size <= 8 << 20 else 3
        for group in (theirs, ours):
            time_one(tensor, group, calls)
        times: dict[str, list[float]] = {"nccl": [], "braid": []}
        for sample in range(samples):
            pair = [("nccl", theirs), ("braid", ours)]
            for name, group in pair if sample % 2 else pair[::-1]:
                times[name].append(time_one(tensor, group, calls))
        nccl, braid = (statistics.median(times[name]) for name in ("nccl", "braid"))
        if dist.get_rank() == 0:
            print(
                f"all_reduce {size >> 10:8d} KiB: NCCL {nccl:9.1f} us, braid {braid:9.1f} us, "
                f"{nccl / braid:.3f}x",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rank, num_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    torch.cuda.set_device(rank % num_gpus)
    if int(os.environ["WORLD_SIZE"]) > num_gpus:
        os.environ["NCCL_HOSTID"] = f"rank {rank}"
    dist.init_process_group("nccl")
    shim = Shim()
    if dist.get_rank() == 0:
        print(
            f"drop-in {'loaded' if shim.library else 'missing'}, NCCL {torch.cuda.nccl.version()}"
        )
    check = Check(shim, args.quick)
    if args.time:
        time_against_nccl(shim, args.samples)
    else:
        one = torch.ones(1, device="cuda")
        dist.all_reduce(one)  # sets the communicator up, outside of any section's time
        chosen = [name for name in args.only.split(",") if name] or list(sections(check))
        for name in chosen:
            body, all_ours = sections(check)[name]
            check.section(name, body, all_ours=all_ours)
    dist.destroy_process_group()
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())

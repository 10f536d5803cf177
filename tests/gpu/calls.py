"""One rank of a run of what braid.Comm does on GPU tensors, against the same calls between CPUs,
byte for byte: the five collectives by addresses and through DLPack, calls with a root, uneven
blocks, handles, messages.

    braid run -n 4 tests/gpu/calls.py

Needs torch. Ranks share a GPU when there are fewer GPUs than ranks. Rank 0 prints one line; the
exit code is 1 when one byte differs.
"""

import sys
import time

import torch

import braid

COUNTS = (1, 1000, 70_001, 6_000_011)
DTYPES = (torch.float32, torch.bfloat16, torch.int32)


class Odd(torch.Tensor):
    """No plain tensor: it goes through DLPack."""


class Calls:
    def __init__(self, comm: braid.Comm, gpu: torch.device) -> None:
        self.comm, self.gpu = comm, gpu
        self.done = self.wrong = 0

    def data(self, rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(77 + rank)
        return torch.randn(count, generator=generator).mul(100).to(dtype)

    def same(self, what: str, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
        self.done += 1
        if got is None or want is None:
            is_same = got is want
        else:
            torch.cuda.synchronize(self.gpu)
            is_same = torch.equal(got.cpu().view(torch.uint8), want.cpu().view(torch.uint8))
        if not is_same:
            self.wrong += 1
            print(f"rank {self.comm.rank}: WRONG {what}", flush=True)

    def even(self, count: int, dtype: torch.dtype) -> None:
        """By addresses on all ranks, through DLPack on all, and on every other rank."""
        comm, n, r = self.comm, self.comm.size, self.comm.rank
        one, many = self.data(r, count, dtype), self.data(r, count * n, dtype)
        made = {
            "all_gather": lambda a, _: comm.all_gather(a),
            "all_reduce": lambda a, _: comm.all_reduce(a.clone()),
            "reduce_scatter": lambda _, b: comm.reduce_scatter(b),
            "all_to_all": lambda _, b: comm.all_to_all(b),
            "broadcast": lambda a, _: comm.broadcast(a.clone(), n - 1),
        }
        into = {
            "all_gather": lambda a, b: comm.all_gather(a, torch.empty_like(b)),
            "all_reduce": lambda a, _: comm.all_reduce(a, "max", torch.empty_like(a)),
            "reduce_scatter": lambda a, b: comm.reduce_scatter(b, "min", torch.empty_like(a)),
            "all_to_all": lambda _, b: comm.all_to_all(b, torch.empty_like(b)),
        }
        for calls in (made, into):
            wants = {name: call(one, many) for name, call in calls.items()}
            for kinds in ((torch.Tensor,), (Odd,), (torch.Tensor, Odd)):
                a, b = (t.to(self.gpu).as_subclass(kinds[r % len(kinds)]) for t in (one, many))
                for name, call in calls.items():
                    got = call(a, b).as_subclass(torch.Tensor)
                    self.same(f"{name} {count} x {dtype} {kinds}", got, wants[name])

    def rooted(self, count: int, dtype: torch.dtype) -> None:
        comm, n, r = self.comm, self.comm.size, self.comm.rank
        what = f"{count} x {dtype}"
        one, many = self.data(r, count, dtype), self.data(r, count * n, dtype)
        for root in {0, n - 1}:
            want = comm.reduce(one.clone(), "sum", root)
            self.same(f"reduce {what}", comm.reduce(one.to(self.gpu), "sum", root), want)
            self.same(f"gather {what}", comm.gather(one.to(self.gpu), root), comm.gather(one, root))
            sent = many if r == root else None
            want = comm.scatter(sent, torch.empty(count, dtype=dtype), root)
            out = torch.empty(count, dtype=dtype, device=self.gpu)
            got = comm.scatter(None if sent is None else sent.to(self.gpu), out, root)
            self.same(f"scatter {what}", got, want)

    def uneven(self, count: int, dtype: torch.dtype) -> None:
        comm, n, r = self.comm, self.comm.size, self.comm.rank
        counts = [0 if i == 1 else count // (i + 1) for i in range(n)]
        mine, whole = self.data(r, counts[r], dtype), self.data(r, sum(counts), dtype)
        what = f"{counts} x {dtype}"
        want = comm.all_gather(mine, counts=counts)
        self.same(f"all_gather {what}", comm.all_gather(mine.to(self.gpu), counts=counts), want)
        want = comm.reduce_scatter(whole, counts=counts)
        got = comm.reduce_scatter(whole.to(self.gpu), counts=counts)
        self.same(f"reduce_scatter {what}", got, want)

    def handles(self, count: int) -> None:
        """On a stream of their own, beside other work, in any order of waiting."""
        comm = self.comm
        own = torch.cuda.Stream(self.gpu)
        works, wants = [], []
        for _ in range(5):
            one = self.data(comm.rank, count, torch.float32)
            wants.append(comm.all_reduce(one.clone()))
            buf = one.to(self.gpu)
            own.wait_stream(torch.cuda.current_stream(self.gpu))
            works.append(comm.all_reduce(buf, stream=own, async_op=True))
            torch.ones((64, 64), device=self.gpu).matmul(torch.ones((64, 64), device=self.gpu))
        for work, want in reversed(list(zip(works, wants, strict=True))):
            self.same(f"handle {count}", work.wait(60), want)
            if not work.done():
                self.same("handle is not done after wait()", None, want)

    def messages(self, count: int) -> None:
        comm, n, r = self.comm, self.comm.size, self.comm.rank
        if n == 1:
            return
        to, source = (r + 1) % n, (r - 1) % n
        want = self.data(source, count, torch.bfloat16)
        sent = comm.isend(self.data(r, count, torch.bfloat16).to(self.gpu), to)
        place = torch.empty(count, dtype=torch.bfloat16, device=self.gpu)
        self.same(f"message {count}", comm.irecv(place, source).wait(60), want)
        sent.wait(60)
        if r == 0:
            comm.send(self.data(0, count, torch.int32).to(self.gpu), 1)
        elif r == 1:  # into host memory
            place = torch.empty(count, dtype=torch.int32)
            self.same(
                f"message to the host {count}",
                comm.recv(place, 0),
                self.data(0, count, torch.int32),
            )


def main() -> int:
    start = time.monotonic()
    with braid.init(progress=False) as comm:
        gpu = torch.device("cuda", comm.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(gpu)
        calls = Calls(comm, gpu)
        for count in COUNTS:
            for dtype in DTYPES:
                if count < COUNTS[-1]:
                    calls.even(count, dtype)
                calls.rooted(count, dtype)
                calls.uneven(count, dtype)
            calls.handles(count)
            calls.messages(count)
        wrong = int(comm.all_reduce(torch.tensor([calls.wrong]))[0])
        if comm.rank == 0:
            took = time.monotonic() - start
            print(f"calls on GPUs: {calls.done} checked, {wrong} wrong, {took:.1f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""One rank of a run on memory of cuMemCreate: torch's expandable segments, which lie over many
allocations, registered, used in place, and mapped anew under a comm that still knows them.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True braid run -n 2 tests/gpu/vmm.py

Needs torch and a GPU per rank. Rank 0 prints one line per group of cases and the rates with and
without registered memory; the exit code is 1 when one byte differs.
"""

import os
import sys

import torch

import braid

MIB = 1 << 20


class Check:
    def __init__(self, comm: braid.Comm, gpu: torch.device) -> None:
        self.comm, self.gpu = comm, gpu
        self.cases = self.wrong = 0

    def mine(self, count: int, salt: int, rank: int | None = None) -> torch.Tensor:
        """Whole numbers that depend on position and rank."""
        rank = self.comm.rank if rank is None else rank
        return (torch.arange(count, device=self.gpu) * 7 + 1000 * rank + 31 * salt) % 65521

    def same(self, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        self.cases += 1
        if torch.equal(got, want):
            return
        self.wrong += 1
        first = int((got != want).nonzero()[0])
        print(f"rank {self.comm.rank}: WRONG {what}, from element {first}", flush=True)

    def gathers(self, what: str, out: torch.Tensor, count: int, salt: int) -> None:
        """An all-gather into `out`, which is spoiled before."""
        n = self.comm.size
        out.fill_(-1)
        self.comm.all_gather(self.mine(count, salt).to(out.dtype), out=out[: n * count])
        want = torch.cat([self.mine(count, salt, r).to(out.dtype) for r in range(n)])
        self.same(what, out[: n * count], want)

    def all_ops(self, what: str, whole: torch.Tensor, salt: int) -> None:
        comm, n = self.comm, self.comm.size
        for begin in (0, 3):  # the second one aligned to nothing
            part = whole[begin:]
            count = part.numel() // n
            self.gathers(f"all_gather {what} from {begin}", part, count, salt)
            sent = self.mine(n * count, salt).to(whole.dtype)
            every = [self.mine(n * count, salt, r).to(whole.dtype) for r in range(n)]
            got = comm.all_to_all(sent, out=part[: n * count])
            want = torch.cat([t.view(n, -1)[comm.rank] for t in every])
            self.same(f"all_to_all {what} from {begin}", got, want)
            part[: n * count].copy_(sent)
            got = comm.all_reduce(part[: n * count])
            self.same(f"all_reduce {what} from {begin}", got, torch.stack(every).sum(0))
            part[: n * count].copy_(sent)
            got = comm.broadcast(part[: n * count], n - 1)
            self.same(f"broadcast {what} from {begin}", got, every[n - 1])


def rate_gbps(comm: braid.Comm, out: torch.Tensor, send: torch.Tensor) -> float:
    """Of an all-gather, as bus bandwidth."""
    times_ms = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        comm.all_gather(send, out=out)
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    nbytes = send.numel() * send.element_size() * (comm.size - 1)
    return nbytes / sorted(times_ms)[5] / 1e6


def register_again(comm: braid.Comm, tensor: torch.Tensor) -> str:
    """What a second register() raises."""
    try:
        comm.register(tensor)
    except braid.Error as error:
        return type(error).__name__
    return "nothing"


def main() -> int:
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(gpu)
    with braid.init(tune=False, progress=False) as comm:
        check = Check(comm, gpu)

        def say(text: str) -> None:
            if comm.rank == 0:
                print(text, flush=True)

        # Large blocks grow the segment allocation by allocation: 20 MiB each.
        small = torch.zeros(5 * MIB, dtype=torch.float32, device=gpu)
        large = torch.zeros(70 * MIB, dtype=torch.float32, device=gpu)
        count = large.numel() // comm.size
        check.all_ops("not registered", large, 1)
        send = check.mine(count, 2).float()
        through_scratch = rate_gbps(comm, large[: count * comm.size], send)
        comm.register(large)
        comm.register(small)
        for salt in range(3):
            check.all_ops(f"registered, round {salt}", large, salt)
            check.all_ops(f"registered, small, round {salt}", small, salt)
        in_place = rate_gbps(comm, large[: count * comm.size], send)
        say(f"registered: {check.cases} cases, {check.wrong} wrong")
        say(
            f"all-gather of {count * 4 / MIB:.0f} MiB per rank: {through_scratch:.0f} GB/s through"
            f" scratch, {in_place:.0f} GB/s in registered memory"
        )
        twice = register_again(comm, large)

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            comm.all_gather(send, out=large[: count * comm.size])
        for salt in range(3):
            send.copy_(check.mine(count, salt).float())
            large.fill_(-1)
            graph.replay()
            want = torch.cat([check.mine(count, salt, r).float() for r in range(comm.size)])
            check.same(f"graph {salt}", large[: count * comm.size], want)
        del graph
        say(f"graph: {check.cases} cases, {check.wrong} wrong; registered twice: {twice}")

        # Freed under the comm, against the rule: torch unmaps the segment's memory and maps other
        # memory at the same addresses. All ranks do it, and go through scratch from then on.
        address = large.data_ptr()
        del large
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        large = torch.zeros(70 * MIB, dtype=torch.float32, device=gpu)
        is_same_place = large.data_ptr() == address
        check.all_ops("mapped anew", large, 7)
        say(
            f"mapped anew at the same address ({is_same_place}): {check.cases} cases,"
            f" {check.wrong} wrong; {comm.health()['events'][-1:]}"
        )
        if is_same_place:
            comm.unregister(large)
        comm.register(large)
        check.all_ops("registered anew", large, 8)
        comm.unregister(large)
        comm.unregister(small)
        free_before = torch.cuda.mem_get_info(gpu)[0]
        del large, small
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        given_back = (torch.cuda.mem_get_info(gpu)[0] - free_before) / MIB
        say(f"memory given back after unregister: {given_back:.0f} MiB (300 at least)")
        if given_back < 300:
            check.wrong += 1
        say(f"vmm: {comm.size} ranks: {check.cases} cases, {check.wrong} wrong")
        return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""One rank of a search for torn lines (src/coll/lines/lines.cuh): the same calls over and over,
with bytes that change in every call, each result compared on the GPU.

    braid run -n 2 tests/gpu/torn.py [--seconds 20] [--registered]
    BRAID_GPU_LINES=0 BRAID_GPU_DIRECT=0 braid run -n 4 tests/gpu/torn.py --registered    relays

A line that is seen half old shows bytes of a call before; so does memory of peers that is written
too early, where results land in place (--registered). Needs torch. Ranks share a GPU when there are
fewer GPUs than ranks. Rank 0 prints a line per operation; the exit code is 1 when one element
differs.
"""

import argparse
import time
from collections.abc import Callable

import torch

import braid

COUNTS = (20_000, 131_072, 250_001, 1_000_003, 4_000_000)


def calls(
    comm: braid.Comm, send: torch.Tensor, many: torch.Tensor
) -> dict[str, Callable[[int], torch.Tensor]]:
    """Each makes its call number k, with results in `send` or `many`, and answers how many elements
    differ, as a tensor of one.
    """
    n, rank, count = comm.size, comm.rank, send.numel()
    place = torch.arange(count, dtype=torch.int32, device=send.device)
    wide = torch.empty_like(many)

    def value(r: int, k: int) -> torch.Tensor:
        return place * (2 * r + 3) + (k * 1_000_003 + r)

    def sums(k: int) -> torch.Tensor:
        return torch.stack([value(r, k) for r in range(n)]).sum(0, dtype=torch.int32)

    def all_gather(k: int) -> torch.Tensor:
        send.copy_(value(rank, k))
        comm.all_gather(send, out=many)
        return sum((many[r * count :][:count] != value(r, k)).sum() for r in range(n))

    def all_reduce(k: int) -> torch.Tensor:
        send.copy_(value(rank, k))
        comm.all_reduce(send)
        return (send != sums(k)).sum()

    def reduce_scatter(k: int) -> torch.Tensor:
        for r in range(n):
            wide[r * count :][:count] = value(rank, k + r)
        comm.reduce_scatter(wide, out=send)
        return (send != sums(k + rank)).sum()

    def all_to_all(k: int) -> torch.Tensor:
        for r in range(n):
            wide[r * count :][:count] = value(rank, k + r)
        comm.all_to_all(wide, out=many)
        return sum((many[r * count :][:count] != value(r, k + rank)).sum() for r in range(n))

    def broadcast(k: int) -> torch.Tensor:
        send.copy_(value(rank, k))
        comm.broadcast(send, root=k % n)
        return (send != value(k % n, k)).sum()

    return {f.__name__: f for f in (all_gather, all_reduce, reduce_scatter, all_to_all, broadcast)}


def run(comm: braid.Comm, gpu: torch.device, seconds: float, *, registers: bool) -> int:
    """How many elements differed on any rank."""
    wrong = 0
    share = seconds / (len(COUNTS) * 5)
    for count in COUNTS:
        send, many = (torch.empty(k * count, dtype=torch.int32, device=gpu) for k in (1, comm.size))
        landing = [comm.register(each) for each in (send, many)] if registers else []
        for name, call in calls(comm, send, many).items():
            bad = torch.zeros(1, dtype=torch.int64, device=gpu)
            done, end = 0, time.monotonic() + share
            go_on = torch.ones(1, dtype=torch.int32)
            while go_on.item():
                for _ in range(50):
                    bad += call(done)
                    done += 1
                go_on.fill_(time.monotonic() < end)
                comm.all_reduce(go_on, "min")
            all_bad = int(comm.all_reduce(bad.cpu()).item())
            wrong += all_bad
            if comm.rank == 0:
                print(
                    f"{name} of {count} int32: {done} calls, {all_bad} elements wrong", flush=True
                )
        for each in landing:
            comm.unregister(each)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--registered", action="store_true", help="results land in place")
    asked = parser.parse_args()
    with braid.init() as comm:
        gpu = torch.device("cuda", comm.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(gpu)
        return 1 if run(comm, gpu, asked.seconds, registers=asked.registered) else 0


if __name__ == "__main__":
    raise SystemExit(main())

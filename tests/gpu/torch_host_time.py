"""What an eager call of torch.distributed costs the host, by braid and by NCCL, in turn.

    braid run -n 2 tests/gpu/torch_host_time.py [--async]
    braid run -n 2 tests/gpu/torch_host_time.py --cpu      # beside Gloo; its times mean little

A sample is the time in which the host makes some calls (of large messages four), by their number;
the GPU is not waited for but between samples. They are few enough that it never holds the host up.
The two take turns, each round begins with the other one, and a figure is the median of the slower
rank's. Rank 0 prints; the exit code is 1 when one of braid's figures up to 1 MiB is more than 1.1
times NCCL's. --async adds calls with async_op=True and their wait(); --profile shows where a call
by braid spends its time.
"""

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import braid.torch  # noqa: F401

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20}
LARGE = {"64 MiB": 64 << 20, "256 MiB": 256 << 20}
"""Calls of many copies and kernels. A GPU's queues hold a thousand; then the host waits."""
LARGE_CALLS = 4
LIMIT = 1.1
Call = Callable[[], Any]


def waited(call: Callable[..., Any]) -> None:
    """An asynchronous call whose end the current stream waits for."""
    call(async_op=True).wait()


class Calls:
    """The five collectives on one pair of buffers, made once. Sizes are as nccl-tests counts."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        count, size = nbytes // 4, dist.get_world_size()
        self.whole, self.other = (torch.zeros(count, device=device) for _ in range(2))
        self.block = torch.zeros(count // size, device=device)

    def of(self, group: Any) -> dict[str, Callable[..., Any]]:
        """By name."""
        whole, block = self.whole, self.block
        return {
            "all_reduce": partial(dist.all_reduce, whole, group=group),
            "all_gather": partial(dist.all_gather_into_tensor, whole, block, group=group),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, block, whole, group=group),
            "broadcast": partial(dist.broadcast, whole, 0, group=group),
            "all_to_all": partial(dist.all_to_all_single, whole, self.other, group=group),
        }


class Clock:
    """Times the host. Collective: all ranks time the same calls."""

    def __init__(self, device: torch.device, num_rounds: int) -> None:
        self._device, self._num_rounds = device, num_rounds
        self._meter = dist.new_group(backend="gloo")

    def race(self, ours: Call, theirs: Call, num_calls: int) -> tuple[float, float]:
        """Microseconds of one call each: the slowest rank's medians."""
        taken: dict[Call, list[float]] = {ours: [], theirs: []}
        for number in range(self._num_rounds + 1):
            for call in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                taken[call].append(self._sample_us(call, num_calls))
        medians = [statistics.median(samples[1:]) for samples in taken.values()]
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, medians, group=self._meter)
        mine, other = (max(column) for column in zip(*every, strict=True))
        return mine, other

    def _sample_us(self, call: Call, num_calls: int) -> float:
        self._settle()
        began = time.perf_counter()
        for _ in range(num_calls):
            call()
        taken_s = time.perf_counter() - began
        self._settle()
        return taken_s / num_calls * 1e6

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        dist.barrier(self._meter)


def cases(
    groups: tuple[Any, Any], device: torch.device, with_async: bool, sizes: dict[str, int]
) -> Iterator[tuple[str, Call, Call]]:
    """What is called, by the one group and by the other."""
    for size, nbytes in sizes.items():
        calls = Calls(nbytes, device)
        mine, others = (calls.of(group) for group in groups)
        for op, call in mine.items():
            yield f"{op} {size}", call, others[op]
            if with_async:
                yield f"{op} {size}, async", partial(waited, call), partial(waited, others[op])


def compare(args: argparse.Namespace, device: torch.device) -> int:
    """Prints a line for every case. How many are slower than they may be."""
    name = "gloo" if args.cpu else "nccl"
    groups = dist.group.WORLD, dist.new_group(backend=name)
    clock = Clock(device, args.rounds)
    say = print if dist.get_rank() == 0 else _say_nothing
    say(f"{'host time of a call':<28} {'braid, us':>10} {name + ', us':>10} {'ratio':>7}")
    num_slow = 0
    for what, ours, theirs in cases(groups, device, args.asynchronous, SIZES):
        our_us, their_us = clock.race(ours, theirs, args.calls)
        is_slow = our_us > args.limit * their_us
        num_slow += is_slow
        line = f"{what:<28} {our_us:10.1f} {their_us:10.1f} {our_us / their_us:7.2f}"
        say(line + "  SLOW" * is_slow, flush=True)
    for what, ours, theirs in cases(groups, device, args.asynchronous, {} if args.cpu else LARGE):
        our_us, their_us = clock.race(ours, theirs, LARGE_CALLS)
        say(f"{what:<28} {our_us:10.1f} {their_us:10.1f} {our_us / their_us:7.2f}", flush=True)
    say(f"host time: {num_slow} cases above {args.limit} times {name}'s", flush=True)
    return num_slow


def _say_nothing(*_args: object, **_more: object) -> None:
    pass


def profile(device: torch.device, num_calls: int) -> None:
    """Where braid's all_reduce of 4 KiB spends the host's time, on rank 0."""
    call = Calls(SIZES["4 KiB"], device).of(dist.group.WORLD)["all_reduce"]
    watch = cProfile.Profile()
    for _ in range(10):
        watch.enable()
        for _ in range(num_calls):
            call()
        watch.disable()
        dist.barrier()  # after what the GPU has been given
    if dist.get_rank() == 0:
        pstats.Stats(watch, stream=sys.stdout).sort_stats("tottime").print_stats(20)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="CPU tensors, beside Gloo")
    parser.add_argument("--async", action="store_true", dest="asynchronous")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--calls", type=int, default=100, help="in a sample")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--limit", type=float, default=LIMIT, help="of braid's time by the other's")
    args = parser.parse_args()
    device = torch.device("cpu")
    if not args.cpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("braid")
    num_slow = compare(args, device)
    if args.profile:
        profile(device, args.calls)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if num_slow else 0


if __name__ == "__main__":
    sys.exit(main())

"""What is observed of calls on GPUs, beside torch's own events.

    braid run -n 2 tests/gpu/observe.py            # or any number of GPUs
    braid run -n 1 tests/gpu/observe.py
    braid run -n 2 tests/gpu/observe.py --only-cost  # without notes, for comparison: see below

Checks that every call has its time on the GPU, that it agrees with torch's events around the call,
that the bytes of the links add up, and that a captured call is told apart. Prints what a small
call costs the caller with and without notes: two comms of one run, in turns, so that both see the
same machine. Rank 0 prints; the exit code is 1 when something is wrong.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import braid
from braid.launch import free_port

MIB = 1 << 20


class Check:
    """Counts what is wrong."""

    def __init__(self, rank: int) -> None:
        self.rank, self.wrong = rank, 0

    def that(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.wrong += 1
            print(f"rank {self.rank}: WRONG: {what}", flush=True)


def calls_in(comm: braid.Comm, folder: Path) -> list[dict[str, Any]]:
    """This comm's slices, oldest first."""
    path = folder / f"now.{comm.rank}.json"
    comm.trace(path)
    return [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]


def check_times(comm: braid.Comm, device: torch.device, check: Check, folder: Path) -> None:
    """One call per size, with torch's events just around it."""
    sizes = [1024, 4 * MIB, 64 * MIB]
    for size in sizes:  # the first of each loads kernels and tunes, for longer than the GPU sleeps
        comm.all_reduce(torch.ones(size // 4, device=device))
    events = []
    for size in sizes:
        tensor = torch.ones(size // 4, device=device)
        torch.cuda.synchronize()
        comm.barrier()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(5_000_000)  # until all is enqueued: the host's time is not the call's
        before.record()
        comm.all_reduce(tensor)
        after.record()
        torch.cuda.synchronize()
        events.append((size, before.elapsed_time(after) * 1e3))
    slices = [s for s in calls_in(comm, folder) if s["name"] == "all_reduce"]
    work = [s for s in slices if s["cat"] == "gpu"]
    enqueued = [s for s in slices if s["cat"] == "enqueue"]
    calls = 2 * len(events)
    check.that(len(work) == calls, f"{len(work)} calls have GPU times, of {calls}")
    work, enqueued = work[-len(events) :], enqueued[-len(events) :]
    for (size, torch_us), ours, call in zip(events, work, enqueued, strict=False):
        args = ours["args"]
        check.that(args["bytes"] == size, f"{args['bytes']} bytes instead of {size}")
        check.that(args["state"] == "completed", f"state {args['state']}")
        gap_us = torch_us - ours["dur"]
        # Torch's events lie outside of ours, 6 us together with the gap before a kernel.
        check.that(-1 < gap_us < 10 + 0.05 * torch_us, f"{ours['dur']} us, torch {torch_us} us")
        late_us = ours["ts"] - call["ts"]
        check.that(-50 < late_us < 50_000, f"the GPU began {late_us} us after the call")
        if comm.rank == 0:
            links = {name: link["sent_bytes"] for name, link in args.get("links", {}).items()}
            print(
                f"all_reduce {size:>9} B by {args['path']:13} {ours['dur']:9.1f} us on the GPU"
                f" (torch {torch_us:9.1f} us), enqueued in {call['dur']:6.1f} us, sent {links}",
                flush=True,
            )


def check_capture(comm: braid.Comm, device: torch.device, check: Check, folder: Path) -> None:
    tensor = torch.ones(1024, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor)
    graph.replay()
    torch.cuda.synchronize()
    last = [s for s in calls_in(comm, folder) if s["cat"] == "enqueue"][-1]
    check.that(last["args"]["captured"] is True, "a captured call is not told apart")
    entries = comm.flight_record()["entries"]
    check.that(entries[-1]["state"] == "completed", f"last entry {entries[-1]['state']}")


def cost_us(comm: braid.Comm, tensor: torch.Tensor, calls: int = 300) -> float:
    """Of one small call for the thread that makes it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        comm.all_reduce(tensor)
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / calls * 1e6


def show_cost(plain: braid.Comm, noted: braid.Comm, device: torch.device) -> None:
    tensor = torch.ones(256, device=device)
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(12):  # in turns
        times["without"].append(cost_us(plain, tensor))
        times["with"].append(cost_us(noted, tensor))
    if plain.rank == 0:
        without, with_notes = (statistics.median(times[k][2:]) for k in ("without", "with"))
        print(f"a 1 KiB all_reduce costs the caller {without:.2f} us without notes,"
              f" {with_notes:.2f} us with", flush=True)  # fmt: skip


def free_port_of(comm: braid.Comm) -> int:
    """One that rank 0 finds free, told to all."""
    told = torch.tensor([free_port() if comm.rank == 0 else 0])
    return int(comm.broadcast(told).item())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only-cost", action="store_true", help="Two comms without notes.")
    only_cost = parser.parse_args().only_cost
    more: dict[str, object] = {} if only_cost else {"trace_calls": 4096}
    with braid.init(progress=False, tune=False) as plain:
        device = torch.device("cuda", plain.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        check = Check(plain.rank)
        identity = braid.Identity(
            plain.rank,
            plain.size,
            local_rank=plain.local_rank,
            store_port=free_port_of(plain),
            job_id="noted",
        )
        with (
            braid.join(identity, tune=False, **more) as noted,
            tempfile.TemporaryDirectory() as folder,
        ):
            if not only_cost:
                check_times(noted, device, check, Path(folder))
                check_capture(noted, device, check, Path(folder))
            show_cost(plain, noted, device)
        if plain.rank == 0 and not only_cost:
            print(f"observe: {'all right' if check.wrong == 0 else 'WRONG'}", flush=True)
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Stage 2 on real GPUs: a collective runs on and on while other copies load the PCIe link, and the
link's share follows: down under load, back when the link is free.

    braid run -n 2 tests/gpu/balance.py [--op all_gather] [--mib 256] [--strict]

Needs torch and one GPU per rank. Every window's result is compared byte for byte, and so is a
graph's that was captured with the first share. Then what timing costs: calls with and without it,
in turn. The exit code is 1 when a byte differs; with --strict also when the share was not halved
within ten windows, did not come back, or timing costs 1 % or more.
"""

import argparse
import os
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import braid

SAMPLE = 4  # as BRAID_GPU_SAMPLE has it
WINDOW_CALLS = 10 * SAMPLE  # of the balancer
UNTIL_TRIED = 300  # windows: a link that was left out is tried after 32, later if that is dear


class Load:
    """Copies between this GPU and large pinned buffers, both ways, until it is stopped."""

    def __init__(self, gpu: torch.device, mib: int = 256) -> None:
        self._gpu = gpu
        self._host = [torch.empty(mib << 20, dtype=torch.uint8).pin_memory() for _ in range(2)]
        self._there = [torch.empty_like(host, device=gpu) for host in self._host]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        torch.cuda.set_device(self._gpu)
        streams = [torch.cuda.Stream() for _ in range(2)]
        while not self._stop.is_set():
            with torch.cuda.stream(streams[0]):
                self._there[0].copy_(self._host[0], non_blocking=True)
            with torch.cuda.stream(streams[1]):
                self._host[1].copy_(self._there[1], non_blocking=True)
            for stream in streams:
                stream.synchronize()


@dataclass
class Run:
    """One collective in registered memory, with data that tells rank, call and place."""

    comm: braid.Comm
    op: str
    gpu: torch.device
    block: int  # bytes; the buffer of an all_reduce has two
    calls: int = 0
    wrong: int = 0
    send: torch.Tensor = field(init=False)
    out: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        words = self.block // 4
        self.place = torch.arange(2 * words, dtype=torch.int32, device=self.gpu)
        self.send = torch.empty(
            words if self.op == "all_gather" else 2 * words, dtype=torch.int32, device=self.gpu
        )
        size = 2 * words if self.op in ("all_reduce", "broadcast") else words * self.comm.size
        self.out = self.comm.register(torch.empty(size, dtype=torch.int32, device=self.gpu))
        if self.op == "all_to_all":
            self.send = torch.empty(size, dtype=torch.int32, device=self.gpu)
            self.place = torch.arange(size, dtype=torch.int32, device=self.gpu)

    @property
    def nbytes(self) -> int:
        """As explain() counts."""
        return int(4 * self.out.numel())

    def data(self, rank: int, seed: int) -> torch.Tensor:
        return self.place * 2654435 + (rank + 1) * 40503 + seed * 7919

    def fill(self, seed: int) -> None:
        self.send.copy_(self.data(self.comm.rank, seed)[: self.send.numel()])
        self.out.fill_(-1)
        if self.op == "broadcast" and self.comm.rank == 0:
            self.out.copy_(self.send)

    def call(self) -> None:
        if self.op == "broadcast":
            self.comm.broadcast(self.out, root=0)
            return
        getattr(self.comm, self.op)(self.send, out=self.out)

    def want(self, seed: int) -> torch.Tensor:
        ranks = range(self.comm.size)
        words, me = self.block // 4, self.comm.rank
        if self.op == "all_gather":
            return torch.cat([self.data(r, seed)[:words] for r in ranks])
        if self.op == "broadcast":
            return self.data(0, seed)
        if self.op == "all_to_all":
            return torch.cat([self.data(r, seed)[me * words : (me + 1) * words] for r in ranks])
        total = self.data(0, seed)
        for r in range(1, self.comm.size):
            total = total + self.data(r, seed)
        return total

    def check(self, seed: int) -> None:
        self.wrong += 4 * int((self.out != self.want(seed)).sum())

    def window(self) -> float:
        """Microseconds of a call, of the balancer's next window."""
        self.fill(self.calls)
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.comm.barrier()
        begin.record()
        for _ in range(WINDOW_CALLS):
            self.call()
        end.record()
        torch.cuda.synchronize()
        self.check(self.calls)
        self.calls += WINDOW_CALLS
        return float(begin.elapsed_time(end)) * 1e3 / WINDOW_CALLS

    def share(self) -> float:
        links = self.comm.explain(self.op, self.nbytes, on="gpu").json["links"]
        return float(next(link["share"] for link in links if link["name"] == "pcie"))


class Report:
    def __init__(self, comm: braid.Comm) -> None:
        self._comm = comm

    def say(self, text: str) -> None:
        if self._comm.rank == 0:
            print(text, flush=True)

    def phase(
        self, name: str, run: Run, windows: int, done: Callable[[float], bool] | None = None
    ) -> int:
        """The window after which `done` was first true of the share; 0: it never was. At least
        ten windows, `windows` at most.
        """
        found = 0
        for window in range(1, windows + 1):
            took_us = run.window()
            share = run.share()
            if window <= 10 or window % 10 == 0:
                gbps = run.nbytes / took_us / 1e3
                self.say(
                    f"{name:<12} window {window:3}: pcie {share:6.2%} {took_us:8.1f} us "
                    f"{gbps:6.1f} GB/s, bytes wrong {run.wrong}"
                )
            if done is not None and not found and done(share):
                found = window
            if found and window >= 10:
                break
        return found


def graph_of(run: Run) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run.call()
    return graph


def replay(graph: torch.cuda.CUDAGraph, run: Run) -> None:
    """Its share is the one it was captured with, whatever has moved since."""
    for seed in (90_001, 90_002):
        run.fill(seed)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        run.check(seed)


def cost_of_timing(run: Run, block: int) -> float:
    """Calls that are timed, against calls that are not, with the share of theirs that is best:
    one percent of a message too much on a link costs more than timing does.
    """
    with braid.init(progress=False, gpu_sample=0, tune=False) as other:
        without = Run(other, run.op, run.gpu, block)
        timed_us: list[float] = []
        best_us: dict[int, list[float]] = {}  # by percent below the share in force
        for _ in range(15):
            for below in range(3):
                share = max(0.0, run.share() - below / 100)
                other._force_host_share(run.gpu.index, run.op, share)
                timed_us.append(run.window())
                best_us.setdefault(below, []).append(without.window())
        run.wrong += without.wrong
        return statistics.median(timed_us) / min(map(statistics.median, best_us.values())) - 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--op",
        choices=("all_gather", "all_to_all", "all_reduce", "broadcast"),
        default="all_gather",
    )
    parser.add_argument("--mib", type=int, default=256, help="of one rank's block")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    with braid.init(progress=False, gpu_sample=SAMPLE) as comm:
        report = Report(comm)
        run = Run(comm, args.op, gpu, args.mib << 20)
        run.call()
        tuned = run.share()
        report.say(f"{args.op}, blocks of {args.mib} MiB, {comm.size} GPUs: tuned to {tuned:.2%}")
        if tuned == 0:
            report.say("tuning left the PCIe link out: there is nothing to follow here")
            return 1 if args.strict else 0
        graph = graph_of(run)
        report.phase("free", run, 10)
        before = run.share()
        with Load(gpu):
            gone = report.phase("loaded", run, 10, lambda share: share < before / 2)
            replay(graph, run)
        back = report.phase("free again", run, UNTIL_TRIED, lambda share: share > before / 2)
        replay(graph, run)
        cost = cost_of_timing(run, args.mib << 20)
        wrong = int(comm.all_reduce(torch.tensor([run.wrong]))[0])
        for line in comm.balance_log():
            report.say(f"  {line}")
        balance = comm.health()["gpu"]["balance"]
        report.say(f"balance: {balance}")
        report.say(
            f"gpu balance: under half after {gone or 'more than 10'} windows of load, back after "
            f"{back or f'more than {UNTIL_TRIED}'}; timing costs {cost:+.2%}; {wrong} bytes wrong"
        )
        is_good = gone > 0 and back > 0 and cost < 0.01
        return 1 if wrong or (args.strict and not is_good) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tuning on real GPUs. Alone it comes to shares of the PCIe link, which are kept. Beside a program
that keeps the GPUs busy it ends within its time, and what it saw there is not kept.

    python tests/gpu/tuning.py [RANKS] [--times 3] [--json FILE]

Needs torch and a GPU per rank. Every start has an empty cache. The exit code is 1 when no start
alone was tuned (somebody else's program would explain one that was not), when those that were
differ in a long message's share by more than five hundredths, when one beside others kept or used
what it measured or took longer than it may, or when a first call was wrong.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

import braid
from braid.bench import facts

OPS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast")
SIZES_MIB = (64, 512)
TUNE_TIME_S = 8.0  # BRAID_TUNE_TIME's default
MOST_SPREAD = 0.05
SLACK_S = 4.0  # of the slowest call under way when the time is over, and of making the comm
# What the other program does on each GPU: one kernel after the other of some milliseconds, or of
# some microseconds.
LOADS = ("long kernels", "short kernels")


@dataclass
class Start:
    """What one start from an empty cache came to."""

    beside: str  # nothing, or the other program's load
    seconds: float = 0  # of the first call, which tunes
    is_kept: bool = False
    wrong: int = 0
    events: list[str] = field(default_factory=list)
    # By operation and size, the part that the PCIe link carries.
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def fault(self) -> str:
        if self.wrong:
            return f"{self.wrong} elements wrong"
        if self.beside and (self.is_kept or any(self.shares.values())):
            return "uses what it measured beside others"
        return "" if self.seconds < TUNE_TIME_S + SLACK_S else "took too long"


def load_main(load: str, gpu: int) -> None:
    """Keeps a GPU busy until this process is killed."""
    torch.cuda.set_device(gpu)
    size, calls = (8192, 4) if load == "long kernels" else (256, 400)
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    first = True
    while True:
        for _ in range(calls):
            torch.mm(a, b)
        torch.cuda.synchronize()
        if first:
            print("busy", flush=True)
        first = False


def rank_main(cache: str) -> None:
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    place = torch.arange(1 << 20, device=gpu, dtype=torch.int32)
    with braid.init(progress=False, cache_dir=cache) as comm:
        begin = time.perf_counter()
        got = comm.all_gather(place * (comm.rank + 3))
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        want = torch.cat([place * (rank + 3) for rank in range(comm.size)])
        wrong = comm.all_reduce(torch.tensor([int((got != want).sum())]))
        shares = {}
        for op in OPS:
            for mib in SIZES_MIB:
                links = comm.explain(op, mib << 20, on="gpu").json["links"]
                share = sum(link["share"] for link in links if link["name"] == "pcie")
                shares[f"{op} {mib} MiB"] = round(share, 4)
        if comm.rank == 0:
            start = {"seconds": seconds, "wrong": int(wrong[0]), "shares": shares}
            print(json.dumps({**start, "events": comm.health()["events"]}), flush=True)


@contextlib.contextmanager
def loaded(load: str, ranks: int) -> Iterator[None]:
    """The other program's processes, one a GPU; killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for gpu in range(ranks if load else 0):
            words = [sys.executable, __file__, str(gpu), "--load", load]
            processes.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != b"busy\n":
                raise RuntimeError(f"the load '{load}' did not start")
        yield
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(f"the load '{load}' ended too soon")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start(beside: str, ranks: int) -> Start:
    launch = [sys.executable, "-m", "braid.cli", "run", "-n", str(ranks), "--", __file__]
    with tempfile.TemporaryDirectory() as cache, loaded(beside, ranks):
        command = [*launch, "--rank", cache]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
        return Start(beside, is_kept=any(Path(cache).glob("*gpu-*")), **json.loads(done.stdout))


def spread_of(starts: list[Start]) -> float:
    """The most by which starts that were tuned alone differ in an operation's long share."""
    tuned = [one.shares for one in starts if one.is_kept and not one.beside]
    long = [[shares[f"{op} {SIZES_MIB[-1]} MiB"] for shares in tuned] for op in OPS]
    return max((max(one) - min(one) for one in long if one), default=0.0)


def save(starts: list[Start], args: argparse.Namespace) -> None:
    commit, dirty = facts.commit(args.commit)
    record = {
        "schema": "braid.gpu_tuning/1",
        "command": " ".join(["tests/gpu/tuning.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "ranks": args.ranks,
        "device": torch.cuda.get_device_name(),
        "starts": [asdict(one) for one in starts],
    }
    args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="?", default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="", help="for the record, where there is no git")
    parser.add_argument("--rank", metavar="CACHE", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        load_main(args.load, args.ranks)
    if args.rank:
        rank_main(args.rank)
        return 0
    starts: list[Start] = []
    for beside in ("", *LOADS):
        for _ in range(args.times):
            one = start(beside, args.ranks)
            starts.append(one)
            where = f"beside {beside}" if beside else "alone"
            kept = "kept" if one.is_kept else "nothing kept"
            print(f"{where}: {one.seconds:.1f} s, {kept} {one.events} {one.fault}", flush=True)
            print(f"  {one.shares}", flush=True)
            if args.json:
                save(starts, args)
    faults = sum(bool(one.fault) for one in starts)
    num_tuned = sum(one.is_kept for one in starts if not one.beside)
    spread = spread_of(starts)
    print(
        f"gpu tuning: {num_tuned} of {args.times} starts alone were tuned, with long shares within "
        f"{spread:.2f}; {faults} faults"
    )
    return 1 if faults or num_tuned == 0 or spread > MOST_SPREAD else 0


if __name__ == "__main__":
    sys.exit(main())

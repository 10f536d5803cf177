"""One rank of the measurement over nodes. Rank 0 is told what to do, and all do it:

    calls WAY OP BYTES N    N checked calls of BYTES in all; WAY is staged, flat or gloo
    quit

Each call's time is from a barrier to its end; beside it what the host's end of the cable had sent.
Every rank prints one JSON line per command.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import braid

FLAT_PORT, GLOO_PORT = 29440, 29460
SENT = Path("/sys/class/net/rail0/statistics/tx_bytes")
Call = Callable[[], object]


PERIOD = 1021


@cache
def places(count: int) -> np.ndarray:
    """Which of the period's numbers each element of a rank's row has, but for rank and call."""
    return ((np.arange(count, dtype=np.int64) * 31) % PERIOD).astype(np.int32)


def row(rank: int, count: int, call: int) -> np.ndarray:
    """Numbers of which sums of all ranks are exact, others for each rank and call."""
    numbers = (np.arange(PERIOD) + rank * 7 + call * 13) % PERIOD
    return numbers.astype(np.float32)[places(count)]


def total(ranks: int, count: int, call: int) -> np.ndarray:
    """The sum of all ranks' rows."""
    numbers = sum((np.arange(PERIOD) + rank * 7 + call * 13) % PERIOD for rank in range(ranks))
    return np.asarray(numbers).astype(np.float32)[places(count)]


class Ways:
    """The comms that are compared; all of them in every run."""

    def __init__(self, with_gloo: bool) -> None:
        self.staged = braid.init(nodes="auto")
        self.flat = braid.init(nodes="flat", store_port=FLAT_PORT)
        self.rank, self.size = self.staged.rank, self.staged.size
        self.gloo: Any = None
        if with_gloo:
            import torch
            import torch.distributed as dist

            torch.set_num_threads(1)
            os.environ["GLOO_SOCKET_IFNAME"] = "rail0"
            store = dist.TCPStore(
                os.environ["MASTER_ADDR"], GLOO_PORT, self.size, is_master=self.rank == 0
            )
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
            self.gloo = dist

    def close(self) -> None:
        self.staged.close()
        self.flat.close()
        if self.gloo:
            self.gloo.destroy_process_group()

    def call_of(self, way: str, op: str, send: np.ndarray, out: np.ndarray) -> Call:
        if way != "gloo":
            method = getattr(self.staged if way == "staged" else self.flat, op)
            return lambda: method(send, out=out)
        import torch

        given, taken = torch.from_numpy(send), torch.from_numpy(out)
        if op == "all_gather":
            return lambda: self.gloo.all_gather_into_tensor(taken, given)
        if op == "reduce_scatter":
            return lambda: self.gloo.reduce_scatter_tensor(taken, given)
        taken.copy_(given)
        return lambda: self.gloo.all_reduce(taken)


def operands(ways: Ways, op: str, nbytes: int, call: int) -> tuple[np.ndarray, np.ndarray]:
    """What a rank sends, and what it must have afterwards."""
    count, own = nbytes // 4, nbytes // 4 // ways.size
    if op == "all_gather":
        blocks = [row(rank, own, call) for rank in range(ways.size)]
        return blocks[ways.rank], np.concatenate(blocks)
    send = row(ways.rank, count, call)
    added = total(ways.size, count, call)
    if op == "reduce_scatter":
        return send, added[ways.rank * own : (ways.rank + 1) * own]
    return send, added


def calls(ways: Ways, way: str, op: str, nbytes: int, count: int) -> dict[str, object]:
    rows, wrong = [], 0
    for number in range(count):
        send, expected = operands(ways, op, nbytes, number)
        out = np.full_like(expected, -1)
        call = ways.call_of(way, op, send, out)
        ways.staged.barrier()
        sent = int(SENT.read_text())
        ways.staged.barrier()  # nobody here sends before all have read
        start = time.perf_counter_ns()
        call()
        seconds = (time.perf_counter_ns() - start) / 1e9
        ways.staged.barrier()
        wrong += int(np.count_nonzero(out != expected))
        rows.append({"seconds": seconds, "sent": int(SENT.read_text()) - sent})
    return {"wrong": wrong, "calls": rows}


def told(comm: braid.Comm) -> list[str]:
    line = np.zeros(256, dtype=np.uint8)
    if comm.rank == 0:
        text = (sys.stdin.readline() or "quit").encode()
        line[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return bytes(comm.broadcast(line)).rstrip(b"\0").decode().split()


def main() -> None:
    ways = Ways(with_gloo="gloo" in sys.argv[1:])
    while (words := told(ways.staged)) and words[0] != "quit":
        way, op, nbytes, count = words[1:]
        print(json.dumps(calls(ways, way, op, int(nbytes), int(count))), flush=True)
    ways.close()


main()

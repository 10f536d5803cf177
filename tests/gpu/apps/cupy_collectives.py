"""CuPy's NCCL calls by a thread per GPU of one process, every result compared.

    python3 tests/gpu/apps/cupy_collectives.py --out told.json

cupy.cuda.nccl is a thin layer: raw addresses, the calls that NCCL has. Sums are of small integers,
exact in every type and order.
"""

import argparse
import json
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import cupy
import numpy as np
from cupy.cuda import nccl

COUNTS = (4, 1000, 1 << 16, 1 << 20, 1 << 24)
TYPES = {
    np.float32: nccl.NCCL_FLOAT32,
    np.float16: nccl.NCCL_FLOAT16,
    np.float64: nccl.NCCL_FLOAT64,
    np.int32: nccl.NCCL_INT32,
    np.int8: nccl.NCCL_INT8,
}
SAMPLES, CALLS = 10, 20
TIMED = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "256 MiB": 256 << 20}
Pair = tuple[str, cupy.ndarray, cupy.ndarray]


class Rank:
    """One GPU, and the thread that calls for it."""

    def __init__(self, rank: int, size: int, own_id: tuple, gate: threading.Barrier) -> None:
        self.rank, self.size, self._id, self._gate = rank, size, own_id, gate
        self.done = self.wrong = 0
        self.raised = ""
        self.times_us: dict[str, list[float]] = {}

    def run(self) -> None:
        """Of a thread; what goes wrong is kept for the first one to tell."""
        try:
            cupy.cuda.Device(self.rank).use()
            self._comm = nccl.NcclCommunicator(self.size, self._id, self.rank)
            self._stream = cupy.cuda.Stream(non_blocking=True)
            for dtype, code in TYPES.items():
                for count in COUNTS:
                    self._compare(np.dtype(dtype).type, code, count)
            for name, nbytes in TIMED.items():
                self.times_us[f"all_reduce {name}"] = self._time(nbytes // 2)
            self._gate.wait()
            self._comm.destroy()
        except Exception:  # told with the rest
            self.raised = traceback.format_exc()
            self._gate.abort()

    def _compare(self, dtype: type, code: int, count: int) -> None:
        with self._stream:
            rows = [(cupy.arange(count) % 11 + r).astype(dtype) for r in range(self.size)]
            for name, got, want in self._calls(rows, code):
                bad = int((got != want).sum())
                self.done, self.wrong = self.done + 1, self.wrong + (bad > 0)
                if bad:
                    print(
                        f"rank {self.rank}: {name} {np.dtype(dtype)} {count}: {bad} elements wrong"
                    )
        self._stream.synchronize()

    def _calls(self, rows: list[cupy.ndarray], code: int) -> Iterator[Pair]:
        """Each call's result, and what it must be."""
        comm, stream, n = self._comm, self._stream.ptr, self.size
        own, count = rows[self.rank].copy(), rows[0].size
        result, everything = cupy.zeros_like(own), cupy.zeros(count * n, own.dtype)
        comm.allReduce(own.data.ptr, result.data.ptr, count, code, nccl.NCCL_SUM, stream)
        yield "all_reduce", result, sum(rows)
        comm.allGather(own.data.ptr, everything.data.ptr, count, code, stream)
        yield "all_gather", everything, cupy.concatenate(rows)
        told = own.copy() if self.rank == 1 else cupy.zeros_like(own)
        comm.bcast(told.data.ptr, count, code, 1, stream)
        yield "broadcast", told, rows[1]
        comm.reduce(own.data.ptr, result.data.ptr, count, code, nccl.NCCL_MAX, 0, stream)
        if self.rank == 0:
            yield "reduce", result, rows[-1]
        nccl.groupStart()
        comm.send(own.data.ptr, count, code, (self.rank + 1) % n, stream)
        comm.recv(result.data.ptr, count, code, (self.rank - 1) % n, stream)
        nccl.groupEnd()
        yield "send and recv", result, rows[self.rank - 1]
        if count % n == 0:
            part = count // n
            share = cupy.zeros(part, own.dtype)
            comm.reduceScatter(own.data.ptr, share.data.ptr, part, code, nccl.NCCL_SUM, stream)
            yield "reduce_scatter", share, sum(rows)[self.rank * part : (self.rank + 1) * part]

    def _time(self, count: int) -> list[float]:
        """Of one of CALLS sums, between events of this GPU."""
        with self._stream:
            own, result = cupy.ones(count, np.float16), cupy.zeros(count, np.float16)
            us = []
            for _ in range(SAMPLES + 1):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(self._stream)
                for _ in range(CALLS):
                    self._comm.allReduce(
                        own.data.ptr, result.data.ptr, count, nccl.NCCL_FLOAT16, nccl.NCCL_SUM,
                        self._stream.ptr,
                    )  # fmt: skip
                end.record(self._stream)
                end.synchronize()
                us.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3 / CALLS)
        return us[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="what was found; %%r is 0")
    args = parser.parse_args()
    size = cupy.cuda.runtime.getDeviceCount()
    own_id, gate = nccl.get_unique_id(), threading.Barrier(size)
    ranks = [Rank(rank, size, own_id, gate) for rank in range(size)]
    threads = [threading.Thread(target=rank.run) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [rank.raised for rank in ranks if rank.raised]
    print("\n".join(raised))
    told = {
        "what": f"CuPy {cupy.__version__}, a thread per GPU",
        "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "checked": sum(rank.done for rank in ranks),
        "wrong": sum(rank.wrong for rank in ranks),
        "raised": raised,
        "times_us": {
            name: [
                max(each) for each in zip(*(r.times_us.get(name, []) for r in ranks), strict=True)
            ]
            for name in ranks[0].times_us
        },
    }
    if args.out:
        Path(args.out.replace("%r", "0")).write_text(json.dumps(told), encoding="utf-8")
    return 1 if told["wrong"] or raised or not told["checked"] else 0


if __name__ == "__main__":
    sys.exit(main())

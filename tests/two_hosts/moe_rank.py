"""One rank of dispatch and combine between two hosts: tests/two_hosts/moe.py starts it.

    moe_rank.py TOKENS CALLS [direct]

With `direct` the buffer is one that may shrink: it reaches every rank directly, a copy for each.
Prints one JSON line: for each operation seconds of every call, the bytes that the host's NIC sent
meanwhile, the processor's seconds of this rank, and how many elements were wrong.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import braid
from braid.bench.moe.routings import SHAPES, ids_of
from braid.moe import Buffer

SHAPE = SHAPES["deepseek-v3"]
SENT = Path("/sys/class/net/rail0/statistics/tx_bytes")


class Meter:
    """Calls between barriers, with the NIC's count before and behind them."""

    def __init__(self, comm: braid.Comm) -> None:
        self.comm = comm
        self.rows: dict[str, dict[str, object]] = {}

    def measure(self, name, call, calls):
        seconds, result = [], None
        self.comm.barrier()
        time.sleep(0.2)
        before, cpu_before = int(SENT.read_text()), time.process_time()
        for _ in range(calls):
            self.comm.barrier()
            begin = time.perf_counter_ns()
            result = call()
            seconds.append((time.perf_counter_ns() - begin) / 1e9)
        cpu_seconds = time.process_time() - cpu_before
        self.comm.barrier()
        time.sleep(0.2)
        nic_bytes = int(SENT.read_text()) - before
        self.rows[name] = {"seconds": seconds, "nic_bytes": nic_bytes, "cpu_seconds": cpu_seconds}
        return result


def main() -> None:
    tokens, calls, direct = int(sys.argv[1]), int(sys.argv[2]), "direct" in sys.argv[3:]
    with braid.init() as comm:
        ids = ids_of(SHAPE, "uniform", tokens, comm.rank)
        x = ((np.arange(tokens * SHAPE.hidden) % 29) + comm.rank).astype(np.float16)
        x = x.reshape(tokens, SHAPE.hidden)
        weights = np.full(ids.shape, 0.125, np.float32)
        with Buffer(comm, 64 << 20, enable_shrink=direct) as buffer:
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(ids, SHAPE.num_experts)
            meter = Meter(comm)

            def dispatch():
                return buffer.dispatch(x, None, per_rank, None, is_in, per_expert, ids, weights)

            rows, _, _, _, handle, _ = meter.measure("dispatch", dispatch, calls)
            wanted = x.astype(np.float32) * is_in.sum(1)[:, None]
            wrong = 0
            for name, partial in {"combine": None, "combine by node": "node"}.items():
                if direct and partial:
                    continue
                out, _, _ = meter.measure(
                    name,
                    lambda partial=partial: buffer.combine(rows, handle, partial=partial),
                    calls,
                )
                wrong += int(np.count_nonzero(out.astype(np.float32) != wanted))
            print(json.dumps({"rows": meter.rows, "wrong": wrong}), flush=True)


main()

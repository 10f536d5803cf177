"""torch's send and recv over the backend's own sockets, beside Gloo's and the transfer engine
doing the same: two processes of one host, in turn in one run. Writes records/torch_messages.json,
with every sample. For decision 22.

    .venv/bin/python scripts/torch_messages.py [SECONDS]     30

A sample is a message there and one back. "engine" announces a message by send() (tag, descriptor),
the receiver reads it, and tells; its memory is registered for each message, as a tensor of a caller
would have to be, or once ("engine, registered once"). What a message of the backend also needs
(any source, what nobody asked for yet, deadlines of its own) is not in it: it is the least that a
message over the engine can take. Up to 32 KiB the bytes go in the announcement.
"""
# ruff: noqa: ANN401 - arrays and stores, of libraries that the ranks alone import

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
INLINE = 32 << 10
WAYS = ("sockets", "gloo", "engine", "engine, registered once")
KEEPS = WAYS[-1]


class Messages:
    """Over an engine."""

    def __init__(self, rank: int, store: Any) -> None:
        import braid
        from braid.engine import Peer

        self.engine = braid.Engine(f"rank {rank}", nics="none", token="t" * 32)
        store.set(f"address/{rank}", self.engine.address.data.hex())
        self.peer = Peer(bytes.fromhex(store.get(f"address/{1 - rank}").decode()))
        self.kept: dict[int, Any] = {}
        self.keeps = False

    def _region(self, array: Any) -> Any:
        key = array.ctypes.data
        if key not in self.kept:
            self.kept[key] = self.engine.register(array)
        return self.kept[key]

    def _free(self, array: Any) -> None:
        if not self.keeps:
            self.engine.unregister(self.kept.pop(array.ctypes.data))

    def send(self, array: Any) -> None:
        if array.nbytes <= INLINE:
            self.engine.send(self.peer, bytes(array)).wait()
            return
        descriptor = self._region(array).descriptor
        self.engine.send(self.peer, descriptor.data).wait()
        self.engine.take_notification()
        self._free(array)

    def recv(self, array: Any) -> None:
        from braid.engine import Descriptor

        found = self.engine.recv().data
        if array.nbytes <= INLINE:
            memoryview(array)[:] = found
            return
        ours = self._region(array)
        self.engine.read(ours, Descriptor(found), array.nbytes, notify=b"read").wait()
        self._free(array)


def rank_of(rank: int, port: int, seconds: float, out: Any) -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    import braid.torch  # noqa: F401 - the backend

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    dist.init_process_group("braid", store=store, rank=rank, world_size=2)
    messages = Messages(rank, dist.PrefixStore("engine", store))
    groups = {"sockets": None, "gloo": dist.new_group(backend="gloo")}

    def mover(way: str) -> Callable[..., None]:
        if way not in groups:
            messages.keeps = way == KEEPS
            return lambda array, is_send: (messages.send if is_send else messages.recv)(array)

        def move(array: Any, is_send: bool) -> None:
            (dist.send if is_send else dist.recv)(torch.from_numpy(array), 1 - rank, groups[way])

        return move

    for nbytes in SIZES:
        array = np.zeros(nbytes, np.uint8)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        sent = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
        for way in WAYS:  # every byte, before anything is timed
            array[:] = sent if rank == 0 else 0
            mover(way)(array, rank == 0)
            assert np.array_equal(array, sent), way
        end = time.monotonic() + seconds / len(SIZES)
        is_over = torch.zeros(1)
        while not is_over:
            for way in WAYS:
                move = mover(way)
                for k in range(6):
                    began = time.perf_counter_ns()
                    move(array, rank == 0)
                    move(array, rank == 1)
                    if k:
                        times[way].append((time.perf_counter_ns() - began) / 2e3)
            is_over[0] = time.monotonic() > end
            dist.broadcast(is_over, 0)
        if rank == 0:
            out.put((nbytes, times))
    dist.destroy_process_group()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    context = get_context("spawn")
    out = context.Queue()
    from braid.bench import facts
    from braid.launch import free_port

    commit, dirty = facts.commit()

    port = free_port()
    ranks = [context.Process(target=rank_of, args=(r, port, seconds, out)) for r in range(2)]
    for process in ranks:
        process.start()
    runs = []
    for _ in SIZES:
        nbytes, times = out.get(timeout=seconds + 60)
        p50 = {way: statistics.median(found) for way, found in times.items()}
        runs.append({
            "bytes": nbytes,
            "p50_us": {way: round(us, 2) for way, us in p50.items()},
            "sockets_by": {way: round(p50["sockets"] / us, 3) for way, us in p50.items()},
            "samples_us": {way: [round(us, 1) for us in found] for way, found in times.items()},
        })  # fmt: skip
        print(nbytes, runs[-1]["p50_us"], runs[-1]["sockets_by"], flush=True)
    for process in ranks:
        process.join(60)
    record = {
        "schema": "braid.torch_messages/1",
        "command": ["scripts/torch_messages.py", f"{seconds:g}"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "machine": f"{os.cpu_count()} cores",
        "ranks": 2,
        "runs": runs,
    }
    (ROOT / "records/torch_messages.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

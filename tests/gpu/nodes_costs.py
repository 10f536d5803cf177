"""What communicators over several nodes cost, on one GPU that all ranks share.

    scripts/gpu_test costs

    handed    host time of a call that is handed on to NCCL: the same communicator's calls in turn
              through the drop-in and straight into the real library
    first     the first all_gather: seconds of the slowest rank, and the GPU memory that it took,
              by all ranks' GPU alike; one node of two ranks has no rails, and is what others are
              compared with

One rank of NODES_PER_NODE * n; COSTS_OF says which of the two. Rank 0 adds a line of JSON to
COSTS_LINES. To NCCL every rank is a host of its own, to braid NODES_PER_NODE ranks are.
"""

import ctypes
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PER_NODE = int(os.environ["NODES_PER_NODE"])
os.environ["NCCL_HOSTID"] = f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{RANK // PER_NODE}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

FLOAT32, SUM, COUNT = 7, 0, 1024
BURST, BURSTS = 20, 150


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


def real_library() -> Any:
    """Beside the drop-in, which has its SONAME."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split()[-1]
        if path.endswith("libnccl.so.2"):
            return ctypes.CDLL(path)
    raise RuntimeError("the real NCCL is not loaded")


def meet(store: Any, name: str) -> None:
    store.set(f"{name} {RANK}", "")
    store.wait([f"{name} {rank}" for rank in range(SIZE)], timedelta(seconds=60))


def made(store: Any, library: Any) -> ctypes.c_void_p:
    """A communicator, made through the drop-in."""
    unique = UniqueId()
    if RANK == 0:
        assert library.ncclGetUniqueId(ctypes.byref(unique)) == 0
        store.set("id", ctypes.string_at(ctypes.byref(unique), 128).hex())
    ctypes.memmove(ctypes.byref(unique), bytes.fromhex(store.get("id").decode()), 128)
    comm = ctypes.c_void_p()
    library.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)
    assert library.ncclCommInitRank(ctypes.byref(comm), SIZE, unique, RANK) == 0
    return comm


def handed(store: Any) -> dict[str, Any]:
    """Nanoseconds of each call on the host, in bursts that the stream has room for."""
    through = ctypes.CDLL("libnccl.so.2")
    real = real_library()
    comm = made(store, through)
    send = torch.ones(COUNT, device="cuda")
    recv = torch.zeros(COUNT, device="cuda")
    stream = torch.cuda.Stream()
    arguments = (
        ctypes.c_void_p(send.data_ptr()),
        ctypes.c_void_p(recv.data_ptr()),
        ctypes.c_size_t(COUNT),
        ctypes.c_int(FLOAT32),
        ctypes.c_int(SUM),
        comm,
        ctypes.c_void_p(stream.cuda_stream),
    )
    calls = {"braid": through.ncclAllReduce, "nccl": real.ncclAllReduce}
    assert ctypes.cast(calls["braid"], ctypes.c_void_p).value != (
        ctypes.cast(calls["nccl"], ctypes.c_void_p).value
    ), "both are one function"
    times: dict[str, list[int]] = {who: [] for who in calls}
    wrong = 0
    for burst in range(-5, BURSTS):
        meet(store, f"burst {burst}")
        for n in range(BURST):
            for who in list(calls) if n % 2 == 0 else list(reversed(calls)):
                begin = time.perf_counter_ns()
                answer = calls[who](*arguments)
                ns = time.perf_counter_ns() - begin
                assert answer == 0
                if burst >= 0:
                    times[who].append(ns)
        stream.synchronize()
        wrong += int((recv != SIZE).sum())
    counted = (ctypes.c_uint64 * 7)(), (ctypes.c_uint64 * 7)()
    through.braid_nccl_counts(*counted, ctypes.c_size_t(7))
    return {"ns": times, "wrong": wrong, "taken": counted[0][0], "handed_on": counted[1][0]}


def first(store: Any) -> dict[str, Any]:
    send = torch.full((COUNT,), float(RANK), device="cuda")
    recv = torch.zeros(SIZE * COUNT, device="cuda")
    wanted = torch.arange(SIZE, device="cuda").repeat_interleave(COUNT).float()
    torch.cuda.synchronize()
    meet(store, "before")
    free_before, _ = torch.cuda.mem_get_info()
    meet(store, "looked")
    begin = time.monotonic()
    dist.all_gather_into_tensor(recv, send)
    torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    meet(store, "after")
    free_after, _ = torch.cuda.mem_get_info()
    meet(store, "looked after")
    begin = time.monotonic()
    dist.all_gather_into_tensor(recv, send)
    torch.cuda.synchronize()
    return {
        "first_s": seconds,
        "second_s": time.monotonic() - begin,
        "bytes_of_all_ranks": free_before - free_after,
        "wrong": int((recv != wanted).sum()),
    }


def main() -> int:
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60), device_id=device)
    store = dist.PrefixStore("costs", dist.distributed_c10d._get_default_store())
    what = os.environ["COSTS_OF"]
    own = handed(store) if what == "handed" else first(store)
    store.set(f"own {RANK}", json.dumps(own))
    meet(store, "found")
    ranks = [json.loads(store.get(f"own {rank}")) for rank in range(SIZE)]
    meet(store, "read")
    if RANK == 0:
        row = {
            "of": what,
            "nodes": SIZE // PER_NODE,
            "per_node": PER_NODE,
            "gpu": torch.cuda.get_device_name(0),
            "nccl": ".".join(str(one) for one in torch.cuda.nccl.version()),
            "ranks": ranks,
        }
        with Path(os.environ["COSTS_LINES"]).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        if what == "first":
            took = ranks[0]["bytes_of_all_ranks"] / SIZE / 2**20
            print(f"{SIZE // PER_NODE} x {PER_NODE}: {took:.1f} MiB a rank", flush=True)
        else:
            for rank, one in enumerate(ranks):
                middle = {who: sorted(ns)[len(ns) // 2] for who, ns in one["ns"].items()}
                print(f"rank {rank}: median ns {middle}", flush=True)
    return 1 if own["wrong"] else 0


if __name__ == "__main__":
    code = main()
    dist.destroy_process_group()
    sys.exit(code)

"""What communicators over several nodes cost, on one GPU that all ranks share.

    scripts/gpu_test costs

    handed    host time of a call that is handed on to NCCL: the same communicator's calls in turn
              through the drop-in and straight into the real library
    first     an all_reduce, which is NCCL's: what the GPU takes when a process runs NCCL's kernels
              for the first time. Then the first all_gather: seconds, and the GPU memory that it
              took of all ranks; one node of two ranks has no rails, and is what others are compared
              with. Then what NCCL alone takes for communicators among the ranks of each rail: made,
              after a send and a receive, after an all_gather

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
# Ranks of one GPU take turns, so that a call takes some 10 ms: bursts end by the clock.
BURST, BURSTS, GROUP, EMPTY, HANDED_SECONDS = 10, 40, 30, 100, 7.0


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


def made(store: Any, library: Any, name: str, size: int, rank: int) -> ctypes.c_void_p:
    """A communicator of `size` ranks, of which rank 0 has made the id."""
    unique = UniqueId()
    if rank == 0:
        assert library.ncclGetUniqueId(ctypes.byref(unique)) == 0
        store.set(name, ctypes.string_at(ctypes.byref(unique), 128).hex())
    ctypes.memmove(ctypes.byref(unique), bytes.fromhex(store.get(name).decode()), 128)
    comm = ctypes.c_void_p()
    library.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)
    assert library.ncclCommInitRank(ctypes.byref(comm), size, unique, rank) == 0
    return comm


class Memory:
    """What all ranks together have taken of the GPU since the last look."""

    def __init__(self, store: Any) -> None:
        self._store, self._looks = store, 0
        self._free = 0
        self.taken()

    def taken(self) -> int:
        torch.cuda.synchronize()
        self._looks += 1
        meet(self._store, f"before look {self._looks}")
        before, (self._free, _) = self._free, torch.cuda.mem_get_info()
        meet(self._store, f"after look {self._looks}")
        return before - self._free


def nccl_alone(store: Any, memory: Memory) -> dict[str, int]:
    """The ranks with one place in their nodes, as rails are, by the real library."""
    nodes, node, place = SIZE // PER_NODE, RANK // PER_NODE, RANK % PER_NODE
    real = real_library()
    buffer = torch.zeros(nodes * COUNT, device="cuda")
    memory.taken()
    comm = made(store, real, f"rail {place}", nodes, node)
    took = {"made": memory.taken()}
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    at, count = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(COUNT)
    to, by = ctypes.c_int((node + 1) % nodes), ctypes.c_int((node - 1) % nodes)
    own = ctypes.c_void_p(buffer.data_ptr() + 4 * COUNT * node)
    assert real.ncclGroupStart() == 0
    assert real.ncclSend(own, count, ctypes.c_int(FLOAT32), to, comm, stream) == 0
    assert real.ncclRecv(at, count, ctypes.c_int(FLOAT32), by, comm, stream) == 0
    assert real.ncclGroupEnd() == 0
    took["send_and_receive"] = memory.taken()
    assert real.ncclAllGather(own, at, count, ctypes.c_int(FLOAT32), comm, stream) == 0
    took["all_gather"] = memory.taken()
    assert real.ncclCommDestroy(comm) == 0
    return took


def handed(store: Any) -> dict[str, Any]:
    """Nanoseconds of calls on the host, each through the drop-in and straight into NCCL in turn.

    alone    in bursts that the stream has room for
    grouped  the same inside of one group: what a call adds to a plan that is launched as one
    empty    of no elements, at which NCCL looks and goes back: the drop-in's part with little else
    """
    through = ctypes.CDLL("libnccl.so.2")
    real = real_library()
    comm = made(store, through, "id", SIZE, RANK)
    send = torch.ones(COUNT, device="cuda")
    recv = torch.zeros(SIZE * COUNT, device="cuda")
    stream = torch.cuda.Stream()
    at = ctypes.c_void_p(send.data_ptr()), ctypes.c_void_p(recv.data_ptr())
    behind = comm, ctypes.c_void_p(stream.cuda_stream)
    dtype = ctypes.c_int(FLOAT32)
    # What is decided at the first call that could be taken over: with one rank a node, for NCCL.
    decided = (*at, ctypes.c_size_t(COUNT), dtype, *behind)
    assert through.ncclAllGather(*decided) == 0
    stream.synchronize()
    calls = {"braid": through.ncclAllReduce, "nccl": real.ncclAllReduce}
    assert ctypes.cast(calls["braid"], ctypes.c_void_p).value != (
        ctypes.cast(calls["nccl"], ctypes.c_void_p).value
    ), "both are one function"
    counts = {"alone": COUNT, "grouped": COUNT, "empty": 0}
    arguments = {
        how: (*at, ctypes.c_size_t(count), dtype, ctypes.c_int(SUM), *behind)
        for how, count in counts.items()
    }
    times: dict[str, dict[str, list[int]]] = {how: {who: [] for who in calls} for how in counts}

    def pairs(how: str, number: int, is_kept: bool) -> None:
        for n in range(number):
            for who in list(calls) if n % 2 == 0 else list(reversed(calls)):
                begin = time.perf_counter_ns()
                answer = calls[who](*arguments[how])
                ns = time.perf_counter_ns() - begin
                assert answer == 0
                if is_kept:
                    times[how][who].append(ns)

    wrong, burst, begin = 0, -2, time.monotonic()
    while True:
        if RANK == 0:
            is_over = burst >= BURSTS or time.monotonic() - begin > HANDED_SECONDS
            store.set(f"burst {burst}", "" if is_over else "go")
        store.wait([f"burst {burst}"], timedelta(seconds=20))
        if store.get(f"burst {burst}") != b"go":
            break
        pairs("empty", EMPTY, burst >= 0)
        pairs("alone", BURST, burst >= 0)
        stream.synchronize()
        wrong += int((recv[:COUNT] != SIZE).sum())
        assert through.ncclGroupStart() == 0
        pairs("grouped", GROUP, burst >= 0)
        assert through.ncclGroupEnd() == 0
        stream.synchronize()
        wrong += int((recv[:COUNT] != SIZE).sum())
        burst += 1
    counted = (ctypes.c_uint64 * 7)(), (ctypes.c_uint64 * 7)()
    through.braid_nccl_counts(*counted, ctypes.c_size_t(7))
    return {
        "ns": times,
        "bursts": burst,
        "wrong": wrong,
        "taken": list(counted[0]),
        "handed_on": list(counted[1]),
    }


def more_ns(ns: dict[str, list[int]]) -> dict[str, int]:
    middle = {who: sorted(all_of)[len(all_of) // 2] for who, all_of in ns.items()}
    return {**middle, "more": middle["braid"] - middle["nccl"]}


def first(store: Any) -> dict[str, Any]:
    send = torch.full((COUNT,), float(RANK), device="cuda")
    recv = torch.zeros(SIZE * COUNT, device="cuda")
    wanted = torch.arange(SIZE, device="cuda").repeat_interleave(COUNT).float()
    memory = Memory(store)
    dist.all_reduce(send.clone())
    first_kernel = memory.taken()
    begin = time.monotonic()
    dist.all_gather_into_tensor(recv, send)
    torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    first_bytes = memory.taken()
    begin = time.monotonic()
    dist.all_gather_into_tensor(recv, send)
    torch.cuda.synchronize()
    found = {
        "first_s": seconds,
        "second_s": time.monotonic() - begin,
        "first_kernel_bytes_of_all_ranks": first_kernel,
        "bytes_of_all_ranks": first_bytes,
        "wrong": int((recv != wanted).sum()),
    }
    has_rails = SIZE > PER_NODE
    return {**found, "nccl_alone": nccl_alone(store, memory)} if has_rails else found


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
            alone = ranks[0].get("nccl_alone", {})
            parts = {name: round(bytes_ / SIZE / 2**20, 1) for name, bytes_ in alone.items()}
            print(
                f"{SIZE // PER_NODE} x {PER_NODE}: {took:.1f} MiB a rank, NCCL alone: {parts}",
                flush=True,
            )
        else:
            for how in ranks[0]["ns"]:
                more = [more_ns(one["ns"][how]) for one in ranks]
                print(
                    f"handed on, {how}: median ns {more}, bursts {ranks[0]['bursts']}", flush=True
                )
    return 1 if own["wrong"] else 0


if __name__ == "__main__":
    code = main()
    dist.destroy_process_group()
    sys.exit(code)

"""What rails take in several designs, in one job: four ranks on one GPU, two nodes of two.

    env NCCL_.. BRAID_NCCL_NODES=on BRAID_TUNE=off NODES_PER_NODE=2 COSTS_LINES=FILE \
        LD_PRELOAD=libbraid-nccl.so braid run -n 4 tests/gpu/rails_designs.py

Lines of JSON: GPU memory of all ranks at each step (the device's free bytes), and what NCCL's own
log says it asked for meanwhile (NCCL_DEBUG_FILE), on the GPU and in pinned host memory. Where the
network can read the GPU's memory (GPUDirect RDMA) the latter lies on the GPU. Sockets cannot.
"""

import ctypes
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nodes_costs import (
    COUNT,
    FLOAT32,
    PER_NODE,
    RANK,
    SIZE,
    Memory,
    UniqueId,
    made,
    meet,
    real_library,
)

AVG = 4
NODES, NODE, PLACE = SIZE // PER_NODE, RANK // PER_NODE, RANK % PER_NODE
LOG = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
ALLOC = re.compile(r"(Cuda Host Alloc|Cuda Alloc) Size (\d+)")
PLAIN: dict[str, str] = {}
SHORT = {"BRAID_RAILS_NOTHING": str(1 << 20)}
PIECE4 = {"BRAID_RAILS_PIECE": str(4 << 20)}
GIVE = {"BRAID_RAILS_GATHER": "exchange"}
OLD = {"BRAID_RAILS_NOTHING": str(8 << 20)}
DESIGNS: dict[str, dict[str, str]] = {
    "as it was": OLD,
    "at most 4 blocks": {**OLD, "BRAID_RAILS_CTAS": "4"},
    "at most 2 blocks": {**OLD, "BRAID_RAILS_CTAS": "2"},
    "at most 1 block": {**OLD, "BRAID_RAILS_CTAS": "1"},
    "short nothings": SHORT,
    "pieces of 4 MiB": {**OLD, **PIECE4},
    "no all_gather of NCCL's": {**OLD, **GIVE},
    "2 blocks, short nothings, no all_gather": {**SHORT, **GIVE, "BRAID_RAILS_CTAS": "2"},
    "2 blocks, short nothings, no all_gather, 4 MiB": {
        **SHORT,
        **PIECE4,
        **GIVE,
        "BRAID_RAILS_CTAS": "2",
    },
    "as it was, again": OLD,
}


class Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


def config(most_blocks: int | None = None, share: int | None = None) -> Config:
    undefined = -(2**31)
    return Config(
        ctypes.sizeof(Config),
        0xCAFEBEEF,
        21800,
        1,
        undefined,
        undefined,
        undefined if most_blocks is None else most_blocks,
        None,
        undefined if share is None else share,
    )


class Looks:
    """Bytes since the last look: of the GPU, all ranks; what NCCL asked for, this rank."""

    def __init__(self, store: Any) -> None:
        self._memory = Memory(store)
        self._read = LOG.stat().st_size if LOG.exists() else 0
        self._number = 0

    def look(self) -> dict[str, int]:
        gpu = self._memory.taken()
        text = LOG.read_bytes()[self._read :] if LOG.exists() else b""
        self._read += len(text)
        found: dict[str, int] = {"all_ranks": gpu}
        for kind, size in ALLOC.findall(text.decode(errors="replace")):
            name = "host" if "Host" in kind else "device"
            found[name] = found.get(name, 0) + int(size)
            found[f"{name}_allocs"] = found.get(f"{name}_allocs", 0) + 1
        return found


def rail_alone(store: Any, looks: Looks, name: str, parent: Any, how: Config) -> dict[str, Any]:
    """NCCL's communicator of a rail: made, a send and a receive, an all_gather, given back."""
    real = real_library()
    comm = ctypes.c_void_p()
    looks.look()
    begin = time.monotonic()
    if parent is not None:
        color, key = ctypes.c_int(PLACE), ctypes.c_int(NODE)
        code = real.ncclCommSplit(parent, color, key, ctypes.byref(comm), ctypes.byref(how))
    else:
        unique = UniqueId()
        of_rail = f"{name} {PLACE}"
        if NODE == 0:
            assert real.ncclGetUniqueId(ctypes.byref(unique)) == 0
            store.set(of_rail, ctypes.string_at(ctypes.byref(unique), 128).hex())
        ctypes.memmove(ctypes.byref(unique), bytes.fromhex(store.get(of_rail).decode()), 128)
        real.ncclCommInitRankConfig.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
            ctypes.c_void_p,
        )
        code = real.ncclCommInitRankConfig(
            ctypes.byref(comm), NODES, unique, NODE, ctypes.byref(how)
        )
    assert code == 0, code
    seconds = time.monotonic() - begin
    row: dict[str, Any] = {"of": "rail of NCCL's", "design": name, "made_s": seconds}
    row["made"] = looks.look()
    buffer = torch.zeros(NODES * COUNT, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    at, count = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(COUNT)
    to, by = ctypes.c_int((NODE + 1) % NODES), ctypes.c_int((NODE - 1) % NODES)
    own = ctypes.c_void_p(buffer.data_ptr() + 4 * COUNT * NODE)
    looks.look()
    assert real.ncclGroupStart() == 0
    assert real.ncclSend(own, count, ctypes.c_int(FLOAT32), to, comm, stream) == 0
    assert real.ncclRecv(at, count, ctypes.c_int(FLOAT32), by, comm, stream) == 0
    assert real.ncclGroupEnd() == 0
    row["send_and_receive"] = looks.look()
    assert real.ncclAllGather(own, at, count, ctypes.c_int(FLOAT32), comm, stream) == 0
    row["all_gather"] = looks.look()
    assert real.ncclCommDestroy(comm) == 0
    row["given_back"] = looks.look()
    return row


class Calls:
    """all_gather and an average by reduce_scatter, every element compared, then timed."""

    def __init__(self, library: Any, comm: Any, size: int, rank: int) -> None:
        self.library, self.comm, self.size, self.rank = library, comm, size, rank
        self.wrong = 0

    def stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def gather(self, count: int) -> float:
        send = (torch.arange(count, device="cuda") % 1000 + self.rank).float()
        recv = torch.zeros(self.size * count, device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        code = self.library.ncclAllGather(
            ctypes.c_void_p(send.data_ptr()),
            ctypes.c_void_p(recv.data_ptr()),
            ctypes.c_size_t(count),
            ctypes.c_int(FLOAT32),
            self.comm,
            self.stream(),
        )
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        assert code == 0, code
        wanted = (torch.arange(count, device="cuda") % 1000).float()
        for peer in range(self.size):
            self.wrong += int((recv[peer * count : (peer + 1) * count] != wanted + peer).sum())
        return took

    def average(self, count: int) -> float:
        ramp = (torch.arange(count, device="cuda") % 1000).float()
        send = torch.cat([ramp + self.rank + block for block in range(self.size)])
        recv = torch.zeros(count, device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        code = self.library.ncclReduceScatter(
            ctypes.c_void_p(send.data_ptr()),
            ctypes.c_void_p(recv.data_ptr()),
            ctypes.c_size_t(count),
            ctypes.c_int(FLOAT32),
            ctypes.c_int(AVG),
            self.comm,
            self.stream(),
        )
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        assert code == 0, code
        mean = (self.size - 1) / 2
        self.wrong += int((recv != ramp + self.rank + mean).sum())
        return took


def in_place_of_nccl(
    store: Any, looks: Looks, name: str, how: dict[str, str], size: int, rank: int
) -> dict[str, Any]:
    """A communicator through the drop-in: its first all_gather, then calls of several sizes."""
    library = ctypes.CDLL("libnccl.so.2")
    for key in (
        "BRAID_RAILS_CTAS",
        "BRAID_RAILS_PIECE",
        "BRAID_RAILS_NOTHING",
        "BRAID_RAILS_GATHER",
    ):
        os.environ.pop(key, None)
    os.environ.update(how)
    looks.look()
    comm = made(store, library, f"{name} {RANK // size}", size, rank)
    row: dict[str, Any] = {"of": "in place of NCCL", "design": name, "set": how, "ranks": size}
    row["made"] = looks.look()
    calls = Calls(library, comm, size, rank)
    row["first_s"] = calls.gather(COUNT)
    torch.cuda.empty_cache()
    row["first"] = looks.look()
    row["us"] = {}
    for op, call in (("all_gather", calls.gather), ("reduce_scatter avg", calls.average)):
        for count in (1 << 10, 1 << 18, 5 << 19):
            meet(store, f"{name} {op} {count}")
            samples = [call(count) * 1e6 for _ in range(4)]
            row["us"][f"{op} {4 * count}"] = [round(one, 1) for one in samples[1:]]
    row["wrong"] = calls.wrong
    assert library.ncclCommDestroy(comm) == 0
    torch.cuda.empty_cache()
    row["given_back"] = looks.look()
    return row


def steps(store: Any) -> Iterator[dict[str, Any]]:
    version = ctypes.c_int()
    assert ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)) == 0
    real = real_library()
    looks = Looks(store)
    # NCCL alone, among all ranks: its first kernel of this process, and what each call connects.
    whole = made(store, real, "whole", SIZE, RANK)
    row: dict[str, Any] = {"of": "NCCL whole", "made": looks.look()}
    buffer = torch.zeros(SIZE * COUNT, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    at, count = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(COUNT)
    looks.look()
    one = ctypes.c_int(FLOAT32), ctypes.c_int(0), whole, stream
    assert real.ncclAllReduce(at, at, ctypes.c_size_t(2), *one) == 0
    row["first_all_reduce"] = looks.look()
    assert real.ncclAllReduce(at, at, count, *one) == 0
    row["second_all_reduce"] = looks.look()
    assert real.ncclAllGather(at, at, ctypes.c_size_t(2), ctypes.c_int(FLOAT32), whole, stream) == 0
    row["first_all_gather"] = looks.look()
    yield row
    for most in (None, 8, 4, 2, 1):
        yield rail_alone(store, looks, f"most blocks {most}", None, config(most))
    yield rail_alone(store, looks, "split, shares, most 2", whole, config(2, 1))
    yield rail_alone(store, looks, "split, most 2", whole, config(2, 0))
    assert real.ncclCommDestroy(whole) == 0
    yield in_place_of_nccl(store, looks, "one node", PLAIN, PER_NODE, PLACE)
    for name, how in DESIGNS.items():
        yield in_place_of_nccl(store, looks, name, how, SIZE, RANK)


def mib(look: dict[str, int]) -> str:
    text = f"{look['all_ranks'] / SIZE / 2**20:.1f}"
    if "device" in look:
        text += f" (asked {look['device'] / 2**20:.2f} in {look['device_allocs']})"
    if "host" in look:
        text += f" (host {look['host'] / 2**20:.1f})"
    return text


def main() -> int:
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    store = dist.PrefixStore("designs", dist.distributed_c10d._get_default_store())
    torch.zeros(1, device="cuda")
    wrong = 0
    for row in steps(store):
        wrong += row.get("wrong", 0)
        with Path(f"{os.environ['COSTS_LINES']}.{RANK}").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        if RANK == 0:
            say(row)
    meet(store, "over")
    return 1 if wrong else 0


def say(row: dict[str, Any]) -> None:
    looks = {
        key: mib(one) for key, one in row.items() if isinstance(one, dict) and "all_ranks" in one
    }
    print(f"{row['of']}: {row.get('design', '')}: MiB a rank {looks}", flush=True)
    if "us" in row:
        middle = {op: round(statistics.median(times)) for op, times in row["us"].items()}
        print(f"    wrong {row['wrong']}, first {row['first_s']:.2f} s, us {middle}", flush=True)


if __name__ == "__main__":
    code = main()
    dist.destroy_process_group()
    sys.exit(code)

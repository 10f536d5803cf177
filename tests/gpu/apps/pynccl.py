"""One rank of vLLM's or SGLang's own NCCL layer alone: every call that it offers, all exact.

    VLLM_NCCL_SO_PATH=python/braid/libbraid-nccl.so braid run -n 2 tests/gpu/apps/pynccl.py vllm

vLLM and SGLang open NCCL by ctypes, in a class PyNcclCommunicator, and call it on torch's current
stream. The class is theirs; without the rest of vLLM or SGLang, modules that it imports must be
stood in for. Data are small whole numbers, so that every order of adding gives the same bits. Each
section prints how many results were wrong; one that raises is told and the next goes on, except
that ranks which do not agree on it would wait for each other: that is the caller's time limit.
"""

import argparse
import ctypes
import importlib
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

LAYERS = {
    "vllm": "vllm.distributed.device_communicators.pynccl",
    "sglang": "sglang.srt.distributed.device_communicators.pynccl",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
COUNTS = (1, 1003, 70_000, 3 << 20)
FEW_COUNTS = (1, 5003)
"""Between CPUs."""
TIMED = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}
SAMPLES, CALLS = 15, 20
SUSPENDS = 22907
"""NCCL's version from which communicators can be put to sleep, and which vLLM asks for then."""


class Layer:
    """vLLM's or SGLang's communicator, called as the two have it, and what it gave so far."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.done = self.wrong = 0
        self.counts = COUNTS if device.type == "cuda" else FEW_COUNTS
        make = importlib.import_module(LAYERS[name]).PyNcclCommunicator
        self.comm = make(dist.group.WORLD, device)
        if not self.comm.available:
            raise RuntimeError(f"{name}: its layer found no NCCL")
        self.comm.disabled = False  # SGLang's is off until it is asked for

    def has(self, method: str, parameter: str = "") -> bool:
        """Whether the layer offers it: the two differ, and so do their versions."""
        found = getattr(self.comm, method, None)
        return found is not None and (
            not parameter or parameter in inspect.signature(found).parameters
        )

    def data(self, rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What `rank` sends: any rank can make it again."""
        i = torch.arange(count, dtype=torch.int64, device=self.device)
        return ((i * 7 + rank * 3 + i // 1024) % 5).to(dtype)

    def mine(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What this rank sends."""
        return self.data(self.rank, count, dtype)

    def reduced(
        self, count: int, dtype: torch.dtype = torch.float32, op: str = "sum"
    ) -> torch.Tensor:
        """Of all ranks' data, exact in 64 bits."""
        every = torch.stack([self.data(rank, count, torch.int64) for rank in range(self.size)])
        if op in ("sum", "prod"):
            return getattr(every, op)(0).to(dtype)
        return getattr(every, f"a{op}")(0).to(dtype)

    def room(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Full of what no result is."""
        return torch.full((count,), 99, dtype=dtype, device=self.device)

    def same(self, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        """Counts a result; says where it is wrong."""
        self.done += 1
        if torch.equal(got, want):
            return
        self.wrong += 1
        bad = (got != want).nonzero().flatten()
        print(
            f"rank {self.rank}: WRONG {what}: {bad.numel()} of {want.numel()}, first "
            f"{int(bad[0])}: {got[bad[0]].item()} for {want[bad[0]].item()}",
            flush=True,
        )


# ---- sections ----


def all_reduces(at: Layer) -> None:
    """In place and not, by what each of the two calls it."""
    for dtype in DTYPES:
        for op, redop in REDOPS.items():
            for count in at.counts:
                what = f"{count} x {dtype} {op}"
                want = at.reduced(count, dtype, op)
                own, out = at.mine(count, dtype), at.room(count, dtype)
                if at.has("outplace_all_reduce"):
                    at.comm.outplace_all_reduce(own, out, redop)
                    at.comm.all_reduce(own, redop)
                else:
                    at.comm.all_reduce(own, out, redop)
                    at.comm.all_reduce(own, own, redop)
                at.same("all_reduce " + what, out, want)
                at.same("all_reduce in place " + what, own, want)


def all_gathers(at: Layer) -> None:
    """Equal parts."""
    for dtype in DTYPES:
        for count in at.counts:
            out = at.room(count * at.size, dtype)
            at.comm.all_gather(out, at.mine(count, dtype))
            want = torch.cat([at.data(rank, count, dtype) for rank in range(at.size)])
            at.same(f"all_gather {count} x {dtype}", out, want)


def sizes_of(at: Layer, count: int) -> list[int]:
    """Another size for every rank."""
    return [count + 17 * rank for rank in range(at.size)]


def unequal_all_gathers(at: Layer) -> None:
    """A group of broadcasts, each from another rank."""
    for count in at.counts:
        sizes = sizes_of(at, count)
        out, own = at.room(sum(sizes)), at.mine(sizes[at.rank])
        if at.has("all_gatherv"):
            at.comm.all_gatherv(out, own, sizes)
        else:
            at.comm.all_gather(out, own, sizes=sizes)
        want = torch.cat([at.data(rank, size) for rank, size in enumerate(sizes)])
        at.same(f"all_gatherv {count}", out, want)


def reduce_scatters(at: Layer) -> None:
    """Equal parts."""
    for dtype in DTYPES:
        for op, redop in REDOPS.items():
            for count in at.counts:
                out = at.room(count, dtype)
                at.comm.reduce_scatter(out, at.mine(count * at.size, dtype), redop)
                want = at.reduced(count * at.size, dtype, op)
                at.same(f"reduce_scatter {count} x {dtype} {op}", out, want.split(count)[at.rank])


def unequal_reduce_scatters(at: Layer) -> None:
    """A group of reductions, each to another rank: these are NCCL's."""
    for count in at.counts:
        sizes = sizes_of(at, count)
        out, own = at.room(sizes[at.rank]), at.mine(sum(sizes))
        if at.has("reduce_scatterv"):
            at.comm.reduce_scatterv(out, own, sizes)
        else:
            at.comm.reduce_scatter(out, own, sizes=sizes)
        want = at.reduced(sum(sizes)).split(sizes)[at.rank]
        at.same(f"reduce_scatterv {count}", out, want)


def to_and_from_one(at: Layer) -> None:
    """Broadcasts from every rank, in which the others give no buffer to send from; reductions and
    scatters where the layer has them.
    """
    for root in range(at.size):
        for count in at.counts:
            cast = at.mine(count) if at.rank == root else at.room(count)
            at.comm.broadcast(cast, root)
            at.same(f"broadcast {count} from {root}", cast, at.data(root, count))
            if at.has("reduce"):
                out = at.room(count)
                at.comm.reduce(out, at.mine(count), root)
                if at.rank == root:
                    want = at.reduced(count)
                    at.same(f"reduce {count} to {root}", out, want)
            if at.has("scatter"):
                sizes = sizes_of(at, count)
                out = at.room(sizes[at.rank])
                at.comm.scatter(out, at.mine(sum(sizes)), sizes, root)
                want = at.data(root, sum(sizes)).split(sizes)[at.rank]
                at.same(f"scatter {count} from {root}", out, want)


def messages(at: Layer) -> None:
    """A ring in one group, then each pair alone, then the layer's own batch of them."""
    right, left = (at.rank + 1) % at.size, (at.rank - 1) % at.size
    for count in at.counts:
        out = at.room(count)
        at.comm.group_start()
        at.comm.send(at.mine(count), right)
        at.comm.recv(out, left)
        at.comm.group_end()
        at.same(f"ring {count}", out, at.data(left, count))
        if at.rank == 0:
            at.comm.send(at.mine(count), at.size - 1)
        elif at.rank == at.size - 1:
            out = at.room(count)
            at.comm.recv(out, 0)
            at.same(f"recv {count}", out, at.data(0, count))
        if at.has("batch_isend_irecv"):
            out = at.room(count)
            ring = [
                dist.P2POp(dist.isend, at.mine(count), right),
                dist.P2POp(dist.irecv, out, left),
            ]
            at.comm.batch_isend_irecv(ring)
            at.same(f"batch {count}", out, at.data(left, count))


def all_to_alls(at: Layer) -> None:
    """SGLang's, a group of messages of equal blocks."""
    for count in at.counts:
        out = at.room(count * at.size)
        at.comm.all_to_all_single(out, at.mine(count * at.size))
        want = [at.data(rank, count * at.size).split(count)[at.rank] for rank in range(at.size)]
        at.same(f"all_to_all {count}", out, torch.cat(want))


def groups(at: Layer) -> None:
    """Several calls of several kinds between group_start and group_end."""
    sums = [at.mine(1000 * (i + 1)) for i in range(4)]
    parts = at.room(500 * at.size)
    at.comm.group_start()
    for tensor in sums:
        reduce_into(at, tensor, tensor)
    at.comm.all_gather(parts, at.mine(500))
    at.comm.group_end()
    for i, tensor in enumerate(sums):
        at.same(f"grouped sum {i}", tensor, at.reduced(1000 * (i + 1)))
    want = torch.cat([at.data(rank, 500) for rank in range(at.size)])
    at.same("grouped all_gather", parts, want)


def reduce_into(at: Layer, source: torch.Tensor, result: torch.Tensor) -> None:
    """An out-of-place sum, by what each of the two calls it."""
    (at.comm.outplace_all_reduce if at.has("outplace_all_reduce") else at.comm.all_reduce)(
        source, result
    )


def graphs(at: Layer) -> None:
    """All calls in one graph, replayed with new numbers, on memory that nobody registered."""
    for count in at.counts[1:]:
        replayed(at, f"graph of {count}", *(at.room(n * count) for n in (1, 1, at.size, 1)))


def replayed(
    at: Layer,
    what: str,
    source: torch.Tensor,
    result: torch.Tensor,
    parts: torch.Tensor,
    part: torch.Tensor,
) -> None:
    """A graph of a sum, an all-gather, a reduce-scatter of what was gathered and a broadcast."""
    count = source.numel()
    cast = at.room(count)

    def calls() -> None:
        reduce_into(at, source, result)
        at.comm.all_gather(parts, source)
        at.comm.reduce_scatter(part, parts)
        cast.copy_(source)
        at.comm.broadcast(cast, 0)

    source.copy_(at.mine(count))
    calls()  # once eagerly, as both do before they capture
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    for turn in range(3):
        source.copy_(at.data(at.rank + turn, count))
        graph.replay()
        every = [at.data(rank + turn, count) for rank in range(at.size)]
        at.same(f"{what}: sum, replay {turn}", result, sum(every))
        at.same(f"{what}: all_gather, replay {turn}", parts, torch.cat(every))
        at.same(f"{what}: reduce_scatter, replay {turn}", part, at.size * every[at.rank])
        at.same(f"{what}: broadcast, replay {turn}", cast, every[0])
    torch.cuda.synchronize()


class Memory:
    """Of ncclMemAlloc, which the layer's own library has; a tensor of it through CUDA's array
    interface.
    """

    def __init__(self, at: Layer, count: int) -> None:
        self._library, self._at = at.comm.nccl.lib, at
        pointer, self.nbytes = ctypes.c_void_p(), count * 4
        code = self._library.ncclMemAlloc(ctypes.byref(pointer), ctypes.c_size_t(self.nbytes))
        if code:
            raise RuntimeError(f"ncclMemAlloc of {self.nbytes} bytes answered {code}")
        self.address = pointer.value
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<f4",
            "data": (self.address, False),
            "version": 3,
        }
        self.tensor = torch.as_tensor(self, device=at.device)
        assert self.tensor.data_ptr() == self.address
        self.window = at.comm.register_comm_window_raw(self.address, self.nbytes)

    def close(self) -> None:
        """Collective, as making a window is."""
        self._at.comm.deregister_comm_window(self.window)
        self._library.ncclMemFree(ctypes.c_void_p(self.address))


def windows(at: Layer) -> None:
    """Symmetric windows: eagerly, then in a graph, then given back."""
    count = 1 << 20
    source, result, parts, part = (Memory(at, n * count) for n in (1, 1, at.size, 1))
    source.tensor.copy_(at.mine(count))
    reduce_into(at, source.tensor, result.tensor)
    want = at.reduced(count)
    at.same("sum in windows", result.tensor, want)
    tensors = [memory.tensor for memory in (source, result, parts, part)]
    replayed(at, "graph in windows", *tensors)
    torch.cuda.synchronize()
    dist.barrier()
    for memory in (source, result, parts, part):
        memory.close()


def with_options(at: Layer) -> None:
    """SGLang's communicator for symmetric memory, made by ncclCommInitRankConfig."""
    first = at.comm
    at.comm = type(first)(dist.group.WORLD, at.device, is_symmetric_memory_enabled=True)
    at.comm.disabled = False
    groups(at)
    if at.device.type == "cuda":
        windows(at)
    at.comm = first


def suspensions(at: Layer) -> None:
    """vLLM's sleep mode."""
    at.comm.suspend()
    at.comm.resume()
    own = at.mine(1000)
    at.comm.all_reduce(own, own)
    at.same("sum after resume", own, at.reduced(1000))


def sections(at: Layer) -> dict[str, Callable[[Layer], None]]:
    """What this layer offers, and this device can."""
    found = {
        "all_reduce": all_reduces,
        "all_gather": all_gathers,
        "all_gather, unequal": unequal_all_gathers,
        "reduce_scatter": reduce_scatters,
        "reduce_scatter, unequal": unequal_reduce_scatters,
        "broadcast, reduce, scatter": to_and_from_one,
        "send and recv": messages,
        "groups": groups,
    }
    if at.has("all_to_all_single"):
        found["all_to_all"] = all_to_alls
    if "is_symmetric_memory_enabled" in inspect.signature(type(at.comm)).parameters:
        found["communicator with options"] = with_options
    if at.device.type == "cuda":
        found |= {"graphs": graphs, "windows": windows}
    if at.has("suspend") and at.comm.nccl_version >= SUSPENDS:
        found["suspend and resume"] = suspensions
    return found


# ---- times ----


def captured(at: Layer, tensor: torch.Tensor, result: torch.Tensor) -> Callable[[], None]:
    """CALLS sums in one graph, as a decode has them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            reduce_into(at, tensor, result)
    return graph.replay


def eagerly(at: Layer, tensor: torch.Tensor, result: torch.Tensor) -> None:
    """CALLS sums one by one."""
    for _ in range(CALLS):
        reduce_into(at, tensor, result)


def time_us(run: Callable[[], None]) -> float:
    """Of one of CALLS sums, this rank's."""
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e6 / CALLS


def times(at: Layer) -> dict[str, list[float]]:
    """Of bfloat16 sums by size, eager and in graphs."""
    taken = {}
    for size, nbytes in TIMED.items():
        tensor, result = (at.room(nbytes // 2, torch.bfloat16) for _ in range(2))
        eager = partial(eagerly, at, tensor, result)
        eager()
        torch.cuda.synchronize()
        for how, run in (("eager", eager), ("graph", captured(at, tensor, result))):
            us = [time_us(run) for _ in range(SAMPLES + 1)]
            taken[f"all_reduce {size}, {how}"] = us[1:]
    return taken


def run(at: Layer) -> list[str]:
    """All sections; which of them raised."""
    failed = []
    for name, body in sections(at).items():
        done, wrong, began = at.done, at.wrong, time.monotonic()
        try:
            body(at)
            if at.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception:  # the others are worth knowing
            traceback.print_exc()
            failed.append(name)
        print(
            f"rank {at.rank}: {at.name}: {name}: {at.done - done} results, {at.wrong - wrong} "
            f"wrong, {time.monotonic() - began:.1f} s{', RAISED' if name in failed else ''}\n",
            end="",
            flush=True,
        )
        dist.barrier()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("--cpu", action="store_true", help="for a stand-in of the layer")
    parser.add_argument("--out", help="what was found, of a rank; %%r is its number")
    args = parser.parse_args()
    device = torch.device("cpu")
    if not args.cpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    at = Layer(args.layer, device)
    failed = run(at)
    told = {
        "what": f"{args.layer} {importlib.import_module(args.layer).__version__}, its NCCL layer",
        "device": "" if args.cpu else torch.cuda.get_device_name(),
        "checked": at.done,
        "wrong": at.wrong,
        "raised": failed,
        "times_us": {} if args.cpu else times(at),
    }
    if args.out:
        path = Path(args.out.replace("%r", str(at.rank)))
        path.write_text(json.dumps(told), encoding="utf-8")
    dist.barrier()
    if at.has("destroy"):
        at.comm.destroy()
    return 1 if at.wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())

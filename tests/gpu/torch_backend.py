"""braid.torch on CUDA tensors beside NCCL: every collective byte for byte, then a small GPT by DDP
and FSDP2, loss by loss, with the time of a step.

    braid run -n 2 tests/gpu/torch_backend.py [--quick]
    torchrun --nproc-per-node 2 tests/gpu/torch_backend.py
    braid run -n 2 tests/gpu/torch_backend.py --cpu      # beside Gloo, where there is no GPU

Rank 0 prints; the exit code is 1 when a byte or a loss differs. Numbers are such that every sum is
exact, so there is one right answer, whatever the order.
"""

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import braid.torch  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "recipes"))
from gpt import Shape, SmallGpt, batches

SUMMED = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64]
MOVED = [*SUMMED, torch.uint8, torch.bool]
Run = Callable[[Any], list[torch.Tensor]]


class Check:
    """Runs a call by both backends and compares what it left."""

    def __init__(self, device: torch.device, other: Any) -> None:
        self.device, self.other = device, other
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.cases = self.wrong = 0

    def mine(self, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
        """Small whole numbers that depend on position and rank."""
        values = (torch.arange(count, device=self.device) * 7 + 5 * self.rank + 3 * salt) % 11
        return values.to(dtype)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def alike(self, what: str, run: Run) -> None:
        self.same(what, run(None), run(self.other))

    def same(self, what: str, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
        self.cases += 1
        for a, b in zip(ours, theirs, strict=True):
            a, b = (t.cpu().contiguous().view(-1).view(torch.uint8) for t in (a, b))
            if a.shape == b.shape and torch.equal(a, b):
                continue
            self.wrong += 1
            first = int((a != b).nonzero()[0]) if a.shape == b.shape else -1
            print(f"rank {self.rank}: WRONG {what}, from byte {first}", flush=True)
            return


def reductions(check: Check, count: int, dtype: torch.dtype) -> None:
    n, what = check.size, f"{count} x {dtype}"
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        is_product = op == dist.ReduceOp.PRODUCT

        def part(length: int, is_product: bool = is_product) -> torch.Tensor:
            values = check.mine(length, torch.int64)  # products of 1 and 2 are exact in every type
            return (values % 2 + 1 if is_product else values).to(dtype)

        def all_reduce(group: Any, op: Any = op, part: Any = part) -> list[torch.Tensor]:
            tensor = part(count)
            dist.all_reduce(tensor, op, group=group)
            return [tensor]

        def reduce_scatter(group: Any, op: Any = op, part: Any = part) -> list[torch.Tensor]:
            out = check.empty(count, dtype)
            dist.reduce_scatter_tensor(out, part(n * count), op, group=group)
            return [out]

        def reduce(group: Any, op: Any = op, part: Any = part) -> list[torch.Tensor]:
            tensor = part(count)
            dist.reduce(tensor, n - 1, op, group=group)
            return [tensor] if check.rank == n - 1 else []

        for call in (all_reduce, reduce_scatter, reduce):
            check.alike(f"{call.__name__} {op} {what}", call)


def moves(check: Check, count: int, dtype: torch.dtype) -> None:
    n, what = check.size, f"{count} x {dtype}"

    def broadcast(group: Any) -> list[torch.Tensor]:
        tensor = check.mine(count, dtype)
        dist.broadcast(tensor, n - 1, group=group)
        return [tensor]

    def all_gather(group: Any) -> list[torch.Tensor]:
        out, parts = check.empty(n * count, dtype), [check.empty(count, dtype) for _ in range(n)]
        dist.all_gather_into_tensor(out, check.mine(count, dtype), group=group)
        dist.all_gather(parts, check.mine(count, dtype, 1), group=group)
        return [out, *parts]

    def all_to_all(group: Any) -> list[torch.Tensor]:
        out = check.empty(n * count, dtype)
        dist.all_to_all_single(out, check.mine(n * count, dtype), group=group)
        return [out]

    def gather(group: Any) -> list[torch.Tensor]:
        parts = [check.empty(count, dtype) for _ in range(n)] if check.rank == 0 else None
        dist.gather(check.mine(count, dtype), parts, dst=0, group=group)
        return parts or []

    def scatter(group: Any) -> list[torch.Tensor]:
        out = check.empty(count, dtype)
        parts = list(check.mine(n * count, dtype).split(count)) if check.rank == 0 else None
        dist.scatter(out, parts, src=0, group=group)
        return [out]

    for call in (broadcast, all_gather, all_to_all, gather, scatter):
        check.alike(f"{call.__name__} {what}", call)


def uneven(check: Check) -> None:
    n, rank = check.size, check.rank
    sent, received = [rank + j + 1 for j in range(n)], [i + rank + 1 for i in range(n)]

    def all_to_all(group: Any) -> list[torch.Tensor]:
        rows = check.mine(sum(sent) * 3, torch.float32).view(-1, 3)
        out = torch.zeros(sum(received), 3, device=check.device)
        dist.all_to_all_single(out, rows, received, sent, group=group)
        return [out]

    check.alike("all_to_all with split sizes", all_to_all)
    strided = check.mine(400, torch.float32).view(20, 20).t()
    dist.all_reduce(strided)
    plain = check.mine(400, torch.float32)
    dist.all_reduce(plain, group=check.other)
    check.same("all_reduce of a transposed tensor", [strided], [plain.view(20, 20).t()])


def bitwise(check: Check) -> None:
    """NCCL has none of these: beside the ranks' parts, combined here. Parts go as what they are."""
    combined = {
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    n = check.size
    for dtype in (torch.int32, torch.uint8, torch.int16, torch.int64):
        for count in (1, 1000, 1_000_003):
            parts = check.empty(n * count, torch.int64)
            dist.all_gather_into_tensor(parts, check.mine(count, torch.int64), group=check.other)
            for op, combine in combined.items():
                got = check.mine(count, dtype)
                dist.all_reduce(got, op)
                want = functools.reduce(combine, parts.view(n, count)).to(dtype)
                check.same(f"all_reduce {op} {count} x {dtype}", [got], [want])


def many_at_once(check: Check) -> None:
    """Asynchronous calls with work of the caller's between, and calls in one batch."""

    def overlapped(group: Any) -> list[torch.Tensor]:
        tensors = [check.mine(300_000 + i, torch.float32, i) for i in range(8)]
        works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
        busy = torch.ones(512, 512, device=check.device)
        for _ in range(20):
            busy = busy @ busy / 512
        for work in works:
            work.wait()
        return [t * 2 for t in tensors]

    def coalesced(group: Any) -> list[torch.Tensor]:
        tensors = [check.mine(100 + 70_000 * i, torch.float32, i) for i in range(4)]
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        return tensors

    def dropped(group: Any) -> list[torch.Tensor]:
        """Memory of a call on its way is not given to somebody else."""
        outs = []
        for i in range(20):
            tensor = check.mine(2_000_000, torch.float32, i)
            out = check.empty(2_000_000 * check.size, torch.float32)
            outs.append((dist.all_gather_into_tensor(out, tensor, group=group, async_op=True), out))
            del tensor
            check.mine(2_000_000, torch.float32, i + 50)
        for work, _ in outs:
            work.wait()
        return [out[::1000] for _, out in outs]

    for call in (overlapped, coalesced, dropped):
        check.alike(call.__name__, call)


def messages(check: Check) -> None:
    right, left = (check.rank + 1) % check.size, (check.rank - 1) % check.size
    for count in (1, 5000, 3_000_000):
        got = check.empty(count, torch.float32)
        ops = [
            dist.P2POp(dist.isend, check.mine(count, torch.float32), right),
            dist.P2POp(dist.irecv, got, left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        values = (torch.arange(count, device=check.device) * 7 + 5 * left) % 11
        check.same(f"message of {count}", [got], [values.float()])


def graph(check: Check) -> None:
    """Captured once, replayed with new data: by both ways, on both streams."""
    if check.device.type != "cuda":
        return
    tensor, other = (check.mine(100_000, torch.float32) for _ in range(2))
    strided = torch.empty(2, 100_000, device=check.device).t()[:, 0]
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor)
        dist.all_reduce(other, async_op=True).wait()
        dist.all_reduce(strided, async_op=True).wait()
    for salt in range(4):
        for each in (tensor, other, strided):
            each.copy_(check.mine(100_000, torch.float32, salt))
        captured.replay()
        want = check.mine(100_000, torch.float32, salt)
        dist.all_reduce(want, group=check.other)
        check.same(f"replay {salt}", [tensor, other, strided], [want, want, want])


def ends(check: Check) -> None:
    """Objects, sub-groups, and a barrier that waits for the GPU."""
    every: list[Any] = [None] * check.size
    dist.all_gather_object(every, check.rank)
    assert every == list(range(check.size))
    alone = dist.new_group([check.rank], use_local_synchronization=True)
    tensor = check.mine(10, torch.float32)
    dist.all_reduce(tensor, group=alone)
    check.same("a group of one", [tensor], [check.mine(10, torch.float32)])
    dist.barrier()


def collectives(check: Check, quick: bool) -> None:
    counts = [1, 1000, 70_001] if quick else [1, 17, 1000, 70_001, 1_000_003, 8_000_000]
    for count in counts:
        for dtype in SUMMED[:3] if quick else SUMMED:
            if check.device.type == "cuda" or dtype != torch.bfloat16:
                reductions(check, count, dtype)
        for dtype in MOVED:
            moves(check, count, dtype)
    for part in (uneven, bitwise, many_at_once, messages, graph, ends):
        part(check)


# ---- training ----


def wrapped(kind: str, group: Any, device: torch.device, shape: Shape) -> nn.Module:
    torch.manual_seed(0)
    model = SmallGpt(shape).to(device)
    if kind == "DDP":
        return DistributedDataParallel(model, process_group=group)
    mesh = DeviceMesh.from_group(group, device.type)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(
    kind: str, group: Any, device: torch.device, shape: Shape, steps: int
) -> tuple[list[float], float]:
    """Loss of every step and the median time of one, in ms."""
    model = wrapped(kind, group, device, shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, times_ms = [], []
    for text, wanted in batches(steps, 8, shape, dist.get_rank(), device):
        began = time.perf_counter()
        scores = model(text)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # the host waits for the GPU here
        times_ms.append((time.perf_counter() - began) * 1e3)
    return losses, statistics.median(times_ms[steps // 4 :])


def training(check: Check, shape: Shape, steps: int) -> None:
    """Both backends in turn. With two ranks a sum has one order, and losses must be equal to what
    kernels that add in any order leave; with more, close.
    """
    for kind in ("DDP", "FSDP2"):
        ours, ours_ms = train(kind, dist.group.WORLD, check.device, shape, steps)
        theirs, theirs_ms = train(kind, check.other, check.device, shape, steps)
        gap = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        is_right = gap < 0.02 and ours[-1] < ours[0]
        check.cases += 1
        check.wrong += not is_right
        if check.rank == 0:
            name = dist.get_backend(check.other)
            print(
                f"{kind}: loss {ours[0]:.4f} to {ours[-1]:.4f}, {name} to {theirs[-1]:.4f}, largest"
                f" gap {gap:.2e}; step {ours_ms:.2f} ms, {name} {theirs_ms:.2f} ms",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true", help="CPU tensors, beside Gloo")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if not args.cpu:
        num_gpus = torch.cuda.device_count()
        device = torch.device("cuda", local_rank % num_gpus)
        torch.cuda.set_device(device)
        if int(os.environ["WORLD_SIZE"]) > num_gpus:  # NCCL takes no two ranks of a host on a GPU
            os.environ["NCCL_HOSTID"] = f"rank {local_rank}"
    dist.init_process_group("braid")
    check = Check(device, dist.new_group(backend="gloo" if args.cpu else "nccl"))
    collectives(check, args.quick or args.cpu)
    if check.rank == 0:
        print(f"collectives: {check.cases} cases, {check.wrong} wrong on this rank", flush=True)
    training(check, Shape(args.layers, args.width, max(1, args.width // 64)), args.steps)
    wrong = torch.tensor([check.wrong])
    dist.all_reduce(wrong)
    if check.rank == 0:
        print(f"torch backend: {check.cases} cases, {int(wrong)} wrong", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""GEMMs that communicate, on GPUs: every way of every operation against float64, bit for bit again,
in graphs, through layers; and ranks that mean different things.

    braid run -n 2 tests/gpu/overlap.py            a rank per GPU
    braid run -n 2 tests/gpu/overlap.py --share    all ranks on the first GPU
"""

import argparse
import os
import sys
from dataclasses import dataclass

import torch

import braid
from braid.errors import Error, InvalidArgument
from braid.overlap import ag_gemm, gemm_ar, gemm_rs, operations, shapes, way_of
from braid.overlap.shapes import Op
from braid.overlap.tuner import SEQUENTIAL
from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

MOST_ERROR = 4e-3
CALLS = {Op.AG_GEMM: ag_gemm, Op.GEMM_RS: gemm_rs, Op.GEMM_AR: gemm_ar}


def normal(seed, *shape, dtype=torch.float64):
    """The same on every rank, fresh in every run."""
    made = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=made, device="cuda").to(dtype).double()


@dataclass
class Case:
    """Inputs of all ranks, as this dtype holds them, and what each must get."""

    comm: braid.Comm
    op: Op
    rows: int  # of a shard
    columns: int
    depth: int
    dtype: torch.dtype
    layout: str
    seed: int

    def __post_init__(self):
        n, r = self.comm.size, self.comm.rank
        rows = self.rows * n
        whole = lambda key, *shape: normal(self.seed + key, *shape, dtype=self.dtype)  # noqa: E731
        self.bias = whole(1, self.columns)
        ws = [whole(10 + i, self.columns, self.depth) for i in range(n)]
        if self.op is Op.AG_GEMM:
            x = whole(2, rows, self.depth)
            mine, self.wanted = x[r * self.rows :][: self.rows], x @ ws[r].t() + self.bias
        else:
            xs = [whole(20 + i, rows, self.depth) for i in range(n)]
            total = sum(x @ w.t() for x, w in zip(xs, ws, strict=True)) + self.bias
            mine = xs[r]
            is_cut = self.op is Op.GEMM_RS
            self.wanted = total[r * self.rows :][: self.rows] if is_cut else total
        w = ws[r] if self.layout == "nk" else ws[r].t()
        self.x, self.w, self.b = (t.to(self.dtype).contiguous() for t in (mine, w, self.bias))

    def error(self, found):
        return float((found.double() - self.wanted).norm() / self.wanted.norm())

    def call(self):
        return CALLS[self.op](self.x, self.w, self.comm, bias=self.b, layout=self.layout)


class Checks:
    def __init__(self, comm):
        self.comm, self.failed, self.made = comm, 0, 0

    def expect(self, is_right, text):
        self.made += 1
        if not is_right:
            self.failed += 1
            print(f"rank {self.comm.rank}: WRONG {text}", flush=True)


def check_ways(checks, case, calls):
    """Each way that the tuner may take, and again and again the same bits."""
    shape = shapes.shape_of(case.op, case.x, case.w, case.b, case.layout, case.comm.size)
    why = shapes.why_sequential(shape, case.x, case.w, case.b)
    assert not why, why
    kernels = operations._kernels_of(case.comm)
    if kernels is None:
        kernels = operations._make_kernels(case.comm, case.x.device)
    for way in kernels.candidates(shape):
        ready = kernels.ready(shape, way)
        first = ready.run(case.comm, case.x, case.w, case.b)
        error = case.error(first)
        checks.expect(error < MOST_ERROR, f"{case.op.name} {shape} {way}: error {error:.2e}")
        changed = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(calls):
            changed += (ready.run(case.comm, case.x, case.w, case.b) != first).sum()
        checks.expect(int(changed) == 0, f"{case.op.name} {way}: {int(changed)} elements changed")


def check_captured(checks, case, way):
    first = case.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = case.call()
    for _ in range(3):
        found.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        checks.expect(torch.equal(found, first), f"{case.op.name} {way} replayed")


def check_tuned_and_captured(checks, case):
    first = case.call()
    checks.expect(case.error(first) < MOST_ERROR, f"{case.op.name} tuned")
    words = way_of(case.op.name.lower(), case.x, case.w, case.comm, layout=case.layout)
    if case.comm.rank == 0:
        print(f"{case.op.name} {case.rows} x {case.columns} x {case.depth}: {words}", flush=True)
    shape = shapes.shape_of(case.op, case.x, case.w, case.b, case.layout, case.comm.size)
    kernels = operations._kernels_of(case.comm)
    tuned = kernels.ways[shape]
    for way in kernels.candidates(shape):
        kernels.set_way(shape, way)
        check_captured(checks, case, way)
    kernels.set_way(shape, tuned)
    checks.expect(torch.equal(case.call(), first), f"{case.op.name} after replays")
    fresh = Case(case.comm, case.op, case.rows + 8, case.columns, case.depth, case.dtype,
                 case.layout, case.seed)  # fmt: skip
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fresh.call()
        checks.expect(False, "a capture before the first call went through")
    except InvalidArgument:
        pass


def check_larger_behind_a_capture(checks, comm, seed):
    """A call that needs a larger workspace behind a capture: replays go on, and write into nothing
    that the program has by then.
    """
    case = Case(comm, Op.AG_GEMM, 128, 512, 256, torch.bfloat16, "nk", seed)
    case.call()
    kernels = operations._kernels_of(comm)
    shape = shapes.shape_of(case.op, case.x, case.w, case.b, case.layout, comm.size)
    kernels.set_way(shape, next(way for way in kernels.candidates(shape) if way != SEQUENTIAL))
    first = case.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = case.call()
    at, nbytes = kernels._workspace.data_ptr(), kernels._workspace.numel()
    larger = Case(comm, Op.AG_GEMM, 2048, 512, 4096, torch.bfloat16, "nk", seed + 50)
    larger.call()
    checks.expect(kernels._workspace.data_ptr() != at, "the larger call needed no other workspace")
    others = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")  # where it was, if it was free
    for _ in range(3):
        found.fill_(float("nan"))
        graph.replay()
        error = larger.error(larger.call())
        torch.cuda.synchronize()
        checks.expect(torch.equal(found, first), "a replay behind a larger call")
        checks.expect(error < MOST_ERROR, f"the larger call beside replays: error {error:.2e}")
        checks.expect(not bool(others.any()), "a replay wrote into memory of the program's")


def places(tensor):
    """Equal elements that begin at no multiple of 16 bytes, and with gaps between rows."""
    behind = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")[1:]
    gap = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 3, dtype=tensor.dtype, device="cuda")
    for place in (behind.view(tensor.shape), gap[..., : tensor.shape[-1]]):
        yield place.copy_(tensor)


def check_places(checks, case):
    """Elements that lie badly on one rank alone: all ranks go one way still, to the same bits."""
    first = case.call()
    for name in ("x", "w", "b"):
        lies_well = getattr(case, name)
        for place in places(lies_well):
            if case.comm.rank == case.comm.size - 1:
                setattr(case, name, place)
            checks.expect(torch.equal(case.call(), first), f"{case.op.name}: {name} lies badly")
            setattr(case, name, lies_well)


def check_layers(checks, comm, rows, width):
    """Two linear layers and what lies between, against float64."""
    n, r, dtype = comm.size, comm.rank, torch.bfloat16
    x = normal(1, rows * n, width, dtype=dtype)
    up, down = normal(2, 4 * width, width) / width**0.5, normal(3, width, 4 * width) / width**0.5
    up, down = up.to(dtype).double(), down.to(dtype).double()
    leaves = [t.clone().requires_grad_() for t in (x, up, down)]
    wanted = torch.relu(leaves[0] @ leaves[1].t()) @ leaves[2].t()
    wanted.sum().backward()
    make = {"bias": False, "dtype": dtype, "device": "cuda"}
    first = ColumnParallelLinear(width, 4 * width, comm, **make)
    second = RowParallelLinear(4 * width, width, comm, **make)
    with torch.no_grad():
        first.weight.copy_(up.chunk(n, 0)[r])
        second.weight.copy_(down.chunk(n, 1)[r])
    mine = x.chunk(n, 0)[r].to(dtype).contiguous().requires_grad_()
    y = second(torch.relu(first(mine)))
    y.sum().backward()
    for name, found, right in (
        ("y", y, wanted.chunk(n, 0)[r]),
        ("dx", mine.grad, leaves[0].grad.chunk(n, 0)[r]),
        ("d up", first.weight.grad, leaves[1].grad.chunk(n, 0)[r]),
        ("d down", second.weight.grad, leaves[2].grad.chunk(n, 1)[r]),
    ):
        error = float((found.detach().double() - right.detach()).norm() / right.detach().norm())
        # Two products, rounded in between.
        checks.expect(error < 2 * MOST_ERROR, f"layers: {name}: error {error:.2e}")


def check_disagreement(checks, comm):
    """The last of a comm: ranks with another number of rows get an error, and no wrong numbers."""
    rows = 64 if comm.rank == 0 else 128
    x = torch.zeros(rows, 256, dtype=torch.bfloat16, device="cuda")
    w = torch.zeros(512, 256, dtype=torch.bfloat16, device="cuda")
    try:
        for _ in range(50):
            ag_gemm(x, w, comm)
            torch.cuda.synchronize()
    except Error:
        return
    checks.expect(False, "ranks with other rows heard of nothing")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    torch.cuda.set_device(0 if asked.share else int(os.environ.get("LOCAL_RANK", "0")))
    seed = int.from_bytes(os.urandom(3), "big")
    with braid.init() as comm:
        seed = comm.broadcast_object(seed)
        checks = Checks(comm)
        for op in Op:
            for rows, columns, depth, dtype, layout in (
                (128, 512, 256, torch.bfloat16, "nk"),
                (200, 520, 328, torch.float16, "kn"),
                (8, 1024, 512, torch.bfloat16, "nk"),
            )[:: 3 if asked.quick else 1]:
                seed += 100
                case = Case(comm, op, rows, columns, depth, dtype, layout, seed)
                check_ways(checks, case, asked.calls)
            check_tuned_and_captured(checks, case)
            check_places(checks, case)
        check_larger_behind_a_capture(checks, comm, seed + 1000)
        check_layers(checks, comm, 64, 256)
        if comm.size > 1:
            check_disagreement(checks, comm)
        print(f"overlap: rank {comm.rank}: {checks.made} checks, {checks.failed} wrong", flush=True)
        # Behind a disagreement the comm has failed: ranks part without a word.
        sys.stdout.flush()
        os._exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

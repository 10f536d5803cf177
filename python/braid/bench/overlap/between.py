"""Between GPUs: what one rank of a tensor-parallel layer does, by everybody who offers it.

All-gather + GEMM, GEMM + reduce-scatter and GEMM + all-reduce: a collective of NCCL or of braid
before or after cuBLAS, torch's fused operations on symmetric memory, and braid's kernels as tuned.
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

import braid
from braid.bench.overlap.models import MODELS
from braid.bench.overlap.stand import normal
from braid.launch import free_port
from braid.overlap import ag_gemm, gemm_ar, gemm_rs, sequential, way_of
from braid.overlap.shapes import NAMES, Op

Call = Callable[[], torch.Tensor]

ALONE = "GEMM alone"
BRAID = "braid"
NCCL = "NCCL and cuBLAS in turn"
_CHECKED_ROWS, _CHECKED_COLUMNS = 32, 4096  # of each shard, of C


@dataclass(frozen=True)
class Layer:
    """A product of one rank of `size`: m rows of all ranks, n columns, k deep."""

    model: str
    op: Op
    m: int
    n: int
    k: int
    size: int

    @property
    def rows(self) -> int:
        """Of a shard."""
        return self.m // self.size

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def __str__(self) -> str:
        name = {Op.AG_GEMM: "AG+GEMM", Op.GEMM_RS: "GEMM+RS", Op.GEMM_AR: "GEMM+AR"}[self.op]
        return f"TP{self.size}, {name}, {self.model}, m {self.m}, {self.m}x{self.n}x{self.k}"


def layers(models: list[str], rows: list[int], size: int) -> list[Layer]:
    """Of each model the first layer of its MLP, and the second with either way to add."""
    found = []
    for model in models:
        width, between = MODELS[model]
        for m in rows:
            found.append(Layer(model, Op.AG_GEMM, m, between // size, width, size))
            found.append(Layer(model, Op.GEMM_RS, m, width, between // size, size))
            found.append(Layer(model, Op.GEMM_AR, m, width, between // size, size))
    return found


def join_nccl(comm: braid.Comm) -> None:
    """torch's default group, of this comm's ranks. Collective."""
    port = comm.broadcast_object(free_port() if comm.rank == 0 else 0)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size,
        device_id=torch.device("cuda", torch.cuda.current_device()),
    )  # fmt: skip
    with suppress(ImportError):
        importlib.import_module(
            "torch.distributed._symmetric_memory"
        )  # brings the fused operations


class Rivals:
    """All contestants of one layer, on the same matrices."""

    def __init__(self, comm: braid.Comm, layer: Layer) -> None:
        self._comm, self._layer = comm, layer
        is_gather = layer.op is Op.AG_GEMM
        self._x = normal(layer.rows if is_gather else layer.m, layer.k, torch.bfloat16)
        self._w = normal(layer.n, layer.k, torch.bfloat16)
        self._whole = self._x.new_empty(layer.m, layer.k) if is_gather else self._x
        if is_gather:
            dist.all_gather_into_tensor(self._whole, self._x)
        self._c = self._x.new_empty(layer.m, layer.n)
        self._shard = self._x.new_empty(layer.rows, layer.n)

    def contestants(self) -> dict[str, Call]:
        """The GEMM alone first; each answers its result."""
        kernels = {Op.AG_GEMM: ag_gemm, Op.GEMM_RS: gemm_rs, Op.GEMM_AR: gemm_ar}[self._layer.op]
        nccl, torchs = {
            Op.AG_GEMM: (self._nccl_gathers, self._torch_gathers),
            Op.GEMM_RS: (self._nccl_scatters, self._torch_scatters),
            Op.GEMM_AR: (self._nccl_reduces, None),
        }[self._layer.op]
        ways: dict[str, Call] = {
            ALONE: self._gemm,
            NCCL: nccl,
            "braid and cuBLAS in turn": lambda: sequential.run(
                self._comm, self._layer.op, self._x, self._w, None, False
            ),
            BRAID: lambda: kernels(self._x, self._w, self._comm),
        }
        if torchs is not None:
            ways["torch, fused"] = torchs
        return ways

    def way(self) -> str:
        """braid's, in words."""
        return way_of(NAMES[self._layer.op], self._x, self._w, self._comm)

    def _gemm(self) -> torch.Tensor:
        return torch.matmul(self._whole, self._w.t(), out=self._c)

    def _nccl_gathers(self) -> torch.Tensor:
        dist.all_gather_into_tensor(self._whole, self._x)
        return self._gemm()

    def _nccl_scatters(self) -> torch.Tensor:
        dist.reduce_scatter_tensor(self._shard, self._gemm())
        return self._shard

    def _nccl_reduces(self) -> torch.Tensor:
        dist.all_reduce(self._gemm())
        return self._c

    def _torch_gathers(self) -> torch.Tensor:
        """return_A, so that it never takes the way over multicast."""
        _, made = torch.ops.symm_mem.fused_all_gather_matmul(
            self._x, [self._w.t()], 0, dist.group.WORLD.group_name, return_A=True
        )
        found: torch.Tensor = made[0]
        return found

    def _torch_scatters(self) -> torch.Tensor:
        found: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            self._x, self._w.t(), "sum", 0, dist.group.WORLD.group_name
        )
        return found

    def error(self, name: str, call: Call) -> float:
        """||found - wanted|| / ||wanted|| in float64, of some rows and columns. Collective."""
        if self._layer.op is Op.AG_GEMM and name != ALONE:
            self._whole.fill_(float("nan"))
        self._c.fill_(float("nan"))
        self._shard.fill_(float("nan"))
        found = call().clone()
        if self._layer.op is Op.AG_GEMM:
            dist.all_gather_into_tensor(self._whole, self._x)
        rows = self._checked_rows(found.shape[0])
        wanted = self._product(rows)
        if self._layer.op is not Op.AG_GEMM and name != ALONE:
            wanted = self._summed(found.shape[0])
        mine = found[rows][:, :_CHECKED_COLUMNS].double()
        return float((mine - wanted).norm() / wanted.norm())

    def _checked_rows(self, count: int) -> torch.Tensor:
        """Spread over `count`, the same on all ranks."""
        return torch.linspace(0, count - 1, min(count, _CHECKED_ROWS), device="cuda").long()

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        w = self._w[:_CHECKED_COLUMNS].double()
        return self._whole[rows].double() @ w.t()

    def _summed(self, count: int) -> torch.Tensor:
        """Of all ranks' products, the rows that this rank checks: those of every shard are added,
        where shards are what is found.
        """
        is_cut = self._layer.op is Op.GEMM_RS
        rows = self._checked_rows(count)
        mine = rows[:0].double()
        for shard in range(self._layer.size if is_cut else 1):
            total = self._product(rows + shard * self._layer.rows)
            dist.all_reduce(total)
            if not is_cut or shard == self._comm.rank:
                mine = total
        return mine

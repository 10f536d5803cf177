"""One GPU whose peers are host memory: the kernels of braid.overlap with the host link's real rate.

What would come from other ranks comes from pinned memory by copy engine; what would go to them goes
there. The host link is about seven times slower than NVLink, so shapes have as many more columns
(all-gather) or as much more depth (reduce-scatter) than the rank they stand for: communication
takes the same part of the GEMM's time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from braid import _braid
from braid.errors import InternalError

RANKS = 8
_TIMEOUT_NS = 3_000_000_000
_PAGE_BYTES = 128
_MOST_EPOCHS = 1 << 16
PRESET = "braid, flags preset"
"""Waits for nobody: a bound, no contestant."""
FORMS = {"256 below": 0, "256 beside": 1, "128 beside": 2, "256 across": 3}

Call = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A GEMM of one rank of RANKS: rows x columns, and what is summed."""

    name: str
    op: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float16 if self.dtype == "float16" else torch.bfloat16

    @property
    def rows(self) -> int:
        return self.m // RANKS

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True)
class Tiles:
    """What the tuner chooses among."""

    form: str
    band: int
    head: int = 0
    batches: int = 1
    batch_tiles: int = 0
    splits: bool = True

    def __str__(self) -> str:
        ends = [f"head {self.head}"] if self.head else []
        ends += [f"batches {self.batches}"] if self.batches > 1 else []
        ends += [f"batches of {self.batch_tiles} tiles"] if self.batch_tiles else []
        ends += [] if self.splits else ["no tile split"]
        return ", ".join([self.form, f"bands {self.band}", *ends])


class Stand:
    """The kernels, streams for either direction of the link, and what bounds the kernels' waits."""

    def __init__(self, gpu: int = 0) -> None:
        torch.cuda.set_device(gpu)
        self.gpu = gpu
        torch.zeros(1, device="cuda")
        self.kernels = _braid.OverlapKernels(gpu)
        self.incoming, self.outgoing, self.outgoing_too = (
            torch.cuda.Stream(priority=-1) for _ in range(3)
        )
        # Copy engines take flags out of pinned memory: one between two places of a GPU may be done
        # by a kernel, for which a GPU full of waiting blocks has no place.
        self.epochs = torch.arange(_MOST_EPOCHS, dtype=torch.int64).pin_memory()
        most = max(_braid.overlap_sums_bytes(choice_of(Tiles(form, 1))) for form in FORMS)
        self._sums = torch.empty(most, dtype=torch.uint8, device="cuda")
        self._summed = torch.zeros(_braid.OVERLAP_SUM_FLAGS_BYTES, dtype=torch.uint8, device="cuda")
        self.sums = _braid.OverlapSums()
        self.sums.at, self.sums.told = self._sums.data_ptr(), self._summed.data_ptr()
        self._page = torch.zeros(_PAGE_BYTES, dtype=torch.uint8).pin_memory()
        self._failed = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.bounds = _braid.OverlapBounds()
        self.bounds.timeout_ns, self.bounds.rank = _TIMEOUT_NS, 0
        self.bounds.page, self.bounds.failed = self._page.data_ptr(), self._failed.data_ptr()

    def check(self) -> None:
        """Raises when a kernel gave up."""
        torch.cuda.synchronize()
        words = self._page.view(torch.int32)
        if words[0] or self._failed.item():
            raise InternalError(
                f"overlap: a kernel waited for rank {words[3]}, tile {words[10]}, flag {words[11]}:"
                f" expected {words[6]}, seen {words[8]}"
            )

    def gemm(self, case: Case, a: Tensor, w: Tensor) -> _braid.OverlapGemm:
        gemm = _braid.OverlapGemm()
        gemm.dtype, gemm.is_kn = _braid.dtype_code(case.dtype), False
        gemm.ranks, gemm.rank = RANKS, 0
        gemm.shard_rows, gemm.columns, gemm.depth = case.rows, case.n, case.k
        gemm.a, gemm.w, gemm.bias = a.data_ptr(), w.data_ptr(), 0
        return gemm

    @contextmanager
    def beside(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """On `stream`, after what the current one holds now; not joined."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def join(self, *streams: torch.cuda.Stream) -> None:
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)


def choice_of(tiles: Tiles) -> _braid.OverlapChoice:
    choice = _braid.OverlapChoice()
    choice.form, choice.band, choice.head = FORMS[tiles.form], tiles.band, tiles.head
    choice.batches, choice.batch_tiles = tiles.batches, tiles.batch_tiles
    choice.splits = tiles.splits
    return choice


def current() -> int:
    return torch.cuda.current_stream().cuda_stream


def pinned(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Fresh normal data in pinned memory."""
    made = torch.empty(rows, columns, dtype=dtype).pin_memory()
    made.copy_(torch.randn(rows, columns, device="cuda").to(dtype))
    return made


def normal(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, columns, device="cuda").to(dtype)


def error_of(found: Tensor, a: Tensor, w: Tensor, rows: int = 64, columns: int = 4096) -> float:
    """||found - a w.T|| / ||a w.T|| in float64, of some rows and columns."""
    chosen = torch.randperm(a.shape[0], device="cuda")[:rows]
    wanted = a[chosen].double() @ w[:columns].double().t()
    return float((found[chosen][:, :columns].double() - wanted).norm() / wanted.norm())


class Plain:
    """The GEMM alone, all flags preset: the kernel's quality."""

    def __init__(self, stand: Stand, case: Case) -> None:
        self._stand, self._case = stand, case
        self._a, self._w = (normal(n, case.k, case.torch_dtype) for n in (case.m, case.n))
        self._c = torch.empty(case.m, case.n, dtype=case.torch_dtype, device="cuda")
        self._epoch = torch.ones(1, dtype=torch.int64, device="cuda")

    def contestants(self) -> dict[str, Call]:
        ways: dict[str, Call] = {"cuBLAS": self._cublas, "cuBLAS again": self._cublas}
        for form in [form for form in FORMS if form != "256 across"]:  # there is one shard
            for band in (4, 8, 16):
                tiles = Tiles(form, band)
                ways[f"braid {tiles}"] = lambda tiles=tiles: self._ours(tiles)  # type: ignore[misc]
        return ways

    def _cublas(self) -> None:
        torch.matmul(self._a, self._w.t(), out=self._c)

    def _ours(self, tiles: Tiles) -> None:
        places = _braid.OverlapGathered()
        places.c, places.arrived, places.piece_rows = self._c.data_ptr(), 0, 0
        gemm = self._stand.gemm(self._case, self._a, self._w)
        gemm.ranks, gemm.shard_rows = 1, self._case.m
        self._stand.kernels.gather(
            gemm, choice_of(tiles), places, self._epoch.data_ptr(), self._stand.bounds, current()
        )

    def wrong(self, call: Call) -> float:
        self._c.fill_(float("nan"))
        call()
        self._stand.check()
        return error_of(self._c, self._a, self._w)


EPOCHS = count(1)
"""Of all calls of a process: flags only grow, whoever used their memory before."""


def parts(tensor: Tensor, rows: int) -> list[Tensor]:
    """Shards, in the order of the ranks."""
    return [tensor[r * rows : (r + 1) * rows] for r in range(RANKS)]

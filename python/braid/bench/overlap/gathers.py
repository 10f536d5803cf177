"""The stand of all-gather and GEMM: seven shards of activations come from pinned memory."""

import torch

from braid import _braid
from braid.bench.overlap.stand import (
    EPOCHS,
    PRESET,
    RANKS,
    Call,
    Case,
    Stand,
    Tiles,
    choice_of,
    current,
    error_of,
    normal,
    parts,
    pinned,
)

_ORDER = [(-step) % RANKS for step in range(RANKS)]
"""Shards as they come: the own one is here."""


class Gathers:
    """All contestants of one case, on the same matrices."""

    def __init__(self, stand: Stand, case: Case) -> None:
        self._stand, self._case = stand, case
        dtype = case.torch_dtype
        self._host = pinned(case.m, case.k, dtype)
        self._window = torch.empty(case.m, case.k, dtype=dtype, device="cuda")
        self._w = normal(case.n, case.k, dtype)
        self._c = torch.empty(case.m, case.n, dtype=dtype, device="cuda")
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._flags = torch.zeros(RANKS, dtype=torch.int64, device="cuda")
        self._came = [torch.cuda.Event() for _ in range(RANKS)]
        self._window[: case.rows].copy_(self._host[: case.rows])

    def contestants(self) -> dict[str, Call]:
        ways: dict[str, Call] = {
            "GEMM alone": self._gemm,
            "copy, then cuBLAS": self._sequential,
            "chunked cuBLAS": self._chunked,
            "Triton, same flags": self._triton,
            PRESET: self._preset,
        }
        for tiles in self._tiles():
            ways[f"braid {tiles}"] = lambda tiles=tiles: self._ours(tiles)  # type: ignore[misc]
        return ways

    def _tiles(self) -> list[Tiles]:
        below, beside, across = "256 below", "256 beside", "256 across"
        if self._case.rows >= 1024:
            found = [(below, 8, 4), (below, 4, 4)]
        elif self._case.rows >= 512:
            found = [(below, 2, 0), (below, 4, 2), (beside, 4, 0)]
        elif self._case.rows >= 256:
            found = [(below, 2, 1), (below, 4, 1), (below, 7, 1)]
        else:
            found = [(across, 3, 1), (across, 2, 1), (beside, 8, 2)]
        return [Tiles(form, band, head) for form, band, head in found]

    def _gemm(self) -> None:
        torch.matmul(self._window, self._w.t(), out=self._c)

    def _preset(self) -> None:
        self._ours(self._tiles()[0], waits=False)

    def _copies(self) -> None:
        from_host, here = parts(self._host, self._case.rows), parts(self._window, self._case.rows)
        for shard in _ORDER[1:]:
            here[shard].copy_(from_host[shard], non_blocking=True)
            self._came[shard].record()

    def _sequential(self) -> None:
        self._copies()
        self._gemm()

    def _chunked(self) -> None:
        """As asynchronous tensor parallelism does it."""
        with self._stand.beside(self._stand.incoming):
            self._copies()
        here, there = parts(self._window, self._case.rows), parts(self._c, self._case.rows)
        for shard in _ORDER:
            if shard:
                torch.cuda.current_stream().wait_event(self._came[shard])
            torch.matmul(here[shard], self._w.t(), out=there[shard])

    def _copies_with_flags(self, epoch: int) -> None:
        flag = self._stand.epochs[epoch : epoch + 1]
        from_host, here = parts(self._host, self._case.rows), parts(self._window, self._case.rows)
        for shard in _ORDER[1:]:
            here[shard].copy_(from_host[shard], non_blocking=True)
            self._flags[shard : shard + 1].copy_(flag, non_blocking=True)

    def _begin(self, epoch: int) -> None:
        self._flags[:1].fill_(epoch)
        with self._stand.beside(self._stand.incoming):
            self._copies_with_flags(epoch)

    def _ours(self, tiles: Tiles, waits: bool = True) -> None:
        epoch = next(EPOCHS)
        self._epoch.fill_(epoch)
        if waits:
            self._begin(epoch)
        places = _braid.OverlapGathered()
        places.c, places.piece_rows = self._c.data_ptr(), self._case.rows
        places.arrived = self._flags.data_ptr() if waits else 0
        places.sums = self._stand.sums
        self._stand.kernels.gather(
            self._stand.gemm(self._case, self._window, self._w), choice_of(tiles), places,
            self._epoch.data_ptr(), self._stand.bounds, current(),
        )  # fmt: skip
        if waits:
            self._stand.join(self._stand.incoming)

    def _triton(self) -> None:
        from braid.bench.overlap.triton_gather import gather

        epoch = next(EPOCHS)
        self._begin(epoch)
        gather(self._window, self._w, self._c, self._flags, epoch, self._case.rows)
        self._stand.join(self._stand.incoming)

    def wrong(self, call: Call) -> float:
        """What comes is gone before, so nothing old can be taken for it."""
        rows = self._case.rows
        self._window[rows:].fill_(float("nan"))
        self._c.fill_(float("nan"))
        if call in (self._gemm, self._preset):
            self._copies()
        call()
        self._stand.check()
        return error_of(self._c, self._host.cuda(), self._w)

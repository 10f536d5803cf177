"""The stand of GEMM and reduce-scatter: seven shards' parts go to pinned memory, as many parts of
the own shard come from there, and are added.
"""

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
    normal,
    parts,
    pinned,
)


class Scatters:
    """All contestants of one case, on the same matrices."""

    def __init__(self, stand: Stand, case: Case) -> None:
        self._stand, self._case = stand, case
        dtype, rows = case.torch_dtype, case.rows
        self._a, self._w = normal(case.m, case.k, dtype), normal(case.n, case.k, dtype)
        self._full = torch.empty(case.m, case.n, dtype=dtype, device="cuda")
        self._out = torch.empty(rows, case.n, dtype=dtype, device="cuda")
        # The rivals' parts: rows of C.
        self._sent = torch.empty(case.m, case.n, dtype=dtype).pin_memory()
        self._theirs = pinned(case.m, case.n, dtype)
        self._came = torch.empty(RANKS, rows, case.n, dtype=dtype, device="cuda")
        # Ours: parts as the kernel has them. The largest of all tiles' serves all.
        gemm = stand.gemm(case, self._a, self._w)
        choices = [choice_of(tiles) for tiles in self._tiles()]
        part = max(_braid.overlap_part_bytes(gemm, choice) for choice in choices)
        flags = max(_braid.overlap_flags_of_one(gemm, choice) for choice in choices)
        self._to_host = torch.empty(RANKS * part, dtype=torch.uint8).pin_memory()
        self._from_host = pinned(1, RANKS * part // 2, dtype).view(-1).view(torch.uint8)
        self._staged, self._outbox = (
            torch.empty(RANKS * part, dtype=torch.uint8, device="cuda") for _ in range(2)
        )
        self._told = torch.zeros(RANKS * flags, dtype=torch.int64, device="cuda")
        self._told_before = torch.full_like(self._told, 1 << 60)
        self._told_host = torch.zeros(flags, dtype=torch.int64).pin_memory()
        self._epochs = torch.zeros(64, flags, dtype=torch.int64).pin_memory()
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cuda")
        counters = max(_braid.overlap_num_counters(gemm, choice) for choice in choices)
        self._finished = torch.zeros(counters, dtype=torch.int32, device="cuda")

    def contestants(self) -> dict[str, Call]:
        ways: dict[str, Call] = {
            "GEMM alone": self._gemm,
            "cuBLAS, then copy": self._sequential,
            "chunked cuBLAS": self._chunked,
            PRESET: self._preset,
        }
        for tiles in self._tiles():
            ways[f"braid {tiles}"] = lambda tiles=tiles: self._ours(tiles, True)  # type: ignore[misc]
        first = self._tiles()[0]
        ways[f"braid {first}, pushed by the kernel"] = lambda: self._ours(first, False)
        return ways

    def _tiles(self) -> list[Tiles]:
        """Bands have whole shards or divide them, so that batches are through one by one; or all
        others' shards, and a batch is what 66 clusters make of one in a round.
        """
        below, beside, across = "256 below", "256 beside", "256 across"
        if self._case.rows >= 1024:
            return [Tiles(below, band, batches=2) for band in (8, 4, 16)]
        if self._case.rows >= 512:
            return [Tiles(below, 2, batches=2), Tiles(below, 4, batches=4)]
        if self._case.rows >= 256:
            found = [Tiles(below, 7, batch_tiles=18), Tiles(below, 4, batches=4)]
            return [*found, Tiles(below, 2, batches=4)]
        found = [Tiles(across, 3, batch_tiles=22), Tiles(across, 2, batches=4)]
        return [*found, Tiles(beside, 7, batches=4)]

    def _gemm(self) -> None:
        torch.matmul(self._a, self._w.t(), out=self._full)

    def _come(self) -> None:
        rows = self._case.rows
        for shard in range(1, RANKS):
            self._came[shard].copy_(parts(self._theirs, rows)[shard], non_blocking=True)

    def _add(self) -> None:
        self._came[0].copy_(self._full[: self._case.rows])
        torch.sum(self._came, 0, out=self._out)

    def _sequential(self) -> None:
        self._gemm()
        with self._stand.beside(self._stand.incoming):
            self._come()
        rows = self._case.rows
        self._sent[rows:].copy_(self._full[rows:], non_blocking=True)
        self._stand.join(self._stand.incoming)
        self._add()

    def _chunked(self) -> None:
        """A product for every owner, each copied away while the next is computed."""
        stand, rows = self._stand, self._case.rows
        with stand.beside(stand.incoming):
            self._come()
        a, full, sent = (parts(x, rows) for x in (self._a, self._full, self._sent))
        for shard in [*range(1, RANKS), 0]:
            torch.matmul(a[shard], self._w.t(), out=full[shard])
            if shard:
                with stand.beside(stand.outgoing):
                    sent[shard].copy_(full[shard], non_blocking=True)
        stand.join(stand.outgoing, stand.incoming)
        self._add()

    def _preset(self) -> None:
        """The kernel alone: all parts are here, and none goes anywhere."""
        self._epoch.fill_(next(EPOCHS))
        self._launch(self._tiles()[0], self._told_before, is_pushed=False)

    def _ours(self, tiles: Tiles, by_engines: bool) -> None:
        stand, epoch = self._stand, next(EPOCHS)
        self._epoch.fill_(epoch)
        if by_engines:
            self._finished.zero_()
        with stand.beside(stand.incoming):
            self._come_as_parts(tiles, epoch)
        outgoing = (stand.outgoing, stand.outgoing_too)
        for stream in outgoing:
            stream.wait_stream(torch.cuda.current_stream())
        self._launch(tiles, self._told, is_pushed=not by_engines)
        if by_engines:
            self._push(tiles, outgoing)
        stand.join(stand.incoming, *outgoing)

    def _of(self, tiles: Tiles) -> tuple[_braid.OverlapGemm, _braid.OverlapChoice, int, int]:
        """And the bytes and the flags of a part."""
        gemm, choice = self._stand.gemm(self._case, self._a, self._w), choice_of(tiles)
        part = _braid.overlap_part_bytes(gemm, choice)
        return gemm, choice, part, _braid.overlap_flags_of_one(gemm, choice)

    def _come_as_parts(self, tiles: Tiles, epoch: int) -> None:
        """Of one rank after the other; the last one's in batches, since its end is waited for."""
        _, _, part, flags = self._of(tiles)
        told = self._epochs[epoch % len(self._epochs)][:flags]
        told.fill_(epoch)
        for shard in range(1, RANKS):
            count = tiles.batches if shard == RANKS - 1 else 1
            step = -(-flags // 2 // count) * 2
            for first in range(0, flags, step):
                halves = min(step, flags - first)
                begin, nbytes = shard * part + first * (part // flags), halves * (part // flags)
                self._staged[begin : begin + nbytes].copy_(
                    self._from_host[begin : begin + nbytes], non_blocking=True
                )
                self._told[shard * flags + first : shard * flags + first + halves].copy_(
                    told[first : first + halves], non_blocking=True
                )

    def _launch(self, tiles: Tiles, told: torch.Tensor, is_pushed: bool) -> None:
        gemm, choice, part, _ = self._of(tiles)
        places = _braid.OverlapParted()
        # Part 0 of each owner's memory: the owners' memories are one, part by part.
        to_host = [self._to_host.data_ptr() + shard * part for shard in range(1, RANKS)]
        places.parts = [self._staged.data_ptr(), *to_host]
        places.told = [told.data_ptr()] + [self._told_host.data_ptr()] * (RANKS - 1)
        places.c = [self._out.data_ptr()] + [0] * (RANKS - 1)
        places.num_c, places.is_whole, places.num_slots = 1, False, 1
        places.outbox = self._outbox.data_ptr()
        places.finished = 0 if is_pushed else self._finished.data_ptr()
        places.sums = self._stand.sums
        self._stand.kernels.scatter(
            gemm, choice, places, self._epoch.data_ptr(), self._stand.bounds, current()
        )

    def _push(self, tiles: Tiles, streams: tuple[torch.cuda.Stream, ...]) -> None:
        """By turns, as a comm's calls do it (src/overlap/calls.cc)."""
        gemm, choice, part, flags = self._of(tiles)
        of_half = part // flags
        for i, (shard, counter, first, halves) in enumerate(_braid.overlap_pushes(gemm, choice)):
            stream = streams[i % len(streams)]
            at = self._finished.data_ptr() + 4 * counter
            _braid.wait_value(self._stand.gpu, stream.cuda_stream, at, halves)
            begin, nbytes = shard * part + first * of_half, halves * of_half
            with torch.cuda.stream(stream):
                self._to_host[begin : begin + nbytes].copy_(
                    self._outbox[begin : begin + nbytes], non_blocking=True
                )

    def wrong(self, call: Call) -> float:
        """Of the own shard, where what came is as much as the own part: parts of others are random
        bits in the kernel's own order, so they are zeros here.
        """
        theirs, from_host, staged = (
            x.clone() for x in (self._theirs, self._from_host, self._staged)
        )
        self._theirs.zero_(), self._from_host.zero_(), self._staged.zero_()
        self._out.fill_(float("nan"))
        call()
        self._stand.check()
        self._theirs.copy_(theirs), self._from_host.copy_(from_host), self._staged.copy_(staged)
        own = self._full if call == self._gemm else self._out
        rows = min(64, self._case.rows)
        wanted = self._a[:rows].double() @ self._w[:4096].double().t()
        return float((own[:rows, :4096].double() - wanted).norm() / wanted.norm())

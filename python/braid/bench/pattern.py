"""Data on the GPU that depends on its place and its rank, and the comparison of results with it.

Values are small integers, so that every order of summation, in any type, gives the same bits, and
`wrong` can mean bytes for every library alike. They repeat after a prime number of elements, which
no chunk, slot or block size divides.
"""

import numpy as np
import torch

from braid.cases.gpu import SUM, GpuCase, Segment, expected, pieces
from braid.cases.host import pattern

_PERIOD = 1048573
_REPEATS = 8  # periods in one tile: fewer and longer copies and comparisons
_STALE = 0xA5  # what results hold before a checked call


def _digits(rank: int, ranks: int, dtype: torch.dtype) -> torch.Tensor:
    """One period of a rank's data, or of the sum: -4 to 3, or 0 to 7 where there is no sign."""
    sources = range(ranks) if rank == SUM else [rank]
    total = sum(pattern(r, _PERIOD, np.dtype(np.int32)) for r in sources)
    shift = 4 * len(sources) if dtype == torch.uint8 else 0
    return torch.from_numpy(np.asarray(total + shift)).to(dtype)


class Data:
    """The data of all ranks for one type, and of their sum."""

    def __init__(self, dtype: str, rank: int, ranks: int, device: torch.device) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._rank, self._ranks, self._device = rank, ranks, device
        self._tiles: dict[int, torch.Tensor] = {}

    def _tile(self, source: int) -> torch.Tensor:
        if source not in self._tiles:
            period = _digits(source, self._ranks, self.dtype)
            self._tiles[source] = period.repeat(_REPEATS).to(self._device)
        return self._tiles[source]

    def fill(self, target: torch.Tensor, source: int) -> None:
        """Puts a source's data into `target`, from its beginning."""
        whole = Segment(0, target.numel(), source, 0)
        tile = self._tile(source)
        for start, place, count in pieces(whole, tile.numel()):
            target[start : start + count].copy_(tile[place : place + count])

    def soil(self, target: torch.Tensor) -> None:
        """Fills with bytes of no result."""
        target.view(torch.uint8).fill_(_STALE)

    def wrong_bytes(self, case: GpuCase, result: torch.Tensor, factor: int = 1) -> int:
        """Bytes of this rank's result that are not what they must be, times `factor`."""
        wrong = torch.zeros((), dtype=torch.int64, device=result.device)
        for segment in expected(case, self._rank):
            tile = _times(self._tile(segment.source), factor)
            for start, place, count in pieces(segment, tile.numel()):
                found = result[start : start + count].view(torch.uint8)
                wrong += (found != tile[place : place + count].view(torch.uint8)).sum()
        return int(wrong)


def _times(tile: torch.Tensor, factor: int) -> torch.Tensor:
    """As often added: integers wrap as their sums do."""
    if factor == 1:
        return tile
    if tile.is_floating_point():
        return tile * float(factor)
    bits = 8 * tile.element_size()
    wrapped = factor % (1 << bits)
    if tile.dtype.is_signed and wrapped >= 1 << (bits - 1):
        wrapped -= 1 << bits
    return tile * wrapped

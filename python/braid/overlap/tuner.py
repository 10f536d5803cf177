"""Which way a shape goes: measured once, the slowest rank counts, all take the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from braid.comm import Comm
from braid.overlap.shapes import Op, Shape

ACROSS = "128x256 across"
FORMS = {"128x256 below": 0, "128x256 beside": 1, "128x128 beside": 2, ACROSS: 3}
"""The numbers of overlap::Form in src/overlap/forms.h."""
_TILE_ROWS, _COLUMNS = 128, 256
_MOST_BAND = 8
"""Rows of units: of all shards but the own one, where a batch is what a round makes of each."""
_BATCHES = 4
_LEAST_BATCHED = 1 << 20
"""Bytes of a part: of less, a copy takes no longer than to begin it."""
_CALLS = 5
_WARM = 2
_ROUNDS = 3
_LAST_ROUNDS = 9
"""Of the fastest and the sequential way alone, once more."""
_LEAST_GAIN = 0.02
"""Of the sequential way's time: a way that seems faster by less may be slower in the next call."""


@dataclass(frozen=True)
class Way:
    """How a call goes; `form` empty: the sequential way."""

    form: str = ""
    band: int = 8
    head: int = 0
    piece_rows: int = 0
    by_engines: bool = True
    batches: int = 1
    batch_tiles: int = 0
    exchanges: bool = False

    def __str__(self) -> str:
        if not self.form:
            return "sequential"
        ends = [f"the first {self.head} rows apart"] if self.head else []
        ends += [f"pieces of {self.piece_rows} rows"] if self.piece_rows else []
        ends += [f"parts in {self.batches} batches"] if self.batches > 1 else []
        ends += [f"parts in batches of {self.batch_tiles} tiles"] if self.batch_tiles else []
        ends += ["whole parts to all"] if self.exchanges else []
        ends += [] if self.by_engines else ["pushed by the kernel"]
        return ", ".join([f"tiles {self.form}", f"bands of {self.band}", *ends])


SEQUENTIAL = Way()


def _unit_rows(form: str) -> int:
    return 256 if form.endswith("below") else 128


def candidates(shape: Shape, clusters: int) -> Iterator[Way]:
    """The sequential way first. Bands are of about 1,024 rows, and end where a shard does: a band
    begins when all of it is here, or goes away when all of it is made. `clusters` of two blocks
    are what a call has of this GPU.
    """
    yield SEQUENTIAL
    yield from _across(shape, clusters)
    for form in FORMS:
        if form == ACROSS:
            continue
        rows = -(-shape.shard_rows // _unit_rows(form))
        if form.endswith("below") and shape.shard_rows <= 128:
            continue  # half of every cluster would have nothing to do
        most = max(1024 // _unit_rows(form), 1)
        if shape.op is Op.AG_GEMM:
            yield Way(form, min(rows, most), rows)
            if rows < most:  # several shards to a band, but for the own one
                yield Way(form, most, rows)
            if shape.shard_rows > 1024:
                yield Way(form, min(rows, most), rows, piece_rows=1024)
        else:
            yield Way(form, min(rows, most))
            yield Way(form, min(rows, most), by_engines=False)
            if shape.shard_rows * shape.columns * 2 < _LEAST_BATCHED:
                continue
            yield Way(form, min(rows, most), batches=_BATCHES)
            shards = min(most // rows, shape.size - 1)
            if shards > 1:  # weights are read fewer times, and parts are through all the same
                yield Way(form, shards * rows, batches=_BATCHES)
            others = (shape.size - 1) * rows
            if shards < shape.size - 1 and others <= _MOST_BAND:
                tiles = clusters // others * rows * 2
                yield Way(form, others, batch_tiles=max(tiles, 1))
    if shape.op is Op.GEMM_AR and shape.rows <= 512:
        yield Way("128x128 beside", 4, exchanges=True)


def _across(shape: Shape, clusters: int) -> Iterator[Way]:
    """Where pairs of shards are two rows of tiles; of a scatter, where a cluster has one tile of
    the own shard at most (src/overlap/schedule.h).
    """
    pairs, columns = shape.size // 2, -(-shape.columns // _COLUMNS)
    if shape.shard_rows > _TILE_ROWS or shape.size % 2:
        return
    if shape.op is Op.AG_GEMM:
        yield Way(ACROSS, pairs)
        if pairs > 2:
            yield Way(ACROSS, pairs - 1, 1)
    elif columns <= clusters:
        band = max(pairs - 1, 1)
        yield Way(ACROSS, band, batch_tiles=max(clusters // band, 1))
        yield Way(ACROSS, band, by_engines=False)


def choose(
    comm: Comm, ways: list[Way], calls: Sequence[Callable[[], object]]
) -> tuple[Way, dict[str, float]]:
    """One of `ways`, the sequential one first, and the us of each. Collective; `calls` are one call
    in each way.
    """
    assert ways[0] == SEQUENTIAL
    time_us = partial(_time_us, comm)
    best, us = fastest(partial(comm.all_reduce, op="max"), time_us, calls)
    return ways[best], {str(way): float(each) for way, each in zip(ways, us, strict=True)}


def fastest(
    most: Callable[[np.ndarray], np.ndarray],
    time_us: Callable[[Callable[[], object]], float],
    calls: Sequence[Callable[[], object]],
) -> tuple[int, np.ndarray]:
    """The number of the fastest call and the us of each: the median of rounds in which all have a
    turn, of each the slowest rank's time. The first where no other is clearly faster. Collective:
    `most` answers the largest over the ranks, `time_us` what one call takes this rank.

    Of a dozen that are alike the one that chance favoured seems the fastest by several percent: it
    and the first have another race, which it must win as well.
    """
    for call in calls:
        for _ in range(_WARM):
            call()

    def medians(numbers: Sequence[int], num_rounds: int) -> np.ndarray:
        rounds = [[time_us(calls[number]) for number in numbers] for _ in range(num_rounds)]
        return np.asarray(np.median(most(np.array(rounds)), axis=0))

    us = medians(range(len(calls)), _ROUNDS)
    best = int(np.argmin(us))
    if _is_clearly_faster(us[best], us[0]):
        us[[0, best]] = medians([0, best], _LAST_ROUNDS)
    return (best if _is_clearly_faster(us[best], us[0]) else 0), us


def _is_clearly_faster(us: float, than_us: float) -> bool:
    return us < (1 - _LEAST_GAIN) * than_us


def _time_us(comm: Comm, call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    comm.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / _CALLS

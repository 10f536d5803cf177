"""The sequential way in chunks: braid's collectives on a second stream, beside torch's products.

For any GPU and dtype. An all-gather's own shard is multiplied while the others come, each chunk
when it is here; the sums of a chunk travel while the next one is multiplied. Copy engines move long
messages, so products lose little. The numbers are the sequential way's: parts are rounded to the
dtype and summed in the order of the ranks.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from braid.comm import Comm
from braid.overlap.shapes import Op

LEAST_ROWS = 128
"""Of a chunk: of fewer, products take as long as of these."""


class Lane(Protocol):
    """A second line of work, and events between it and the caller's."""

    def begin(self) -> None:
        """What comes on it starts behind what the caller has enqueued."""

    def beside(self) -> AbstractContextManager[object]:
        """Work enqueued within goes on it."""

    def told(self) -> object:
        """An event of the line of work that is current."""

    def wait(self, event: object) -> None:
        """The current line waits for `event`."""

    def join(self) -> None:
        """The caller's waits for all of it."""


class StreamLane:
    """On a stream of a GPU. Its events end with it; capture takes them like any others."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())

    def beside(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def told(self) -> object:
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self, event: object) -> None:
        assert isinstance(event, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(event)

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)


def fits(op: Op, rows: int, size: int, chunks: int) -> bool:
    """Whether `rows` of x as given fall into so many chunks of one length."""
    shard = rows if op is Op.AG_GEMM else rows // size
    if op is Op.GEMM_AR:
        shard = rows
    return shard % chunks == 0 and shard // chunks >= LEAST_ROWS


def run(
    comm: Comm, op: Op, x: Tensor, w: Tensor, bias: Tensor | None, is_kn: bool, chunks: int,
    lane: Lane,
) -> Tensor:  # fmt: skip
    """As sequential.run(), for rows that fit. All memory is the current stream's, which waits for
    the lane at the end, so nothing is given out again too early.
    """
    columns = w if is_kn else w.t()
    body = {Op.AG_GEMM: _gathered, Op.GEMM_RS: _scattered, Op.GEMM_AR: _reduced}[op]
    made = body(comm, x, columns, chunks, lane)
    return made if bias is None else made.add_(bias)


def _gathered(comm: Comm, x: Tensor, w: Tensor, chunks: int, lane: Lane) -> Tensor:
    rows, rank, size = x.shape[0] // chunks, comm.rank, comm.size
    came = x.new_empty(chunks, size, rows, x.shape[1])
    out = x.new_empty(size, chunks, rows, w.shape[1])
    events = []
    lane.begin()
    with lane.beside():
        for i, piece in enumerate(x.split(rows)):
            comm.all_gather(piece, out=came[i])
            events.append(lane.told())
    torch.mm(x, w, out=out[rank].view(-1, w.shape[1]))
    for i, event in enumerate(events):
        lane.wait(event)
        for first, last in ((0, rank), (rank + 1, size)):
            _multiply(came[i], w, out[:, i], first, last)
    lane.join()
    return out.view(-1, w.shape[1])


def _multiply(came: Tensor, w: Tensor, out: Tensor, first: int, last: int) -> None:
    """Ranks `first` up to `last`: as one product, where their results lie in a row."""
    if first == last:
        return
    if out[first:last].is_contiguous():
        rows = came[first:last].reshape(-1, came.shape[2])
        torch.mm(rows, w, out=out[first:last].view(-1, w.shape[1]))
        return
    for rank in range(first, last):
        torch.mm(came[rank], w, out=out[rank])


def _scattered(comm: Comm, x: Tensor, w: Tensor, chunks: int, lane: Lane) -> Tensor:
    size, depth = comm.size, x.shape[1]
    rows = x.shape[0] // size // chunks
    shards = x.view(size, chunks, rows, depth)
    parts = x.new_empty(chunks, size, rows, w.shape[1])
    out = x.new_empty(chunks * rows, w.shape[1])
    lane.begin()
    for i in range(chunks):
        torch.bmm(shards[:, i], w.expand(size, -1, -1), out=parts[i])
        event = lane.told()
        with lane.beside():
            lane.wait(event)
            comm.reduce_scatter(parts[i].view(size * rows, -1), out=out[i * rows :][:rows])
    lane.join()
    return out


def _reduced(comm: Comm, x: Tensor, w: Tensor, chunks: int, lane: Lane) -> Tensor:
    rows = x.shape[0] // chunks
    out = x.new_empty(x.shape[0], w.shape[1])
    lane.begin()
    for i, piece in enumerate(x.split(rows)):
        mine = out[i * rows :][:rows]
        torch.mm(piece, w, out=mine)
        event = lane.told()
        with lane.beside():
            lane.wait(event)
            comm.all_reduce(mine, out=mine)
    lane.join()
    return out

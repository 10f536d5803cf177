"""The collectives of a comm: shapes in, shapes out.

Buffers are anything with the buffer protocol (NumPy arrays, bytearray, memoryview, array.array)
or DLPack (torch tensors on CPU or GPU), contiguous in C order. Results are of the same library as
the input: torch in, torch out; all else gives NumPy arrays. The GIL is released while a call
runs.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np

from braid import _braid, arrays
from braid.arguments import Op, checked_counts, checked_op
from braid.arrays import Array, Stream
from braid.calling import Answer
from braid.errors import InvalidArgument
from braid.rooted import Rooted
from braid.work import Work

T = TypeVar("T")


class Collectives(Rooted):
    """What all ranks of a comm call together."""

    @overload
    def all_gather(
        self,
        send: T,
        out: T | None = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T: ...
    @overload
    def all_gather(
        self,
        send: T,
        out: T | None = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_gather(
        self,
        send: Array,
        out: Array = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank's `send`, one after the other along the first axis, on every rank.

        Even: send [a, ...], result [size * a, ...]; a scalar counts as [1]. `out` may have any
        shape with as many elements; `send` may be this rank's part of `out`.
        Uneven: rank r sends counts[r] rows (steps along the first axis), 0 is fine; send
        [counts[rank], ...], result [sum(counts), ...]. All ranks give the same counts.
        """
        if counts is not None:
            return self._all_gather_uneven(send, out, counts, stream, async_op)
        if getattr(send, "is_cuda", False):
            made = self._by_address.all_gather(send, out, stream)
            if made is not None:
                return self._short("all_gather", made, stream, async_op)
        rows = arrays.shape_of(send, "send")[0]
        if out is None:
            out = arrays.empty_rows(send, self.size * rows, "send")
        on = arrays.stream_of(send, stream)
        body = partial(_braid.all_gather, self._core, send, out, on)
        return self._run("all_gather", body, out, on, async_op)

    def _all_gather_uneven(
        self, send: Array, out: Array, counts: Sequence[int], stream: Stream, is_async: bool
    ) -> Answer:
        row = arrays.row_elements(arrays.shape_of(send, "send"))
        rows = checked_counts("all_gather", "counts", counts, self.size, row)
        if out is None:
            out = arrays.empty_rows(send, sum(rows), "send")
        on = arrays.stream_of(send, stream)
        elements = [n * row for n in rows]
        body = partial(_braid.all_gather_v, self._core, send, out, elements, on)
        return self._run("all_gather", body, out, on, is_async)

    @overload
    def all_reduce(
        self,
        buf: T,
        op: Op = "sum",
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T: ...
    @overload
    def all_reduce(
        self,
        buf: T,
        op: Op = "sum",
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_reduce(
        self,
        buf: Array,
        op: Op = "sum",
        out: Array = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """The reduction of every rank's `buf`, in `buf` itself unless `out` is given. Returns
        where it is.

        op: sum, prod, min, max, avg. Floats are summed in fp32 (fp64 for fp64) in rank order and
        rounded once: every rank has the same bits, whatever the links and shares.
        """
        if getattr(buf, "is_cuda", False):
            made = self._by_address.all_reduce(buf, op, out, stream)
            if made is not None:
                return self._short("all_reduce", made, stream, async_op)
        target = buf if out is None else out
        on = arrays.stream_of(buf, stream)
        how = checked_op("all_reduce", op)
        body = partial(_braid.all_reduce, self._core, buf, target, how, on)
        return self._run("all_reduce", body, target, on, async_op)

    @overload
    def reduce_scatter(
        self,
        send: T,
        op: Op = "sum",
        out: T | None = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T: ...
    @overload
    def reduce_scatter(
        self,
        send: T,
        op: Op = "sum",
        out: T | None = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def reduce_scatter(
        self,
        send: Array,
        op: Op = "sum",
        out: Array = None,
        counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """Block `rank` of the reduction of every rank's `send`. Numbers as all_reduce.

        Even: send [size * a, ...], result [a, ...]. `out` may be this rank's block of `send`.
        Uneven: block r has counts[r] rows, 0 is fine; send [sum(counts), ...], result
        [counts[rank], ...]. All ranks give the same counts.
        """
        if counts is not None:
            return self._reduce_scatter_uneven(send, op, out, counts, stream, async_op)
        if getattr(send, "is_cuda", False):
            made = self._by_address.reduce_scatter(send, op, out, stream)
            if made is not None:
                return self._short("reduce_scatter", made, stream, async_op)
        shape = arrays.shape_of(send, "send")
        how = checked_op("reduce_scatter", op)
        on = arrays.stream_of(send, stream)
        if out is None:
            rows = arrays.split_rows(shape[0], self.size, "reduce_scatter")
            out = arrays.empty_rows(send, rows, "send")
        body = partial(_braid.reduce_scatter, self._core, send, out, how, on)
        return self._run("reduce_scatter", body, out, on, async_op)

    def _reduce_scatter_uneven(
        self,
        send: Array,
        op: Op,
        out: Array,
        counts: Sequence[int],
        stream: Stream,
        is_async: bool,
    ) -> Answer:
        row = arrays.row_elements(arrays.shape_of(send, "send"))
        how = checked_op("reduce_scatter", op)
        on = arrays.stream_of(send, stream)
        blocks = checked_counts("reduce_scatter", "counts", counts, self.size, row)
        if out is None:
            out = arrays.empty_rows(send, blocks[self.rank], "send")
        elements = [n * row for n in blocks]
        body = partial(_braid.reduce_scatter_v, self._core, send, out, how, elements, on)
        return self._run("reduce_scatter", body, out, on, is_async)

    @overload
    def all_to_all(
        self,
        send: T,
        out: T | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T: ...
    @overload
    def all_to_all(
        self,
        send: T,
        out: T | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_to_all(
        self,
        send: Array,
        out: Array = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """Block j of `send` goes to rank j; block i of the result came from rank i.

        Even: send [size * a, ...], result [size * a, ...].
        Uneven: send_counts[j] rows (steps along the first axis) go to rank j, recv_counts[i] rows
        come from rank i; send [sum(send_counts), ...], result [sum(recv_counts), ...]. Without
        recv_counts the ranks tell each other theirs first, which costs one small all_to_all over
        the host, for which an asynchronous call waits, too. On GPUs counts that do not fit are
        trouble for all ranks, and end the comm.
        """
        if send_counts is not None:
            return self._all_to_all_uneven(send, out, send_counts, recv_counts, stream, async_op)
        if recv_counts is not None:
            raise InvalidArgument("all_to_all: recv_counts is given, send_counts is not")
        if getattr(send, "is_cuda", False):
            made = self._by_address.all_to_all(send, out, stream)
            if made is not None:
                return self._short("all_to_all", made, stream, async_op)
        rows = arrays.shape_of(send, "send")[0]
        arrays.split_rows(rows, self.size, "all_to_all")
        if out is None:
            out = arrays.empty_rows(send, rows, "send")
        on = arrays.stream_of(send, stream)
        body = partial(_braid.all_to_all, self._core, send, out, on)
        return self._run("all_to_all", body, out, on, async_op)

    def _exchange_bits(self, send: Array, bit_op: str) -> Array:
        """all_to_all() of equal blocks that the caller reduces by `bit_op` (band, bor, bxor), which
        ranks compare like all else of a call.
        """
        out = arrays.empty_rows(send, arrays.shape_of(send, "send")[0], "send")
        on = arrays.stream_of(send, None)
        body = partial(_braid.all_to_all, self._core, send, out, on, bit_op)
        self._calls.run("all_to_all", body)
        return out

    def _all_to_all_uneven(
        self,
        send: Array,
        out: Array,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None,
        stream: Stream,
        is_async: bool,
    ) -> Answer:
        shape = arrays.shape_of(send, "send")
        row = arrays.row_elements(shape)
        sent = checked_counts("all_to_all", "send_counts", send_counts, self.size, row)
        if sum(sent) != shape[0]:
            raise InvalidArgument(
                f"all_to_all: argument send_counts: asked for counts that sum to {shape[0]}, the"
                " rows of send,"
                f" found {sent}"
            )
        if recv_counts is None:
            recv_counts = self.all_to_all(np.array(sent, dtype=np.int64)).tolist()
        received = checked_counts("all_to_all", "recv_counts", recv_counts, self.size, row)
        if out is None:
            out = arrays.empty_rows(send, sum(received), "send")
        on = arrays.stream_of(send, stream)
        counts = [n * row for n in sent], [n * row for n in received]
        body = partial(_braid.all_to_all_v, self._core, send, counts[0], out, counts[1], on)
        return self._run("all_to_all", body, out, on, is_async)

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work[None]: ...
    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when every rank has called it."""
        return self._run("barrier", partial(_braid.barrier, self._core), None, 0, async_op)

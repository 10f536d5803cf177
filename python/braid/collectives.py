"""The collectives of a comm: shapes in, shapes out.

Buffers are anything with the buffer protocol (NumPy arrays, bytearray, memoryview, array.array)
or DLPack (torch tensors on CPU or GPU), contiguous in C order. Results are of the same library as
the input: torch in, torch out; all else gives NumPy arrays. The GIL is released while a call
runs.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from braid import _braid, arrays
from braid.arguments import Op, checked_counts, checked_op, checked_rank
from braid.arrays import Array, Stream
from braid.by_address import ByAddress
from braid.calls import Calls
from braid.errors import InvalidArgument
from braid.work import GpuWork, Work

T = TypeVar("T")
Answer: TypeAlias = Any
"""A call's result, or with async_op=True its Work."""


class Collectives:
    """What all ranks of a comm call together."""

    def __init__(self, core: _braid.Comm) -> None:
        self._core = core
        self._calls = Calls(core)
        self._by_address = ByAddress(core, self._calls)

    @property
    def rank(self) -> int:
        """This process's number, from 0 to size - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._core.size

    def _run(
        self, name: str, body: Callable[[], None], result: T, stream: int, is_async: bool
    ) -> Answer:
        """`result` once `body` has run, or its handle."""
        if not is_async:
            self._calls.run(name, body)
            return result
        gpu = arrays.gpu_of(result)
        return self._start(name, body, result, gpu, stream)

    def _start(
        self, name: str, body: Callable[[], None], result: T, gpu: int | None, stream: int
    ) -> Work[T]:
        if gpu is None:
            return self._calls.start(name, body, result)
        self._calls.run(name, body)
        return self._enqueued(name, result, gpu, stream)

    def _enqueued(self, name: str, result: T, gpu: int, stream: int) -> Work[T]:
        """The handle of a call that is on the stream."""
        check = partial(self._check_gpu, gpu)
        return GpuWork(name, result, _braid.StreamMark(gpu, stream), check)

    def _short(self, name: str, result: Array, stream: Stream, is_async: bool) -> Answer:
        """`result` of a call that went by addresses, or its handle."""
        if not is_async:
            return result
        on = arrays.stream_of(result, stream)
        return self._enqueued(name, result, result.get_device(), on)

    def _check_gpu(self, gpu: int) -> None:
        """Raises what the work on the GPU has met. Any thread: health() may be asked by each, and
        a comm whose GPU had trouble takes no calls of another one.
        """
        found = json.loads(self._core.health_json()).get("gpu", {"ok": True})
        if not found["ok"]:
            _braid.check_gpu(self._core, gpu)

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
        if counts is None and getattr(send, "is_cuda", False):
            made = self._by_address.reduce_scatter(send, op, out, stream)
            if made is not None:
                return self._short("reduce_scatter", made, stream, async_op)
        shape = arrays.shape_of(send, "send")
        how = checked_op("reduce_scatter", op)
        on = arrays.stream_of(send, stream)
        if counts is None:
            if out is None:
                rows = arrays.split_rows(shape[0], self.size, "reduce_scatter")
                out = arrays.empty_rows(send, rows, "send")
            body = partial(_braid.reduce_scatter, self._core, send, out, how, on)
            return self._run("reduce_scatter", body, out, on, async_op)
        row = arrays.row_elements(shape)
        blocks = checked_counts("reduce_scatter", "counts", counts, self.size, row)
        if out is None:
            out = arrays.empty_rows(send, blocks[self.rank], "send")
        elements = [n * row for n in blocks]
        body = partial(_braid.reduce_scatter_v, self._core, send, out, how, elements, on)
        return self._run("reduce_scatter", body, out, on, async_op)

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
    def broadcast(
        self, buf: T, root: int = 0, *, stream: Stream = None, async_op: Literal[False] = False
    ) -> T: ...
    @overload
    def broadcast(
        self, buf: T, root: int = 0, *, stream: Stream = None, async_op: Literal[True]
    ) -> Work[T]: ...
    def broadcast(
        self, buf: Array, root: int = 0, *, stream: Stream = None, async_op: bool = False
    ) -> Any:
        """Root's `buf` in every rank's `buf`, which is returned.

        Same shape and dtype everywhere.
        """
        if getattr(buf, "is_cuda", False):
            made = self._by_address.broadcast(buf, root, stream)
            if made is not None:
                return self._short("broadcast", made, stream, async_op)
        source = checked_rank("broadcast", "root", root, self.size)
        on = arrays.stream_of(buf, stream)
        body = partial(_braid.broadcast, self._core, buf, source, on)
        return self._run("broadcast", body, buf, on, async_op)

    @overload
    def reduce(
        self,
        buf: T,
        op: Op = "sum",
        root: int = 0,
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T | None: ...
    @overload
    def reduce(
        self,
        buf: T,
        op: Op = "sum",
        root: int = 0,
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T | None]: ...
    def reduce(
        self,
        buf: Array,
        op: Op = "sum",
        root: int = 0,
        out: Array = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """The reduction of every rank's `buf` on root, in `buf` itself unless `out` is given; root
        gets where it is, the others None, and their buffers stay as they are. The same bits as
        all_reduce.

        On GPUs it costs what all_reduce does.
        """
        target = checked_rank("reduce", "root", root, self.size)
        how = checked_op("reduce", op)
        on = arrays.stream_of(buf, stream)
        place = buf if out is None else out
        body = partial(_braid.reduce, self._core, buf, place, how, target, on)
        return self._at_root("reduce", body, place, target, buf, on, async_op)

    @overload
    def gather(
        self,
        send: T,
        root: int = 0,
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T | None: ...
    @overload
    def gather(
        self,
        send: T,
        root: int = 0,
        out: T | None = None,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T | None]: ...
    def gather(
        self,
        send: Array,
        root: int = 0,
        out: Array = None,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank's `send`, one after the other along the first axis, on root; None elsewhere.

        send [a, ...], root's result [size * a, ...]. `out` is looked at on root alone.
        """
        target = checked_rank("gather", "root", root, self.size)
        rows = arrays.shape_of(send, "send")[0]
        if self.rank == target and out is None:
            out = arrays.empty_rows(send, self.size * rows, "send")
        on = arrays.stream_of(send, stream)
        body = partial(_braid.gather, self._core, send, out, target, on)
        return self._at_root("gather", body, out, target, send, on, async_op)

    def _at_root(
        self,
        name: str,
        body: Callable[[], None],
        result: Array,
        root: int,
        sent: Array,
        stream: int,
        is_async: bool,
    ) -> Answer:
        """As _run(), of a call whose result root alone has."""
        found = result if self.rank == root else None
        if is_async:
            return self._start(name, body, found, arrays.gpu_of(sent), stream)
        self._calls.run(name, body)
        return found

    @overload
    def scatter(
        self,
        send: T | None,
        out: T | None = None,
        root: int = 0,
        *,
        stream: Stream = None,
        async_op: Literal[False] = False,
    ) -> T: ...
    @overload
    def scatter(
        self,
        send: T | None,
        out: T | None = None,
        root: int = 0,
        *,
        stream: Stream = None,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def scatter(
        self,
        send: Array,
        out: Array = None,
        root: int = 0,
        *,
        stream: Stream = None,
        async_op: bool = False,
    ) -> Any:
        """Block `rank` of root's `send`, in `out`, which is returned.

        Root's send [size * a, ...], out [a, ...]. Other ranks' `send` is not looked at and may be
        None; they need `out`, which says what comes. Root may leave it out.
        """
        source = checked_rank("scatter", "root", root, self.size)
        if out is None and self.rank != source:
            raise InvalidArgument(
                f"scatter: argument out: asked for an array on every rank but root {source}, found"
                " None"
            )
        if out is None:
            rows = arrays.split_rows(arrays.shape_of(send, "send")[0], self.size, "scatter")
            out = arrays.empty_rows(send, rows, "send")
        on = arrays.stream_of(out, stream)
        body = partial(_braid.scatter, self._core, send, out, source, on)
        return self._run("scatter", body, out, on, async_op)

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work[None]: ...
    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when every rank has called it."""
        return self._run("barrier", partial(_braid.barrier, self._core), None, 0, async_op)

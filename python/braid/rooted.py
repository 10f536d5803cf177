"""The collectives of a comm that have a root: one rank from which, or to which, all goes."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, overload

from braid import _braid, arrays
from braid.arguments import Op, checked_op, checked_rank
from braid.arrays import Array, Stream
from braid.calling import Answer, Calling
from braid.errors import InvalidArgument
from braid.work import Work

T = TypeVar("T")


class Rooted(Calling):
    """broadcast, reduce, gather and scatter, which all ranks of a comm call together."""

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
        """_run() for a call whose result root alone has."""
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

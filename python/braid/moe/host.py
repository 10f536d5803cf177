"""Calls on arrays in host memory: what normal.py and low_latency.py ask of whoever moves rows. The
same on a GPU's memory is braid.torch.moe's GpuCalls.
"""

from types import TracebackType
from typing import Any

from braid import _braid
from braid.arrays import Array
from braid.moe import low_latency
from braid.moe.events import EventHandle, EventOverlap, checked_event
from braid.moe.handles import DispatchHandle, LowLatencyHandle
from braid.moe.library import Checks, Library, shape_of


class HostPlace:
    """Where a call is made: here and now."""

    def __init__(self, previous: EventOverlap | None) -> None:
        if previous is not None:
            checked_event(previous).current_stream_wait()

    def __enter__(self) -> "HostPlace":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def over(self, is_async: bool, outputs: Any = ()) -> EventOverlap:  # noqa: ARG002
        """The event of what was called."""
        return EventOverlap(EventHandle())


class HostBegun:
    """A dispatch whose sizes are known."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.num_rows: int = core.num_rows
        self.per_expert: list[int] = core.per_expert


class HostCalls:
    gpu: int | None = None
    fails_late = False
    """Whether results are already in the caller's hands when a call fails."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.state = low_latency.State()
        self.num_sms = 0  # of no meaning here

    def place(self, previous: EventOverlap | None, is_async: bool, *_: Any) -> HostPlace:  # noqa: ARG002
        return HostPlace(previous)

    def layout(
        self,
        ids: Array,
        sizes: tuple[int, int, int, int],
        per_rank: Array,
        per_expert: Array,
        is_in: Array,
    ) -> None:
        """sizes: tokens, K, ranks, experts."""
        _braid.moe.layout(ids, *sizes, per_rank, per_expert, is_in)

    # ---- normal ----

    def begin(
        self,
        arrays: tuple[Array | None, ...],
        sizes: tuple[int, ...],
        known: DispatchHandle | None,
        num_worst_tokens: int,  # noqa: ARG002  sizes are always known
    ) -> HostBegun:
        """arrays: x, scales, is_in, per_expert, ids, weights; sizes: tokens, bytes of a row and of
        a row of scales, K, experts.
        """
        return HostBegun(self.core.begin(*arrays, *sizes, 0 if known is None else known.phase))

    def abandon(self, begun: HostBegun) -> None:  # noqa: ARG002  there is one at most
        self.core.abandon()

    def finish(self, begun: HostBegun, arrays: tuple[Array | None, ...], room: int) -> None:
        """arrays: x, scales, ids, weights, source tokens."""
        self.core.finish(begun.core, *arrays, room)

    def matrices(
        self, begun: HostBegun, new: Library, num_ranks: int, is_in: Array
    ) -> tuple[Array, Array]:
        """The handle's prefix matrix and its send_head."""
        prefix = new.zeros((num_ranks, num_ranks), "int32")
        for source in range(num_ranks):
            for rank in range(num_ranks):
                prefix[source, rank] = begun.core.rank_prefix[source * num_ranks + rank]
        head = is_in.cumsum(0) - 1
        head[~is_in] = -1
        return prefix, head

    def channels(self, new: Library, num_ranks: int) -> tuple[Array, Array]:
        """The handle's prefix matrices of channels, of which there is one: zeros."""
        return new.zeros((num_ranks, 1), "int32"), new.zeros((num_ranks, 1), "int32")

    def mark_dispatch(self, handle: DispatchHandle, begun: HostBegun) -> None:
        """Sets what the combine of the dispatch needs to know."""
        handle.phase = begun.core.phase
        handle.rows_of = list(begun.core.rows_of)
        handle.most_tokens = begun.core.most_tokens

    def combine(
        self,
        handle: DispatchHandle,
        arrays: tuple[Array | None, ...],
        sizes: tuple[int, int, int, int],
        dtype: str,
        sums_by_node: bool = False,
    ) -> None:
        """arrays: x, weights, two biases, out, out_weights; sizes: rows, tokens, hidden, K."""
        x, weights, bias_0, bias_1, out, out_weights = arrays
        self.core.combine(
            x, weights, handle.rows_of, handle.recv_src_idx, handle.is_token_in_rank, bias_0,
            bias_1, out, out_weights, *sizes, dtype, handle.most_tokens, handle.phase,
            sums_by_node,
        )  # fmt: skip

    # ---- low latency ----

    def check_dispatch(self, sizes: tuple[int, ...], kind: tuple[str, int], weights: bool) -> None:
        """Raises what a dispatch of this shape is refused for; arguments as of send_dispatch."""
        self.core.check_dispatch(*sizes, *kind, weights)

    def check_place(self, checks: Checks, argument: str, array: Array) -> None:
        """Raises where results may not go to the array's address: they may go to any."""

    def send_dispatch(
        self,
        x: Array,
        ids: Array,
        weights: Array | None,
        sizes: tuple[int, ...],
        kind: tuple[str, int],
    ) -> Any:
        """sizes: tokens, hidden, K, M, experts; kind: dtype and form of scales."""
        return self.core.send_dispatch(x, ids, weights, *sizes, *kind)

    def receive_dispatch(
        self,
        sent: Any,
        arrays: tuple[Array | None, ...],
        copies: tuple[Array, Array, Array, Array] | None,
        stats: Array | None,
    ) -> None:
        """arrays: x, scales, count, src_info, slots, ranges, waits; copies: with weights."""
        self.core.receive_dispatch(sent, *arrays, copies)
        if stats is not None:
            stats[:] += arrays[2]

    def mark(self, handle: LowLatencyHandle, sent: Any, ids: Array, weights: Array | None) -> None:
        """Sets what the combine of the dispatch needs to know."""
        handle.phase = sent.phase
        handle.ids_hash = _braid.moe.ids_hash(ids, *shape_of(ids))
        if weights is not None:
            handle.weights_hash = _braid.moe.weights_hash(weights, *shape_of(ids))

    def send_combine(
        self,
        handle: LowLatencyHandle,
        arrays: tuple[Array, Array, Array],
        sizes: tuple[int, ...],
        dtype: str,
        sums_by_rank: bool,
    ) -> Any:
        """arrays: x, ids, weights; sizes as of send_dispatch."""
        x, ids, weights = arrays
        copies, weights_hash = (handle.copies, handle.weights_hash) if sums_by_rank else (None, 0)
        return self.core.send_combine(
            x, handle.slots, handle[1], ids, weights, *sizes, dtype, handle.phase,
            handle.ids_hash, copies, weights_hash,
        )  # fmt: skip

    def receive_combine(self, sent: Any, out: Array, waits: Array | None) -> None:
        self.core.receive_combine(sent, out, waits)

    def close(self) -> None:
        self.core.close()

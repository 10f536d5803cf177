"""Calls on arrays in host memory: what normal.py and low_latency.py ask of whoever moves rows. The
same on a GPU's memory is braid.torch.moe's GpuCalls.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from braid import _braid
from braid.arrays import Array
from braid.moe import low_latency
from braid.moe.events import EventHandle, EventOverlap, checked_event
from braid.moe.handles import DispatchHandle, LowLatencyHandle
from braid.moe.library import Checks, Library, Remembered

if TYPE_CHECKING:
    from braid.moe.normal import DispatchForm


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


def _lent(array: Array) -> Array:
    """As the core may borrow it: without a gradient's history. None is None."""
    return array.detach() if getattr(array, "requires_grad", False) else array


class HostKept:
    """What only braid reads of a low-latency dispatch."""

    def __init__(self, form: low_latency.DispatchForm) -> None:
        new = form.new
        self.slots = new.empty(*form.src_info)
        self.copies: tuple[Array, ...] | None = None
        if form.has_weights:
            counts, *tables = form.copies
            self.copies = new.zeros(*counts), *(new.empty(*each) for each in tables)


class HostResults:
    """What a low-latency dispatch fills. Of one that fails no counts are left to be believed."""

    def __init__(self, form: low_latency.DispatchForm) -> None:
        new = form.new
        self.x = new.empty(*form.x)
        self.scales = new.empty(*form.scales) if form.scales else None
        self.count, self.ranges = new.zeros(*form.count), new.zeros(*form.ranges)
        self.src_info = new.empty(*form.src_info)
        self.kept = HostKept(form)


class HostBegun:
    """A dispatch, from before it begins; then its sizes are known."""

    results = None

    def __init__(self) -> None:
        self.core = _braid.moe.Begun()

    @property
    def num_rows(self) -> int:
        return self.core.num_rows

    @property
    def per_expert(self) -> list[int]:
        return self.core.per_expert


class HostCalls:
    gpu: int | None = None
    joins_halves = False
    """Whether both halves of a low-latency call without a hook are one call: run_dispatch()."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.state = low_latency.State()
        self.checked = Remembered()
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
        _braid.moe.layout(_lent(ids), *sizes, per_rank, per_expert, is_in)

    # ---- normal ----

    def new_dispatch(self, *_: Any) -> HostBegun:
        """One that is not begun yet."""
        return HostBegun()

    def begin(
        self,
        begun: HostBegun,
        arrays: tuple[Array | None, ...],
        form: "DispatchForm",
        known: DispatchHandle | None,
    ) -> None:
        """arrays: x, scales, is_in, per_expert, ids, weights. Sizes are always known."""
        phase = 0 if known is None else known.phase
        self.core.begin(begun.core, *map(_lent, arrays), *form.sizes, phase)

    def abandon(self, begun: HostBegun) -> None:
        """Whatever has become of it: what is begun is given up."""
        self.core.abandon(begun.core)

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
        x, weights, bias_0, bias_1, out, out_weights = map(_lent, arrays)
        self.core.combine(
            x, weights, handle.rows_of, handle.recv_src_idx, handle.is_token_in_rank, bias_0,
            bias_1, out, out_weights, *sizes, dtype, handle.most_tokens, handle.phase,
            sums_by_node,
        )  # fmt: skip

    # ---- low latency ----

    def check_dispatch(self, sizes: tuple[int, ...], kind: tuple[str, int], weights: bool) -> None:
        """Raises what a dispatch of this shape is refused for; arguments as of send_dispatch."""
        self.core.check_dispatch(sizes, *kind, weights)

    def check_place(self, checks: Checks, argument: str, array: Array) -> None:
        """Raises where results may not go to the array's address: they may go to any."""

    def results(self, form: low_latency.DispatchForm) -> HostResults:
        """Memory for what a dispatch fills."""
        return HostResults(form)

    def new_send(self, is_combine: bool) -> Any:
        """A call that is not sent yet."""
        return _braid.moe.Send(is_combine)

    def drop(self, sent: Any) -> bool:
        """Its rows are nobody's. False where it was not sent."""
        return bool(self.core.drop(sent))

    def send_dispatch(
        self, sent: Any, handle: LowLatencyHandle, given: tuple[Array, Array, Array | None]
    ) -> None:
        """given: x, ids, weights. Sets what the combine of the dispatch needs to know."""
        x, ids, weights = map(_lent, given)
        form = handle.form
        tokens, _, topk, _, _ = form.sizes
        self.core.send_dispatch(sent, x, ids, weights, form.sizes, *form.kind)
        handle.phase = sent.phase
        handle.ids_hash = _braid.moe.ids_hash(ids, tokens, topk)
        if weights is not None:
            handle.weights_hash = _braid.moe.weights_hash(weights, tokens, topk)

    def receive_dispatch(
        self,
        sent: Any,
        handle: LowLatencyHandle,
        got: HostResults,
        stats: Array | None,
        waits: Array | None,
    ) -> None:
        kept = handle.kept
        self.core.receive_dispatch(
            sent, got.x, got.scales, got.count, got.src_info, kept.slots, got.ranges, _lent(waits),
            kept.copies,
        )  # fmt: skip
        if stats is not None:
            stats[:] += got.count

    def send_combine(
        self,
        sent: Any,
        handle: LowLatencyHandle,
        given: tuple[Array, Array, Array],
        form: low_latency.CombineForm,
        sums_by_rank: bool,
    ) -> None:
        """given: x, ids, weights."""
        x, ids, weights = map(_lent, given)
        kept = handle.kept
        copies, weights_hash = (kept.copies, handle.weights_hash) if sums_by_rank else (None, 0)
        self.core.send_combine(
            sent, x, kept.slots, handle[1], ids, weights, form.sizes, form.dtype, handle.phase,
            handle.ids_hash, copies, weights_hash,
        )  # fmt: skip

    def receive_combine(self, sent: Any, out: Array, waits: Array | None) -> None:
        self.core.receive_combine(sent, _lent(out), _lent(waits))

    def close(self) -> None:
        self.core.close()

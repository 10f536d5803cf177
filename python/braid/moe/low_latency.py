"""Low latency: fixed sizes, a send half and a receive half."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braid.arrays import Array
from braid.moe.handles import LowLatencyHandle
from braid.moe.library import Checks, Library, dtype_name, library_of, shape_of

if TYPE_CHECKING:
    from braid.moe.buffer import Buffer

Calls = Any
"""braid.moe.host's HostCalls, or what serves a GPU's tensors."""

_SUMMABLE = ("bfloat16", "float16", "float32")
_ALIVE = 2  # results at a time
# moe::ScaleForm
_NONE, _FLOAT, _POWER_OF_2, _UE8M0 = range(4)
_BLOCK = 128

Hook = Callable[[], None]


class State:
    """What a buffer remembers between low-latency calls."""

    def __init__(self) -> None:
        self.num_dispatches = 0
        self.combine_buffer: Array | None = None


@dataclass
class DispatchCall:
    x: Array
    topk_idx: Array
    topk_weights: Array | None
    max_tokens: int
    num_experts: int
    stats: Array | None
    waits: Array | None
    form: int


@dataclass
class CombineCall:
    x: Array
    topk_idx: Array
    topk_weights: Array
    handle: Any
    zero_copy: bool
    out: Array | None
    waits: Array | None
    partial: str | None


class _Results:
    """What a dispatch fills. sizes: tokens, hidden, K, M, experts; kind: dtype, form of scales."""

    def __init__(
        self,
        new: Library,
        num_ranks: int,
        sizes: tuple[int, ...],
        kind: tuple[str, int],
        has_weights: bool,
    ) -> None:
        _, hidden, topk, max_tokens, num_experts = sizes
        dtype, form = kind
        local, rows = num_experts // num_ranks, num_ranks * max_tokens
        self.x = new.empty((local, rows, hidden), "float8_e4m3fn" if form else dtype)
        self.scales = None
        if form:
            words = hidden // _BLOCK // (4 if form == _UE8M0 else 1)
            self.scales = new.empty((local, words, rows), "int32" if form == _UE8M0 else "float32")
        # What a GPU has enqueued behind the hook makes addresses of these, whether rows have come
        # or not: a dispatch that failed leaves them as they are made here.
        self.count = new.zeros((local,), "int32")
        self.ranges = new.zeros((local, num_ranks), "int64")
        self.src_info = new.empty((local, rows), "int32")
        self.slots = new.empty((local, rows), "int32")
        self.copies = None
        if has_weights:
            choices = (num_ranks, max_tokens, topk)
            self.copies = (
                new.zeros((num_ranks,), "int32"),
                new.empty(choices[:2], "int32"),
                new.empty(choices, "int32"),
                new.empty(choices, "float32"),
            )


def scale_form(rank: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> int:
    checks = Checks("low_latency_dispatch", rank)
    if not checks.flag("use_fp8", use_fp8):
        return _NONE
    round_scale = checks.flag("round_scale", round_scale)
    use_ue8m0 = checks.flag("use_ue8m0", use_ue8m0)
    if use_ue8m0 and not round_scale:
        raise checks.refuse("round_scale", "True beside use_ue8m0", round_scale)
    return _UE8M0 if use_ue8m0 else _POWER_OF_2 if round_scale else _FLOAT


def _check_mode(checks: Checks, buffer: "Buffer") -> None:
    if not buffer.low_latency_mode:
        raise checks.refuse("low_latency_mode", "True when the buffer was made", False)


def dispatch(
    buffer: "Buffer", calls: Calls, state: State, call: DispatchCall
) -> tuple[Any, Array, LowLatencyHandle, Hook]:
    checks = Checks("low_latency_dispatch", buffer.rank, calls.gpu)
    _check_mode(checks, buffer)
    x = checks.array("x", call.x, _SUMMABLE if call.form else (), (None, None))
    tokens, hidden = shape_of(x)
    ids = checks.array("topk_idx", call.topk_idx, ("int64",), (tokens, None))
    call.max_tokens = checks.whole("num_max_dispatch_tokens_per_rank", call.max_tokens)
    call.num_experts = checks.whole("num_experts", call.num_experts)
    topk, n = shape_of(ids)[1], buffer.group_size
    local = call.num_experts // n
    weights, stats, waits = call.topk_weights, call.stats, call.waits
    if weights is not None:
        weights = checks.array("topk_weights", weights, ("float32",), (tokens, topk))
    if stats is not None:
        stats = checks.array("cumulative_local_expert_recv_stats", stats, ("int32",), (local,))
    if waits is not None:
        waits = checks.array("dispatch_wait_recv_cost_stats", waits, ("int64",), (n,))
    sizes = (tokens, hidden, topk, call.max_tokens, call.num_experts)
    kind, new = (dtype_name(x), call.form), library_of(x)
    # Before anything is sent: who finds no memory may make the call again.
    try:
        got = _Results(new, n, sizes, kind, weights is not None)
        result = got.x if got.scales is None else (got.x, new.swapped(got.scales))
    except Exception:
        # A shape that no call may have is memory that nobody has: that is said first.
        calls.check_dispatch(sizes, kind, weights is not None)
        raise
    handle = LowLatencyHandle((got.src_info, got.ranges, call.max_tokens, hidden, call.num_experts))
    handle.buffer, handle.gpu, handle.number = buffer, calls.gpu, state.num_dispatches
    handle.slots, handle.is_received, handle.copies = got.slots, False, got.copies
    handle.shape_of_ids = (tokens, topk)
    sent = calls.send_dispatch(x, ids, weights, sizes, kind)
    calls.mark(handle, sent, ids, weights)
    state.num_dispatches += 1

    def hook() -> None:
        arrays = (got.x, got.scales, got.count, got.src_info, got.slots, got.ranges, waits)
        calls.receive_dispatch(sent, arrays, handle.copies, stats)
        handle.is_received = True

    return result, got.count, handle, hook


def _alive(
    checks: Checks, buffer: "Buffer", calls: Calls, state: State, handle: Any
) -> LowLatencyHandle:
    if not isinstance(handle, LowLatencyHandle):
        raise checks.refuse("handle", "one that low_latency_dispatch() gave", type(handle).__name__)
    if handle.buffer is not buffer:
        raise checks.refuse("handle", "one of this buffer", "one of another buffer")
    if handle.gpu != calls.gpu:
        raise checks.refuse("x", "memory where the dispatch's was", "memory elsewhere")
    later = state.num_dispatches - 1 - handle.number
    if later >= _ALIVE:
        raise checks.refuse(
            "handle", f"one of the last {_ALIVE} dispatches", f"one that {later} came after"
        )
    if not handle.is_received:
        raise checks.refuse("handle", "one whose hook was called", "one that is not received")
    return handle


def combine(buffer: "Buffer", calls: Calls, state: State, call: CombineCall) -> tuple[Array, Hook]:
    checks = Checks("low_latency_combine", buffer.rank, calls.gpu)
    _check_mode(checks, buffer)
    handle = _alive(checks, buffer, calls, state, call.handle)
    if call.partial is not None and not (isinstance(call.partial, str) and call.partial == "rank"):
        raise checks.refuse("partial", "None or 'rank'", repr(call.partial))
    if call.partial is not None and handle.copies is None:
        raise checks.refuse("partial", "None, or a dispatch with topk_weights", repr(call.partial))
    _, _, max_tokens, hidden, num_experts = handle
    shape = (num_experts // buffer.group_size, max_tokens * buffer.group_size, hidden)
    x = checks.array("x", call.x, _SUMMABLE, shape)
    if checks.flag("zero_copy", call.zero_copy):
        if state.combine_buffer is None or shape_of(state.combine_buffer) != shape:
            raise checks.refuse(
                "zero_copy", "rows in get_next_low_latency_combine_buffer()", "no such buffer"
            )
        x = state.combine_buffer
    ids = checks.array("topk_idx", call.topk_idx, ("int64",), (None, None))
    tokens, topk = shape_of(ids)
    if (tokens, topk) != handle.shape_of_ids:
        wanted = list(handle.shape_of_ids)
        raise checks.refuse("topk_idx", f"{wanted}, as of the dispatch", [tokens, topk])
    weights = checks.array("topk_weights", call.topk_weights, ("float32",), (tokens, topk))
    waits = call.waits
    if waits is not None:
        waits = checks.array(
            "combine_wait_recv_cost_stats", waits, ("int64",), (buffer.group_size,)
        )
    name = dtype_name(x)
    out = library_of(x).empty((tokens, hidden), name) if call.out is None else call.out
    place = checks.array("out", out, (name,), (tokens, hidden))
    calls.check_place(checks, "out", place)
    sizes = (tokens, hidden, topk, max_tokens, num_experts)
    sent = calls.send_combine(
        handle, (x, ids, weights), sizes, name, sums_by_rank=call.partial is not None
    )

    def hook() -> None:
        calls.receive_combine(sent, place, waits)

    return out, hook


def next_combine_buffer(buffer: "Buffer", state: State, handle: Any) -> Array:
    checks = Checks("get_next_low_latency_combine_buffer", buffer.rank)
    if not isinstance(handle, LowLatencyHandle):
        raise checks.refuse("handle", "one that low_latency_dispatch() gave", type(handle).__name__)
    shape = (
        handle[4] // buffer.group_size,
        handle[2] * buffer.group_size,
        handle[3],
    )
    if state.combine_buffer is None or shape_of(state.combine_buffer) != shape:
        state.combine_buffer = library_of(handle.slots).zeros(shape, "bfloat16")
    return state.combine_buffer

"""Low latency: fixed sizes, a send half and a receive half."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braid.arrays import Array
from braid.errors import InvalidArgument
from braid.moe.handles import LowLatencyHandle
from braid.moe.library import (
    Checks,
    Key,
    Library,
    Remembered,
    dtype_name,
    key_of,
    library_of,
    shape_of,
)

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
        self.checked = Remembered()


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
    has_hook: bool = True


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
    has_hook: bool = True


class DispatchForm:
    """What checks of a dispatch have found, and what follows from it: of all calls like it.

    sizes    tokens, hidden, K, M, experts
    kind     dtype, form of scales
    The rest is shapes and types of what it fills, of L experts here and N ranks.
    """

    def __init__(
        self,
        new: Library,
        num_ranks: int,
        sizes: tuple[int, ...],
        kind: tuple[str, int],
        has_weights: bool,
    ) -> None:
        self.new, self.sizes, self.kind, self.has_weights = new, sizes, kind, has_weights
        tokens, hidden, topk, max_tokens, num_experts = sizes
        dtype, form = kind
        local, rows = num_experts // num_ranks, num_ranks * max_tokens
        self.x = (local, rows, hidden), "float8_e4m3fn" if form else dtype
        words = hidden // _BLOCK // (4 if form == _UE8M0 else 1)
        of_scales = "int32" if form == _UE8M0 else "float32"
        self.scales = ((local, words, rows), of_scales) if form else None
        self.count = (local,), "int32"
        self.ranges = (local, num_ranks), "int64"
        self.src_info = (local, rows), "int32"  # slots as well
        self.copies: tuple[tuple[tuple[int, ...], str], ...] = ()
        if has_weights:
            self.copies = (
                ((num_ranks,), "int32"),
                ((num_ranks, max_tokens), "int32"),
                ((num_ranks, max_tokens, topk), "int32"),
                ((num_ranks, max_tokens, topk), "float32"),
            )
        self.of_handle = max_tokens, hidden, num_experts
        self.shape_of_ids = tokens, topk
        self.combines = Remembered()
        self.room: Any = None
        """How a GPU's calls lay out what they keep of such a dispatch."""


@dataclass(frozen=True)
class CombineForm:
    """The same of a combine."""

    new: Library
    sizes: tuple[int, ...]
    dtype: str
    out: tuple[int, int]


def scale_form(rank: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> int:
    if use_fp8 is False:
        return _NONE
    if use_fp8 is True and round_scale is False and use_ue8m0 is False:
        return _FLOAT
    checks = Checks("low_latency_dispatch", rank)
    if not checks.flag("use_fp8", use_fp8):
        return _NONE
    round_scale = checks.flag("round_scale", round_scale)
    use_ue8m0 = checks.flag("use_ue8m0", use_ue8m0)
    if use_ue8m0 and not round_scale:
        raise checks.refuse("round_scale", "True beside use_ue8m0", round_scale)
    return _UE8M0 if use_ue8m0 else _POWER_OF_2 if round_scale else _FLOAT


def has_hook(call: str, rank: int, async_finish: bool, return_recv_hook: bool) -> bool:
    if async_finish is False and return_recv_hook is False:
        return False
    checks = Checks(call, rank)
    is_async = checks.flag("async_finish", async_finish)
    wanted = checks.flag("return_recv_hook", return_recv_hook)
    if wanted and is_async:
        raise checks.refuse("async_finish", "False beside return_recv_hook", True)
    return wanted


def refuse_asked(checks: Checks, asked: dict[str, Any], why: str) -> None:
    """Of what braid does not do: raises where any of it is asked for."""
    for name, value in asked.items():
        if checks.flag(name, value):
            raise checks.unsupported(name, why)


def _not_in_mode(buffer: "Buffer", call: str) -> InvalidArgument:
    checks = Checks(call, buffer.rank)
    return checks.refuse("low_latency_mode", "True when the buffer was made", False)


# ---- dispatch ----


def _dispatch_form(
    buffer: "Buffer", calls: Calls, state: State, call: DispatchCall
) -> DispatchForm:
    arrays = (call.x, call.topk_idx, call.topk_weights, call.stats, call.waits)
    key = key_of(arrays, call.max_tokens, call.num_experts, call.form)
    form: DispatchForm | None = state.checked.find(key)
    if form is None:
        form = _check_dispatch(buffer, calls, call)
        state.checked.keep(key, form)
    return form


def _check_dispatch(buffer: "Buffer", calls: Calls, call: DispatchCall) -> DispatchForm:
    if not buffer.low_latency_mode:
        raise _not_in_mode(buffer, "low_latency_dispatch")
    checks = Checks("low_latency_dispatch", buffer.rank, calls.gpu)
    x = checks.array("x", call.x, _SUMMABLE if call.form else (), (None, None))
    tokens, hidden = shape_of(x)
    ids = checks.array("topk_idx", call.topk_idx, ("int64",), (tokens, None))
    max_tokens = checks.whole("num_max_dispatch_tokens_per_rank", call.max_tokens)
    num_experts = checks.whole("num_experts", call.num_experts)
    topk, n = shape_of(ids)[1], buffer.group_size
    if call.topk_weights is not None:
        checks.array("topk_weights", call.topk_weights, ("float32",), (tokens, topk))
    if call.stats is not None:
        name = "cumulative_local_expert_recv_stats"
        checks.array(name, call.stats, ("int32",), (num_experts // n,))
    if call.waits is not None:
        checks.array("dispatch_wait_recv_cost_stats", call.waits, ("int64",), (n,))
    sizes = (tokens, hidden, topk, max_tokens, num_experts)
    kind = dtype_name(x), call.form
    return DispatchForm(library_of(x), n, sizes, kind, call.topk_weights is not None)


def dispatch(
    buffer: "Buffer", calls: Calls, state: State, call: DispatchCall
) -> tuple[Any, Array, LowLatencyHandle, Hook | None]:
    form = _dispatch_form(buffer, calls, state, call)
    # Before anything is sent: who finds no memory may make the call again.
    try:
        got = calls.results(form)
        result = got.x if got.scales is None else (got.x, form.new.swapped(got.scales))
    except Exception:
        # A shape that no call may have is memory that nobody has: that is said first.
        calls.check_dispatch(form.sizes, form.kind, form.has_weights)
        raise
    handle = LowLatencyHandle((got.src_info, got.ranges, *form.of_handle))
    handle.buffer, handle.gpu, handle.number = buffer, calls.gpu, state.num_dispatches
    handle.form, handle.kept, handle.is_received = form, got.kept, False
    given = (call.x, call.topk_idx, call.topk_weights)
    # Counted before it is sent: whatever Ctrl-C cuts off, no handle lives longer than its rows.
    state.num_dispatches += 1
    if calls.joins_halves and not call.has_hook:
        try:
            calls.run_dispatch(handle, given, got, call.stats, call.waits)
        except Exception:
            state.num_dispatches -= 1
            raise
        handle.is_received = True
        return result, got.count, handle, None
    sent = calls.new_send(False)

    def hook() -> None:
        calls.receive_dispatch(sent, handle, got, call.stats, call.waits)
        handle.is_received = True

    try:
        calls.send_dispatch(sent, handle, given)
        if not call.has_hook:
            hook()
    except BaseException:
        if not _drop(calls, sent):
            state.num_dispatches -= 1
        raise
    return result, got.count, handle, hook if call.has_hook else None


def _drop(calls: Calls, sent: Any) -> bool:
    """Of a call that nobody has, for it was refused or Ctrl-C came: ends its receive half. False:
    it was not sent.
    """
    with suppress(Exception):  # unless the comm ended
        return bool(calls.drop(sent))
    return True


# ---- combine ----


def _alive(buffer: "Buffer", calls: Calls, state: State, handle: Any) -> LowLatencyHandle:
    if (
        isinstance(handle, LowLatencyHandle)
        and handle.buffer is buffer
        and handle.gpu == calls.gpu
        and state.num_dispatches - handle.number <= _ALIVE
        and handle.is_received
    ):
        return handle
    raise _why_not_alive(buffer, calls, state, handle)


def _why_not_alive(buffer: "Buffer", calls: Calls, state: State, handle: Any) -> InvalidArgument:
    checks = Checks("low_latency_combine", buffer.rank, calls.gpu)
    if not isinstance(handle, LowLatencyHandle):
        return checks.refuse(
            "handle", "one that low_latency_dispatch() gave", type(handle).__name__
        )
    if handle.buffer is not buffer:
        return checks.refuse("handle", "one of this buffer", "one of another buffer")
    if handle.gpu != calls.gpu:
        return checks.refuse("x", "memory where the dispatch's was", "memory elsewhere")
    later = state.num_dispatches - 1 - handle.number
    if later >= _ALIVE:
        return checks.refuse(
            "handle", f"one of the last {_ALIVE} dispatches", f"one that {later} came after"
        )
    return checks.refuse("handle", "one whose hook was called", "one that is not received")


def _combine_form(
    buffer: "Buffer", calls: Calls, state: State, handle: LowLatencyHandle, call: CombineCall
) -> CombineForm:
    """Remembered with the dispatch's: the rest that checks look at is that handle's."""
    arrays = (call.x, call.topk_idx, call.topk_weights, call.out, call.waits)
    # Which rows a zero-copy combine takes is not in its arguments.
    key: Key | None = key_of(arrays, call.partial) if call.zero_copy is False else None
    form: CombineForm | None = handle.form.combines.find(key)
    if form is None:
        checks = Checks("low_latency_combine", buffer.rank, calls.gpu)
        form = _check_combine(checks, buffer, state, handle, call)
        handle.form.combines.keep(key, form)
    return form


def _check_combine(
    checks: Checks, buffer: "Buffer", state: State, handle: LowLatencyHandle, call: CombineCall
) -> CombineForm:
    if call.partial is not None and not (isinstance(call.partial, str) and call.partial == "rank"):
        raise checks.refuse("partial", "None or 'rank'", repr(call.partial))
    if call.partial is not None and not handle.form.has_weights:
        raise checks.refuse("partial", "None, or a dispatch with topk_weights", repr(call.partial))
    _, _, max_tokens, hidden, num_experts = handle
    shape = handle.form.x[0]
    x = checks.array("x", call.x, _SUMMABLE, shape)
    if checks.flag("zero_copy", call.zero_copy):
        if state.combine_buffer is None or shape_of(state.combine_buffer) != shape:
            raise checks.refuse(
                "zero_copy", "rows in get_next_low_latency_combine_buffer()", "no such buffer"
            )
        x = call.x = state.combine_buffer
    ids = checks.array("topk_idx", call.topk_idx, ("int64",), (None, None))
    tokens, topk = shape_of(ids)
    if (tokens, topk) != handle.form.shape_of_ids:
        wanted = list(handle.form.shape_of_ids)
        raise checks.refuse("topk_idx", f"{wanted}, as of the dispatch", [tokens, topk])
    checks.array("topk_weights", call.topk_weights, ("float32",), (tokens, topk))
    if call.waits is not None:
        name = "combine_wait_recv_cost_stats"
        checks.array(name, call.waits, ("int64",), (buffer.group_size,))
    dtype = dtype_name(x)
    if call.out is not None:
        checks.array("out", call.out, (dtype,), (tokens, hidden))
    sizes = (tokens, hidden, topk, max_tokens, num_experts)
    return CombineForm(library_of(x), sizes, dtype, (tokens, hidden))


def combine(
    buffer: "Buffer", calls: Calls, state: State, call: CombineCall
) -> tuple[Array, Hook | None]:
    if not buffer.low_latency_mode:
        raise _not_in_mode(buffer, "low_latency_combine")
    handle = _alive(buffer, calls, state, call.handle)
    form = _combine_form(buffer, calls, state, handle, call)
    out = call.out
    if out is None:
        out = form.new.empty(form.out, form.dtype)
    else:
        calls.check_place(Checks("low_latency_combine", buffer.rank, calls.gpu), "out", out)
    given = (call.x, call.topk_idx, call.topk_weights)
    sums_by_rank = call.partial is not None
    if calls.joins_halves and not call.has_hook:
        calls.run_combine(handle, given, form, sums_by_rank, out, call.waits)
        return out, None
    sent = calls.new_send(True)

    def hook() -> None:
        calls.receive_combine(sent, out, call.waits)

    try:
        calls.send_combine(sent, handle, given, form, sums_by_rank)
        if not call.has_hook:
            hook()
    except BaseException:
        _drop(calls, sent)
        raise
    return out, hook if call.has_hook else None


def next_combine_buffer(buffer: "Buffer", state: State, handle: Any) -> Array:
    checks = Checks("get_next_low_latency_combine_buffer", buffer.rank)
    if not isinstance(handle, LowLatencyHandle):
        raise checks.refuse("handle", "one that low_latency_dispatch() gave", type(handle).__name__)
    shape = handle.form.x[0]
    if state.combine_buffer is None or shape_of(state.combine_buffer) != shape:
        state.combine_buffer = library_of(handle[0]).zeros(shape, "bfloat16")
    return state.combine_buffer

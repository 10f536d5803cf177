"""Normal mode: exact sizes. What the caller gave is checked here, the rest is the core's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braid.arrays import Array
from braid.moe.handles import DispatchHandle
from braid.moe.library import Checks, Library, dtype_name, item_bytes, library_of, shape_of

if TYPE_CHECKING:
    from braid.moe.buffer import Buffer

_SUMMABLE = ("bfloat16", "float16", "float32")

Calls = Any
"""braid.moe.host's HostCalls, or what serves a GPU's tensors."""


@dataclass
class DispatchCall:
    x: Any
    handle: Any
    num_tokens_per_rank: Array | None
    is_token_in_rank: Array | None
    num_tokens_per_expert: Array | None
    topk_idx: Array | None
    topk_weights: Array | None
    expert_alignment: int
    num_worst_tokens: int


@dataclass
class Rows:
    """x [T, H] and, of a pair, scales [T, S]."""

    x: Array
    scales: Array | None

    def bytes_of(self, array: Array | None) -> int:
        return 0 if array is None else shape_of(array)[1] * item_bytes(array)


def _rows(checks: Checks, given: Any) -> Rows:
    x, scales = given if isinstance(given, tuple) else (given, None)
    x = checks.array("x", x, (), (None, None))
    if scales is not None:
        scales = checks.array("x scales", scales, (), (shape_of(x)[0], None))
    return Rows(x, scales)


def dispatch(
    buffer: "Buffer", calls: Calls, call: DispatchCall
) -> tuple[Any, Array | None, Array | None, list[int] | None, DispatchHandle]:
    checks = Checks("dispatch", buffer.rank, calls.gpu)
    rows = _rows(checks, call.x)
    call.expert_alignment = checks.whole("expert_alignment", call.expert_alignment, 1)
    call.num_worst_tokens = checks.whole("num_worst_tokens", call.num_worst_tokens)
    tokens, n = shape_of(rows.x)[0], buffer.group_size
    known = None if call.handle is None else _own_handle(checks, buffer, calls, call.handle)
    if known is not None and (call.topk_idx is not None or call.topk_weights is not None):
        raise checks.refuse("topk_idx", "None beside a handle", "an array")
    given = known.is_token_in_rank if known is not None else call.is_token_in_rank
    is_in = checks.array("is_token_in_rank", given, ("bool",), (tokens, n))
    ids, weights, per_expert = _choices(checks, call, tokens, known)
    topk = 0 if ids is None else shape_of(ids)[1]
    num_experts = 0 if per_expert is None else shape_of(per_expert)[0]
    sizes = (tokens, rows.bytes_of(rows.x), rows.bytes_of(rows.scales), topk, num_experts)
    arrays = (rows.x, rows.scales, is_in, per_expert, ids, weights)
    begun = calls.begin(arrays, sizes, known, call.num_worst_tokens)
    room = call.num_worst_tokens or begun.num_rows
    if room < begun.num_rows:
        calls.abandon(begun)
        raise checks.refuse("num_worst_tokens", f"{begun.num_rows} or more", room)
    new = library_of(rows.x)
    try:
        out = _Outputs(new, rows, room, topk, weights is not None, ids is not None)
        if calls.fails_late and out.ids is not None:
            # What is enqueued behind this makes addresses of ids, whether rows have come or not.
            out.ids[:] = -1
        calls.finish(begun, (out.x, out.scales, out.ids, out.weights, out.src_idx), room)
    except BaseException:  # no memory, or Ctrl-C: calls go on
        calls.abandon(begun)
        raise
    handle = known or _make_handle(buffer, calls, new, begun, out.src_idx, is_in)
    recv_x = out.x if rows.scales is None else (out.x, out.scales)
    if known is not None:
        return recv_x, None, None, None, handle
    return recv_x, out.ids, out.weights, _counts(call, begun), handle


def _counts(call: DispatchCall, begun: Any) -> list[int]:
    if call.num_worst_tokens:
        return []
    unit = call.expert_alignment
    return [(rows + unit - 1) // unit * unit for rows in begun.per_expert]


class _Outputs:
    def __init__(
        self, new: Library, rows: Rows, room: int, topk: int, has_weights: bool, has_ids: bool
    ) -> None:
        self.x = new.empty((room, *shape_of(rows.x)[1:]), dtype_name(rows.x))
        self.scales = (
            None
            if rows.scales is None
            else new.empty((room, *shape_of(rows.scales)[1:]), dtype_name(rows.scales))
        )
        self.ids = new.empty((room, topk), "int64") if has_ids else None
        self.weights = new.empty((room, topk), "float32") if has_weights else None
        self.src_idx = new.empty((room,), "int32")


def _choices(
    checks: Checks, call: DispatchCall, tokens: int, known: DispatchHandle | None
) -> tuple[Array | None, Array | None, Array | None]:
    """Ids, weights and counts of a call without a handle."""
    if known is not None:
        return None, None, None
    per_expert = checks.array(
        "num_tokens_per_expert", call.num_tokens_per_expert, ("int32",), (None,)
    )
    if call.num_tokens_per_rank is None:
        raise checks.refuse("num_tokens_per_rank", "an array", "None")
    if call.topk_idx is None:
        if call.topk_weights is not None:
            raise checks.refuse("topk_idx", "an array beside topk_weights", "None")
        return None, None, per_expert
    ids = checks.array("topk_idx", call.topk_idx, ("int64",), (tokens, None))
    if call.topk_weights is None:
        return ids, None, per_expert
    return (
        ids,
        checks.array("topk_weights", call.topk_weights, ("float32",), shape_of(ids)),
        per_expert,
    )


def _own_handle(checks: Checks, buffer: "Buffer", calls: Calls, handle: Any) -> DispatchHandle:
    if not isinstance(handle, DispatchHandle):
        raise checks.refuse("handle", "one that dispatch() gave", type(handle).__name__)
    if handle.buffer is not buffer:
        raise checks.refuse("handle", "one of this buffer", "one of another buffer")
    if handle.gpu != calls.gpu:
        raise checks.refuse("x", "memory where the dispatch's was", "memory elsewhere")
    return handle


def _make_handle(
    buffer: "Buffer", calls: Calls, new: Library, begun: Any, src_idx: Array, is_in: Array
) -> DispatchHandle:
    n = buffer.group_size
    prefix, head = calls.matrices(begun, new, n, is_in)
    sent, received = calls.channels(new, n)
    handle = DispatchHandle((prefix, sent, received, src_idx, is_in, head))
    handle.buffer, handle.gpu = buffer, calls.gpu
    calls.mark_dispatch(handle, begun)
    handle.recv_src_idx, handle.is_token_in_rank = src_idx, is_in
    return handle


def _biases(
    checks: Checks, given: Any, dtype: str, shape: tuple[int, ...]
) -> tuple[Array | None, Array | None]:
    listed = list(given) or [None] if isinstance(given, tuple | list) else [given]
    if len(listed) > 2:
        raise checks.refuse("bias", "at most two", len(listed))
    checked = [
        None if each is None else checks.array("bias", each, (dtype,), shape) for each in listed
    ]
    return checked[0], checked[1] if len(checked) > 1 else None


def combine(
    buffer: "Buffer",
    calls: Calls,
    x: Array,
    given: Any,
    topk_weights: Array | None,
    bias: Any,
    partial: str | None = None,
) -> tuple[Array, Array | None]:
    checks = Checks("combine", buffer.rank, calls.gpu)
    if partial is not None and not (isinstance(partial, str) and partial == "node"):
        raise checks.refuse("partial", "None or 'node'", repr(partial))
    if partial is not None and calls.gpu is not None:
        raise checks.unsupported("partial", "the GPUs of a buffer are of one node")
    handle = _own_handle(checks, buffer, calls, given)
    x = checks.array("x", x, _SUMMABLE, (None, None))
    rows, hidden = shape_of(x)
    received = shape_of(handle.recv_src_idx)[0]
    if rows != received:
        raise checks.refuse("x", f"the {received} rows that dispatch gave", rows)
    weights, topk = None, 0
    if topk_weights is not None:
        weights = checks.array("topk_weights", topk_weights, ("float32",), (rows, None))
        topk = shape_of(weights)[1]
    tokens = shape_of(handle.is_token_in_rank)[0]
    bias_0, bias_1 = _biases(checks, bias, dtype_name(x), (tokens, hidden))
    new = library_of(x)
    out = new.empty((tokens, hidden), dtype_name(x))
    out_weights = new.empty((tokens, topk), "float32") if weights is not None else None
    arrays = (x, weights, bias_0, bias_1, out, out_weights)
    sizes = (rows, tokens, hidden, topk)
    if partial is None:
        calls.combine(handle, arrays, sizes, dtype_name(x))
    else:
        calls.combine(handle, arrays, sizes, dtype_name(x), sums_by_node=True)
    return out, out_weights

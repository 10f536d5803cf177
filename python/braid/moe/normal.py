"""Normal mode: exact sizes. What the caller gave is checked here, the rest is the core's."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braid.arrays import Array
from braid.moe.handles import DispatchHandle
from braid.moe.library import (
    Checks,
    Library,
    dtype_name,
    item_bytes,
    key_of,
    library_of,
    shape_of,
)

if TYPE_CHECKING:
    from braid.moe.buffer import Buffer

_SUMMABLE = ("bfloat16", "float16", "float32")

Calls = Any
"""braid.moe.host's HostCalls, or what serves a GPU's tensors."""
RowKind = tuple[tuple[int, ...], str]
"""A row's shape and type."""
Results = tuple[Array | None, Array | None, Array | None, Array | None, Array | None]
"""Rows, scales, ids, weights, tokens at the source."""


# ---- layout ----


@dataclass(frozen=True)
class LayoutForm:
    """What checks have found, of all calls like one; sizes: tokens, K, ranks, experts."""

    new: Library
    sizes: tuple[int, int, int, int]


def layout(
    buffer: "Buffer", calls: Calls, ids: Array, num_experts: int
) -> tuple[Array, Array, Array]:
    """Tokens per rank, rows per expert, which token goes where."""
    key = key_of((ids,), "layout", num_experts)
    form: LayoutForm | None = calls.checked.find(key)
    if form is None:
        form = _check_layout(buffer, calls, ids, num_experts)
        calls.checked.keep(key, form)
    empty = form.new.empty
    tokens, _, ranks, experts = form.sizes
    per_rank, is_in = empty((ranks,), "int32"), empty((tokens, ranks), "bool")
    per_expert = empty((experts,), "int32")
    calls.layout(ids, form.sizes, per_rank, per_expert, is_in)
    return per_rank, per_expert, is_in


def _check_layout(buffer: "Buffer", calls: Calls, ids: Array, num_experts: int) -> LayoutForm:
    checks = Checks("get_dispatch_layout", buffer.rank, calls.gpu)
    checks.array("topk_idx", ids, ("int64",), (None, None))
    num_experts = checks.whole("num_experts", num_experts)
    return LayoutForm(library_of(ids), (*_pair(ids), buffer.group_size, num_experts))


def _pair(array: Array) -> tuple[int, int]:
    rows, columns = shape_of(array)
    return rows, columns


# ---- dispatch ----


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


class DispatchForm:
    """What checks of a dispatch have found, and what follows from it: of all calls like it.

    sizes    tokens, bytes of a row and of a row of scales, K, experts
    kinds    a row's shape and type, of each of the results
    """

    def __init__(
        self,
        arrays: tuple[Array | None, ...],
        alignment: int,
        num_worst_tokens: int,
    ) -> None:
        x, scales, _, per_expert, ids, weights = arrays
        self.new = library_of(x)
        self.alignment, self.num_worst_tokens = alignment, num_worst_tokens
        topk = 0 if ids is None else shape_of(ids)[1]
        num_experts = 0 if per_expert is None else shape_of(per_expert)[0]
        self.sizes = (shape_of(x)[0], _row_bytes(x), _row_bytes(scales), topk, num_experts)
        self.kinds: tuple[RowKind | None, ...] = (
            (shape_of(x)[1:], dtype_name(x)),
            None if scales is None else (shape_of(scales)[1:], dtype_name(scales)),
            None if ids is None else ((topk,), "int64"),
            None if weights is None else ((topk,), "float32"),
            ((), "int32"),
        )

    def results(self, rows: int) -> Results:
        """Memory for them."""
        x, scales, ids, weights, src_idx = (self._empty(kind, rows) for kind in self.kinds)
        return x, scales, ids, weights, src_idx

    def _empty(self, kind: RowKind | None, rows: int) -> Array | None:
        return None if kind is None else self.new.empty((rows, *kind[0]), kind[1])


def _row_bytes(array: Array | None) -> int:
    return 0 if array is None else shape_of(array)[1] * item_bytes(array)


def _given(call: DispatchCall, known: DispatchHandle | None) -> tuple[Array | None, ...]:
    """x, scales, which token goes where; and, but with a handle, rows per expert, ids, weights."""
    x, scales = call.x if isinstance(call.x, tuple) else (call.x, None)
    if known is not None:
        return x, scales, known.is_token_in_rank, None, None, None
    return (
        x, scales, call.is_token_in_rank, call.num_tokens_per_expert, call.topk_idx,
        call.topk_weights,
    )  # fmt: skip


def _check_dispatch(
    checks: Checks, buffer: "Buffer", call: DispatchCall, known: DispatchHandle | None
) -> DispatchForm:
    arrays = x, scales, is_in, per_expert, ids, weights = _given(call, known)
    checks.array("x", x, (), (None, None))
    tokens = shape_of(x)[0]
    if scales is not None:
        checks.array("x scales", scales, (), (tokens, None))
    alignment = checks.whole("expert_alignment", call.expert_alignment, 1)
    num_worst_tokens = checks.whole("num_worst_tokens", call.num_worst_tokens)
    checks.array("is_token_in_rank", is_in, ("bool",), (tokens, buffer.group_size))
    if known is None:
        checks.array("num_tokens_per_expert", per_expert, ("int32",), (None,))
        if call.num_tokens_per_rank is None:
            raise checks.refuse("num_tokens_per_rank", "an array", "None")
        if ids is not None:
            checks.array("topk_idx", ids, ("int64",), (tokens, None))
        elif weights is not None:
            raise checks.refuse("topk_idx", "an array beside topk_weights", "None")
        if weights is not None:
            checks.array("topk_weights", weights, ("float32",), shape_of(ids))
    return DispatchForm(arrays, alignment, num_worst_tokens)


def dispatch(
    buffer: "Buffer", calls: Calls, call: DispatchCall
) -> tuple[Any, Array | None, Array | None, list[int] | None, DispatchHandle]:
    checks = Checks("dispatch", buffer.rank, calls.gpu)
    known = None if call.handle is None else _own_handle(checks, buffer, calls, call.handle)
    if known is not None and (call.topk_idx is not None or call.topk_weights is not None):
        raise checks.refuse("topk_idx", "None beside a handle", "an array")
    given = _given(call, known)
    has_counts = call.num_tokens_per_rank is not None
    key = key_of(
        given, "dispatch", known is not None, has_counts, call.expert_alignment,
        call.num_worst_tokens,
    )  # fmt: skip
    form: DispatchForm | None = calls.checked.find(key)
    if form is None:
        form = _check_dispatch(checks, buffer, call, known)
        calls.checked.keep(key, form)
    begun = calls.new_dispatch(given, form, known)
    try:
        x, scales, ids, weights, src_idx = _run(checks, calls, begun, given, form, known)
    except BaseException:  # no memory, or Ctrl-C wherever it comes: calls go on
        with suppress(Exception):  # unless the comm ended
            calls.abandon(begun)
        raise
    handle = known or _make_handle(buffer, calls, form.new, begun, src_idx, given[2])
    recv_x = x if scales is None else (x, scales)
    if known is not None:
        return recv_x, None, None, None, handle
    return recv_x, ids, weights, _counts(form, begun), handle


def _run(
    checks: Checks,
    calls: Calls,
    begun: Any,
    given: tuple[Array | None, ...],
    form: DispatchForm,
    known: DispatchHandle | None,
) -> Results:
    """Both steps; where it raises the first one may have been made."""
    calls.begin(begun, given, form, known)
    room = form.num_worst_tokens or begun.num_rows
    if room < begun.num_rows:
        raise checks.refuse("num_worst_tokens", f"{begun.num_rows} or more", room)
    results: Results | None = begun.results
    if results is None:
        results = form.results(room)
        calls.finish(begun, results, room)
    return results


def _counts(form: DispatchForm, begun: Any) -> list[int]:
    if form.num_worst_tokens:
        return []
    unit = form.alignment
    if unit == 1:
        return begun.per_expert  # type: ignore[no-any-return]
    return [(rows + unit - 1) // unit * unit for rows in begun.per_expert]


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


# ---- combine ----


@dataclass(frozen=True)
class CombineForm:
    """What checks of a combine have found, of all calls like it; sizes: rows, tokens, hidden, K."""

    new: Library
    sizes: tuple[int, int, int, int]
    dtype: str


def _biases(checks: Checks, given: Any) -> tuple[Array | None, Array | None]:
    if given is None:
        return None, None
    listed = list(given) or [None] if isinstance(given, tuple | list) else [given]
    if len(listed) > 2:
        raise checks.refuse("bias", "at most two", len(listed))
    return listed[0], listed[1] if len(listed) > 1 else None


def _check_combine(
    checks: Checks, handle: DispatchHandle, arrays: tuple[Array | None, ...]
) -> CombineForm:
    x, topk_weights, *biases = arrays
    checks.array("x", x, _SUMMABLE, (None, None))
    rows, hidden = _pair(x)
    received = shape_of(handle.recv_src_idx)[0]
    if rows != received:
        raise checks.refuse("x", f"the {received} rows that dispatch gave", rows)
    topk = 0
    if topk_weights is not None:
        checks.array("topk_weights", topk_weights, ("float32",), (rows, None))
        topk = shape_of(topk_weights)[1]
    tokens = shape_of(handle.is_token_in_rank)[0]
    for each in biases:
        if each is not None:
            checks.array("bias", each, (dtype_name(x),), (tokens, hidden))
    return CombineForm(library_of(x), (rows, tokens, hidden, topk), dtype_name(x))


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
    arrays = (x, topk_weights, *_biases(checks, bias))
    key = key_of((*arrays, handle.recv_src_idx, handle.is_token_in_rank), "combine")
    form: CombineForm | None = calls.checked.find(key)
    if form is None:
        form = _check_combine(checks, handle, arrays)
        calls.checked.keep(key, form)
    _, tokens, hidden, topk = form.sizes
    out = form.new.empty((tokens, hidden), form.dtype)
    out_weights = None if topk_weights is None else form.new.empty((tokens, topk), "float32")
    if partial is None:
        calls.combine(handle, (*arrays, out, out_weights), form.sizes, form.dtype)
    else:
        calls.combine(
            handle, (*arrays, out, out_weights), form.sizes, form.dtype, sums_by_node=True
        )
    return out, out_weights

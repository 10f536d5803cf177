"""ElasticBuffer: the class of DeepEP's second version, dispatch and combine, over Buffer's normal
mode: the same rows in the same order. Its expanded layout is made of them (expanded.py).
"""

from typing import Any

from braid.arrays import Array
from braid.moe.buffer import Buffer
from braid.moe.config import Config
from braid.moe.elastic_handle import EPHandle, Shape, make_handle
from braid.moe.events import EventOverlap
from braid.moe.expanded import expand, fold
from braid.moe.library import Checks, dtype_name, gpu_of, library_of, shape_of

_MOST_BYTES = 1 << 40  # calls of more take rounds
_ALIGNMENT = 2 << 20  # of sizes, as DeepEP's hints have it
_CPU_TIMEOUT_S, _GPU_TIMEOUT_S, _SERVICE_LEVEL = 300, 100, 3  # defaults there
_COLUMN_UNIT = 4  # scales of a column are padded to 16 bytes


class ElasticBuffer:
    """One rank's end. Collective to make; all ranks make the same calls in the same order.

    group    as of Buffer
    num_bytes                       room; None: by num_max_tokens_per_rank and hidden. Less than a
                                    call's rows works, too, in more rounds
    deterministic                   always so
    allow_multiple_reduction        False: rows of an expanded layout are not summed before they go
                                    back, which is not done here: its combine is refused
    What has no meaning here (queue pairs, hybrid mode, overlap) changes nothing. Refused by name:
    num_cpu_bytes, sl_idx and timeouts other than the defaults (BRAID_TIMEOUT is the deadline).
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = _SERVICE_LEVEL,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = _CPU_TIMEOUT_S,
        num_gpu_timeout_secs: int = _GPU_TIMEOUT_S,
        explicitly_destroy: bool = False,
    ) -> None:
        size, rank = _size_of(group)
        checks = Checks("ElasticBuffer", rank)
        num_max_tokens_per_rank = checks.whole("num_max_tokens_per_rank", num_max_tokens_per_rank)
        if num_bytes is not None:
            num_bytes = checks.whole("num_bytes", num_bytes, 0, 2**62)
        num_allocated_qps = checks.whole("num_allocated_qps", num_allocated_qps)
        for name, given, default, why in (
            ("num_cpu_bytes", num_cpu_bytes, 0, "there is no storage for Engram"),
            ("sl_idx", sl_idx, _SERVICE_LEVEL, "service levels are not set"),
            ("num_cpu_timeout_secs", num_cpu_timeout_secs, _CPU_TIMEOUT_S, "see BRAID_TIMEOUT"),
            ("num_gpu_timeout_secs", num_gpu_timeout_secs, _GPU_TIMEOUT_S, "see BRAID_TIMEOUT"),
        ):
            if not isinstance(given, int | float) or given != default:
                raise checks.unsupported(name, why)
        if num_bytes is None:
            num_bytes = ElasticBuffer.get_buffer_size_hint(
                group, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch
            )
        self.num_bytes = num_bytes
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps = max(num_allocated_qps, 1)
        self.explicitly_destroy = explicitly_destroy
        self.group = group
        self._inner = Buffer(group, min(num_bytes, _MOST_BYTES))
        self.rank_idx, self.num_ranks = self._inner.rank, size
        self.runtime = self._inner.runtime
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx

    def destroy(self) -> None:
        """Gives everything back. Twice is fine."""
        self._inner.destroy()

    def __enter__(self) -> "ElasticBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,  # noqa: ARG004  a row comes once to a rank, whatever its choices are
        use_fp8_dispatch: bool = False,  # noqa: ARG004  rows come back in two bytes a channel
        allow_hybrid_mode: bool = True,  # noqa: ARG004
        allow_multiple_reduction: bool = True,  # noqa: ARG004
    ) -> int:
        """Bytes for calls on rows of `hidden` channels, a multiple of 2 MiB."""
        size, _ = _size_of(group)
        checks = Checks("get_buffer_size_hint", None)
        checks.whole("num_max_tokens_per_rank", num_max_tokens_per_rank)
        checks.whole("hidden", hidden)
        one = Config().get_nvl_buffer_size_hint(2 * hidden, size)  # of rounds of its own
        wanted = one * max(num_max_tokens_per_rank, 1) // 128
        return -(-min(one, max(wanted, _ALIGNMENT)) // _ALIGNMENT) * _ALIGNMENT

    @staticmethod
    def capture() -> EventOverlap:
        """A point behind what was called so far, for previous_event."""
        return Buffer.capture()

    def get_comm_stream(self) -> Any:
        return self._inner.get_comm_stream()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Nodes, and ranks on each; (1, N) where ranks reach each other directly."""
        nodes = int(self._inner.runtime.num_nodes)
        return nodes, self.num_ranks // nodes

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(1, N): results lie by source rank, over how many nodes ever."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int) -> int:  # noqa: ARG002
        return Buffer.num_sms

    def get_theoretical_num_qps(self, num_sms: int) -> int:  # noqa: ARG002  there are none
        return 1

    def barrier(
        self,
        use_comm_stream: bool = True,
        with_cpu_sync: bool = False,  # noqa: ARG002
        sequential: bool = True,  # noqa: ARG002
    ) -> None:
        """Of all ranks, on the host: behind what the buffer's own stream holds, or the current one,
        where there were calls on a GPU.
        """
        if self._inner._gpu is not None:
            self._inner._gpu.wait(use_comm_stream)
        self._inner._comm.barrier()

    # ---- dispatch ----

    def dispatch(
        self,
        x: Any,
        topk_idx: Array | None = None,
        topk_weights: Array | None = None,
        cumulative_local_expert_recv_stats: Array | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,  # noqa: ARG002  there are no queue pairs
        previous_event: EventOverlap | None = None,
        previous_event_before_epilogue: EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, Array | None, Array | None, EPHandle, EventOverlap]:
        """Every token to the ranks of its experts: rows, ids, weights, handle, event.

        x [T, H], or (x, scales [T, S]). Rows come by (source, token), ids [n, K] local, -1
        elsewhere. With do_expand they come by (expert, source, token), each expert's rounded up to
        expert_alignment, ids are None and weights [rows]. Without do_cpu_sync there are as many
        rows as can come at most, N * num_max_tokens_per_rank, ids of the rest -1; not with
        do_expand. With a handle its layout is used again, and the answer has no ids. On a GPU the
        host waits for sizes without a handle, unless do_cpu_sync is False. With a handle, with
        do_expand or not, it waits for nothing, and the call may be captured in a graph.
        """
        rows = x[0] if isinstance(x, tuple) and x else x
        checks = Checks("dispatch", self.rank_idx, gpu_of(rows))
        rows = checks.array("x", rows, (), (None, None))
        num_sms = checks.whole("num_sms", num_sms)
        do_handle_copy = checks.flag("do_handle_copy", do_handle_copy)
        do_expand = checks.flag("do_expand", do_expand)
        do_zero_padding = checks.flag("do_zero_padding", do_zero_padding)
        use_tma_aligned_col_major_sf = checks.flag(
            "use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf
        )
        if do_cpu_sync is not None:
            do_cpu_sync = checks.flag("do_cpu_sync", do_cpu_sync)
        _no_epilogue(checks, previous_event_before_epilogue)
        if do_zero_padding and not do_expand:
            raise checks.refuse("do_zero_padding", "False without do_expand", True)
        if use_tma_aligned_col_major_sf and not isinstance(x, tuple):
            raise checks.refuse("use_tma_aligned_col_major_sf", "False without scales", True)
        call = self._shape_of_call(
            checks, handle, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment
        )
        waits = _waits_for_sizes(checks, handle, do_expand, do_cpu_sync)
        if (tokens := shape_of(rows)[0]) > call.most_tokens:
            expected = f"at most {call.most_tokens} tokens (num_max_tokens_per_rank)"
            raise checks.refuse("x", expected, tokens)
        style: dict[str, Any] = {
            "config": Config(num_sms) if num_sms else None,
            "previous_event": previous_event,
            "async_finish": async_with_compute_stream,
            "allocate_on_comm_stream": allocate_on_comm_stream,
        }
        if handle is not None and topk_weights is None:
            got, ids, weights, _, _, event = self._inner.dispatch(x, handle.inner, **style)
        else:
            got, ids, weights, counts, inner, event = self._dispatch_anew(
                x, topk_weights, call, handle, waits, style
            )
        if handle is not None:
            ids = None
        else:
            event.current_stream_wait()
            handle = make_handle(self.rank_idx, call, inner, ids, list(counts or []), do_expand)
            handle.num_sms = num_sms
            if do_handle_copy:
                handle.topk_idx = call.ids.copy() if hasattr(call.ids, "copy") else call.ids.clone()
        if cumulative_local_expert_recv_stats is not None:
            self._add_stats(checks, handle, cumulative_local_expert_recv_stats)
        if do_expand:
            event.current_stream_wait()
            slots, count = handle.recv_src_metadata[:, 2:], handle.num_expanded_tokens
            got, weights = expand(slots, count, got, weights, do_zero_padding)
            ids, event = None, self.capture()
        if use_tma_aligned_col_major_sf:
            event.current_stream_wait()
            got = (got[0], _by_columns(got[1]))
            event = self.capture()
        return got, ids, weights, handle, event

    def _dispatch_anew(
        self,
        x: Any,
        topk_weights: Array | None,
        call: Shape,
        handle: EPHandle | None,
        waits: bool,
        style: dict[str, Any],
    ) -> tuple[Any, Array | None, Array | None, list[int] | None, Any, EventOverlap]:
        """With a layout made for it, as Buffer's. So is one with weights beside a handle, into as
        many rows as the handle's own dispatch gave: a combine wants those, and nobody waits for
        their number.
        """
        room = self.num_ranks * call.most_tokens if handle is None else handle.num_recv_tokens
        per_rank, _, per_expert, is_in, laid_out = self._inner.get_dispatch_layout(
            call.ids, call.num_experts, style["previous_event"], style["async_finish"],
            style["allocate_on_comm_stream"],
        )  # fmt: skip
        got, ids, weights, counts, inner, event = self._inner.dispatch(
            x, None, per_rank, None, is_in, per_expert, call.ids, topk_weights, call.alignment,
            0 if handle is None and waits else max(room, 1),
            **{**style, "previous_event": laid_out},
        )  # fmt: skip
        if handle is not None and room == 0:
            weights = None if weights is None else weights[:0]
            got = tuple(each[:0] for each in got) if isinstance(got, tuple) else got[:0]
        return got, ids, weights, counts, inner, event

    def _add_stats(self, checks: Checks, handle: EPHandle, given: Array) -> None:
        local = (handle.num_experts // self.num_ranks,)
        stats = checks.array("cumulative_local_expert_recv_stats", given, ("int32",), local)
        stats += handle.num_unaligned_recv_tokens_per_expert

    def _shape_of_call(
        self,
        checks: Checks,
        handle: EPHandle | None,
        topk_idx: Array | None,
        num_experts: int | None,
        most_tokens: int | None,
        alignment: int | None,
    ) -> Shape:
        if handle is not None:
            if not isinstance(handle, EPHandle):
                raise checks.refuse("handle", "one that dispatch() gave", type(handle).__name__)
            if topk_idx is not None:
                raise checks.refuse("topk_idx", "None beside a handle", "an array")
            for name, given, of_handle in (
                ("num_experts", num_experts, handle.num_experts),
                ("num_max_tokens_per_rank", most_tokens, handle.num_max_tokens_per_rank),
                ("expert_alignment", alignment, handle.expert_alignment),
            ):
                if given is not None and given != of_handle:
                    raise checks.refuse(name, f"{of_handle}, as of the handle", given)
            return Shape(
                handle.topk_idx, handle.num_experts, handle.num_max_tokens_per_rank,
                handle.expert_alignment,
            )  # fmt: skip
        if topk_idx is None:
            raise checks.refuse("topk_idx", "an array, or a handle", "None")
        if num_experts is None:
            raise checks.refuse("num_experts", "a number, or a handle", "None")
        num_experts = checks.whole("num_experts", num_experts)
        most = self.num_max_tokens_per_rank
        if most_tokens is not None:
            most = checks.whole("num_max_tokens_per_rank", most_tokens)
        if most < 1:
            raise checks.refuse("num_max_tokens_per_rank", "1 or more, here or of the buffer", most)
        return Shape(topk_idx, num_experts, most, 1 if alignment is None else alignment)

    # ---- combine ----

    def combine(
        self,
        x: Array,
        handle: EPHandle,
        topk_weights: Array | None = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,  # noqa: ARG002
        previous_event: EventOverlap | None = None,
        previous_event_before_epilogue: EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Array, Array | None, EventOverlap]:
        """Rows back to their owners, summed in rank order in fp32, then biases, rounded once.

        x as dispatch gave it: [n, H], or of an expanded layout [rows, H]: then a token's rows are
        added up here first, from zero on in the order of its choices in fp32, and rounded once
        more. topk_weights [n, K], or [rows], come back to their owners, too; they weigh nothing.
        """
        checks = Checks("combine", self.rank_idx, gpu_of(x))
        _no_epilogue(checks, previous_event_before_epilogue)
        if not isinstance(handle, EPHandle):
            raise checks.refuse("handle", "one that dispatch() gave", type(handle).__name__)
        if handle.do_expand:
            if not self.allow_multiple_reduction:
                raise checks.unsupported(
                    "allow_multiple_reduction", "rows of an expanded layout are summed twice"
                )
            if previous_event is not None:
                previous_event.current_stream_wait()
            slots, rows = handle.recv_src_metadata[:, 2:], handle.num_expanded_tokens
            x, topk_weights = fold(checks, slots, rows, x, topk_weights)
        sms = checks.whole("num_sms", num_sms) or handle.num_sms
        return self._inner.combine(
            x, handle.inner, topk_weights, bias, Config(sms) if sms else None,
            None if handle.do_expand else previous_event,
            async_with_compute_stream, allocate_on_comm_stream,
        )  # fmt: skip


def _size_of(group: Any) -> tuple[int, int]:
    if not hasattr(group, "size") or not hasattr(group, "rank"):
        raise Checks("ElasticBuffer", None).refuse(
            "group", "a braid.Comm or a group of torch.distributed", type(group).__name__
        )
    size, rank = group.size, group.rank
    return int(size() if callable(size) else size), int(rank() if callable(rank) else rank)


def _no_epilogue(checks: Checks, event: Any) -> None:
    if event is not None:
        raise checks.unsupported(
            "previous_event_before_epilogue", "there is no epilogue apart; give previous_event"
        )


def _waits_for_sizes(
    checks: Checks, handle: EPHandle | None, do_expand: bool, do_cpu_sync: bool | None
) -> bool:
    """Whether results have as many rows as come, which a handle knows already."""
    if handle is not None and handle.do_expand != do_expand:
        raise checks.refuse("do_expand", f"{handle.do_expand}, as of the handle", do_expand)
    if handle is not None and do_cpu_sync:
        raise checks.refuse("do_cpu_sync", "False beside a handle", True)
    waits = handle is not None or do_cpu_sync is None or do_cpu_sync
    if do_expand and not waits:
        raise checks.unsupported("do_cpu_sync", "an expanded layout needs its sizes: give True")
    return waits


def _by_columns(scales: Array) -> Array:
    """The same [rows, S], each column at consecutive addresses and padded to 16 bytes."""
    rows, columns = shape_of(scales)
    new = library_of(scales)
    padded = -(-rows // _COLUMN_UNIT) * _COLUMN_UNIT
    out = new.swapped(new.zeros((columns, padded), dtype_name(scales)))[:rows]
    out[:] = scales
    return out

"""Buffer: DeepEP's class over braid's core. Its two modes are in normal.py and low_latency.py; here
are its life, its size, and what it tells.
"""

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from braid import _braid
from braid.arrays import Array
from braid.comm import Comm
from braid.errors import InvalidArgument, Unsupported
from braid.moe import low_latency, normal
from braid.moe.config import Config, default_config
from braid.moe.events import EventHandle, EventOverlap
from braid.moe.host import HostCalls
from braid.moe.library import Checks, gpu_of, torch_side
from braid.moe.meeting import comm_of

_MOST_NORMAL_BYTES = 64 << 20  # rounds make any number of tokens fit into less
_MOST_BYTES = 1 << 41
_LEAST_HALF_BYTES = 64 << 10  # per rank
_BF16 = 2


class Buffer:
    """One rank's end of dispatch and combine. Collective to make; all ranks make the same calls in
    the same order.

    group    a braid.Comm, a process group of torch.distributed, or None with `comm` (mpi4py's)
    num_nvl_bytes, num_rdma_bytes   room for normal and for low-latency calls, as the hints say
    enable_shrink    ranks that are late are given up and calls go on without them
    may_gather       a dispatch of host memory with ids takes rows from where they were made, in
                     place of a copy to each rank, where that is measured to be faster (rank 0's
                     word for all); results are the same bytes. Only where ranks share memory

    Errors name rank, argument, expected and got. What one rank can see alone is raised before
    anything is sent, and the call may be made again; where ranks disagree all of them raise. One
    thread at a time.

    Tensors in the memory of an NVIDIA GPU are served by kernels on the current stream, which may be
    captured in a graph; the first call with one is collective, takes windows of the GPU's memory
    and loads kernels. What only the GPU can see (an id that is none, ranks that disagree, one that
    does not come) ends the comm, and the next call raises it.
    """

    num_sms: ClassVar[int] = 20
    _low_latency_sms: ClassVar[int] = 0  # all, unless somebody has set a number

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,  # noqa: ARG002  there are no queue pairs
        allow_nvlink_for_low_latency_mode: bool = True,  # noqa: ARG002
        allow_mnnvl: bool = False,  # noqa: ARG002
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        use_fabric: bool | None = None,  # noqa: ARG002
        may_gather: bool = False,
    ) -> None:
        checks = Checks("Buffer", None)
        num_nvl_bytes = checks.whole("num_nvl_bytes", num_nvl_bytes, 0, _MOST_BYTES)
        num_rdma_bytes = checks.whole("num_rdma_bytes", num_rdma_bytes, 0, _MOST_BYTES)
        low_latency_mode = checks.flag("low_latency_mode", low_latency_mode)
        enable_shrink = checks.flag("enable_shrink", enable_shrink)
        may_gather = checks.flag("may_gather", may_gather)
        self._owns_comm = not isinstance(group, Comm)
        self._comm = comm_of(group, comm)
        self.group = group
        self.rank, self.group_size = self._comm.rank, self._comm.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        half = max(
            min(num_nvl_bytes, _MOST_NORMAL_BYTES) // 2,
            num_rdma_bytes // 2 if low_latency_mode else 0,
            _LEAST_HALF_BYTES * self.group_size,
        )
        self._half_bytes = half
        self.runtime = _braid.moe.Buffer(self._comm._core, half, enable_shrink)
        self.runtime.set_may_gather(may_gather)
        self._host = HostCalls(self.runtime)
        self._gpu: Any = None  # braid.torch.moe.GpuCalls, from the first call with GPU memory on

    # ---- life ----

    def destroy(self) -> None:
        """Gives everything back. Twice is fine; hooks that were not called raise afterwards.
        Refused while a call is under way, in another thread or around a signal's handler.
        """
        if self.runtime.is_closed:
            return
        self.runtime.close()
        if self._gpu is not None:
            self._gpu.close()
        if self._owns_comm:
            self._comm.close()

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether there are kernels for GPUs of compute capability 9.0."""
        return _braid.moe.has_kernels()

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """How many multiprocessors calls may use; an even number."""
        checks = Checks("set_num_sms", None)
        new_num_sms = checks.whole("new_num_sms", new_num_sms)
        if new_num_sms < 2 or new_num_sms % 2 != 0:
            raise checks.refuse("new_num_sms", "an even number of 2 or more", new_num_sms)
        Buffer.num_sms = Buffer._low_latency_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """A point behind what was called so far, on torch's current stream where it has one."""
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            return EventOverlap(torch_side().CudaEvent())
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that low-latency calls of this shape need, up to 16 experts a token."""
        checks = Checks("get_low_latency_rdma_size_hint", None)
        for name, value in {
            "num_max_dispatch_tokens_per_rank": num_max_dispatch_tokens_per_rank,
            "hidden": hidden,
            "num_ranks": num_ranks,
            "num_experts": num_experts,
        }.items():
            checks.whole(name, value)
        half = _braid.moe.low_latency_half_bytes(
            num_max_dispatch_tokens_per_rank, _BF16 * hidden, num_ranks, num_experts
        )
        return 2 * half

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return default_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return default_config(num_ranks, Buffer.num_sms)

    def get_comm_stream(self) -> Any:
        """The stream of asynchronous calls on a GPU; None before the first call with its memory,
        and in host memory.
        """
        return None if self._gpu is None else self._gpu.stream

    def get_local_buffer_tensor(
        self,
        dtype: Any,  # noqa: ARG002
        size: Any = None,  # noqa: ARG002
        offset: int = 0,  # noqa: ARG002
        use_rdma_buffer: bool = False,  # noqa: ARG002
    ) -> Any:
        raise Unsupported(
            "get_local_buffer_tensor: a window belongs to its protocol; no view of it"
        )

    def sent_bytes(self) -> list[int]:
        """Bytes that left this rank for each other one, with headers and flags: true bytes, not
        those that stay here. Between nodes of several ranks each, all that is for one of them is
        counted for the rank there that takes it. Of calls in host memory: what GPUs send is not
        counted, nor what peers fetch of gathered rows.
        """
        return list(self.runtime.sent_bytes())

    def _calls(self, array: Any, most_sms: int = 0) -> Any:
        """Who serves memory such as `array`'s, by at most so many multiprocessors (0: all)."""
        first = array[0] if isinstance(array, tuple) and array else array
        if not getattr(first, "is_cuda", False):
            return self._host
        if self.runtime.is_closed:
            raise InvalidArgument(f"moe buffer on rank {self.rank}: it was destroyed")
        if self.runtime.mask:
            raise Unsupported(
                f"moe buffer on rank {self.rank}: low_latency_update_mask_buffer: a rank is masked,"
                " and on GPUs nobody is given up; low_latency_clean_mask_buffer() takes it back"
            )
        if self._gpu is None:
            self._gpu = torch_side().GpuCalls(
                self, first.device.index, self._half_bytes, self._owns_comm
            )
        self._gpu.num_sms = most_sms
        return self._gpu

    # ---- normal mode ----

    def get_dispatch_layout(
        self,
        topk_idx: Array,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Array, Array | None, Array, Array, EventOverlap]:
        """Tokens per rank [N], None, rows per expert [E], which token goes where [T, N], event."""
        calls = self._calls(topk_idx)
        inputs = (topk_idx,)
        with calls.place(previous_event, async_finish, allocate_on_comm_stream, inputs) as place:
            per_rank, per_expert, is_in = normal.layout(self, calls, topk_idx, num_experts)
            event = place.over(async_finish, (per_rank, per_expert, is_in))
        return per_rank, None, per_expert, is_in, event

    def dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Array | None = None,
        num_tokens_per_rdma_rank: Array | None = None,
        is_token_in_rank: Array | None = None,
        num_tokens_per_expert: Array | None = None,
        topk_idx: Array | None = None,
        topk_weights: Array | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Array | None, Array | None, list[int] | None, Any, EventOverlap]:
        """Every token to the ranks of its experts, once to each; what comes is by (source, token).

        x [T, H], or (x, scales [T, S]). With a handle the layout of that dispatch is used again,
        and ids, weights and counts are None in the answer. With num_worst_tokens results have
        that many rows, ids of the rest are -1, and the list of counts is empty. On a GPU the host
        waits for sizes where there is neither.
        """
        calls = self._calls(x, self._sms(config))
        if num_tokens_per_rdma_rank is not None:
            raise Checks("dispatch", self.rank).unsupported(
                "num_tokens_per_rdma_rank", "there is no second hop to count for; give None"
            )
        call = normal.DispatchCall(
            x,
            handle,
            num_tokens_per_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
        )
        inputs = (x, handle, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
        with calls.place(previous_event, async_finish, allocate_on_comm_stream, inputs) as place:
            results = normal.dispatch(self, calls, call)
            event = place.over(async_finish, results)
        return (*results, event)

    def _sms(self, config: Config | None) -> int:
        if config is None:
            return Buffer.num_sms
        if not hasattr(config, "num_sms"):
            raise Checks("Buffer", self.rank).refuse(
                "config", "None or a Config", type(config).__name__
            )
        return config.num_sms

    def combine(
        self,
        x: Array,
        handle: Any,
        topk_weights: Array | None = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        partial: str | None = None,
    ) -> tuple[Array, Array | None, EventOverlap]:
        """Rows back to their owners: summed in rank order in fp32, then biases, rounded once.

        With partial="node", alike on all ranks, each node's rows are summed there and rounded, so
        that one row per (token, node) crosses between nodes; then the nodes' sums are added up in
        the order of nodes, and biases, and rounded again. Not on GPUs.
        """
        calls = self._calls(x, self._sms(config))
        inputs = (x, handle, topk_weights, bias)
        with calls.place(previous_event, async_finish, allocate_on_comm_stream, inputs) as place:
            out, weights = normal.combine(self, calls, x, handle, topk_weights, bias, partial)
            event = place.over(async_finish, (out, weights))
        return out, weights, event

    # ---- low latency ----

    def low_latency_dispatch(
        self,
        x: Array,
        topk_idx: Array,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Array | None = None,
        dispatch_wait_recv_cost_stats: Array | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        x_global_scale: Array | None = None,
        use_nvfp4: bool = False,
        topk_weights: Array | None = None,
    ) -> tuple[Any, Array, Any, EventOverlap, Callable[[], None] | None]:
        """Every token to its experts: rows [L, M*N, H] by (expert, source, token), count [L].

        x [T, H], T up to M. With use_fp8 (rows, scales): fp32 [L, M*N, H/128], the axis of rows
        innermost, powers of two with round_scale, packed exponents int32 [L, M*N, H/512] with
        use_ue8m0. With return_recv_hook the receive half is the hook; of two results that are
        alive neither is overwritten, a third one is refused. Waits are in nanoseconds. With
        topk_weights they travel with the rows, for a combine with partial="rank".
        """
        form = low_latency.scale_form(self.rank, use_fp8, round_scale, use_ue8m0)
        if use_nvfp4 is not False or x_global_scale is not None:
            asked = {"use_nvfp4": use_nvfp4, "x_global_scale": x_global_scale is not None}
            checks = Checks("low_latency_dispatch", self.rank)
            low_latency.refuse_asked(checks, asked, "NVFP4 is not made here")
        has_hook = low_latency.has_hook(
            "low_latency_dispatch", self.rank, async_finish, return_recv_hook
        )
        call = low_latency.DispatchCall(
            x,
            topk_idx,
            topk_weights,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats,
            form,
            has_hook,
        )
        calls = self._calls(x, Buffer._low_latency_sms)
        with calls.place(None, async_finish, False, (x, topk_idx, topk_weights)) as place:
            rows, count, handle, hook = low_latency.dispatch(self, calls, calls.state, call)
            event = place.over(async_finish, (rows, count, handle))
        return rows, count, handle, event, hook

    def low_latency_combine(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array,
        handle: Any,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Array | None = None,
        combine_wait_recv_cost_stats: Array | None = None,
        overlap: bool = False,
        src_signals: Array | None = None,
        src_signal_expect_value: int = 0,  # noqa: ARG002
        partial: str | None = None,
    ) -> tuple[Array, EventOverlap, Callable[[], None] | None]:
        """x [L, M*N, H] back to the owners: sum over k, upwards, of weight times row, in fp32,
        rounded once into [T, H].

        With partial="rank", alike on all ranks and after a dispatch that had topk_weights (the same
        ones), each rank adds up its own experts' rows of a token so and rounds, one row comes back
        for each (token, rank), and those are added up in rank order and rounded again. On GPUs
        nobody checks that weights are those of the dispatch: those are taken.
        """
        if use_logfmt is not False or overlap is not False or src_signals is not None:
            asked = {
                "use_logfmt": use_logfmt,
                "overlap": overlap,
                "src_signals": src_signals is not None,
            }
            checks = Checks("low_latency_combine", self.rank)
            low_latency.refuse_asked(checks, asked, "not done here")
        has_hook = low_latency.has_hook(
            "low_latency_combine", self.rank, async_finish, return_recv_hook
        )
        call = low_latency.CombineCall(
            x,
            topk_idx,
            topk_weights,
            handle,
            zero_copy,
            out,
            combine_wait_recv_cost_stats,
            partial,
            has_hook,
        )
        calls = self._calls(x, Buffer._low_latency_sms)
        with calls.place(None, async_finish, False, (x, topk_idx, topk_weights, handle)) as place:
            result, hook = low_latency.combine(self, calls, calls.state, call)
            event = place.over(async_finish, (result,))
        return result, event, hook

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Nothing is left over that needs cleaning: numbers only grow. Raises where the shape does
        not fit.
        """
        needed = self.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, self.group_size, num_experts
        )
        if needed > 2 * self.runtime.half_bytes:
            raise Checks("clean_low_latency_buffer", self.rank).refuse(
                "num_rdma_bytes", f"{needed} bytes or more for this shape", self.num_rdma_bytes
            )

    def get_next_low_latency_combine_buffer(self, handle: Any) -> Array:
        """[L, M*N, H] to write expert rows into, for zero_copy=True of the next combine."""
        on_gpu = getattr(handle, "gpu", None) is not None
        state = self._gpu.state if on_gpu else self._host.state
        return low_latency.next_combine_buffer(self, state, handle)

    # ---- ranks that are given up ----

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """From the next call on `rank_to_mask` is not sent to nor waited for, or is again; of this
        rank alone: the other ones are not told. If the masked one lives and calls, its calls raise
        Unavailable at once, naming this rank. Once it is not masked any more, calls of both may
        raise until they have made as many; then they go through. Without enable_shrink mask nobody
        who is in a call. Calls on GPU memory are refused while somebody is masked.
        """
        checks = Checks("low_latency_update_mask_buffer", self.rank)
        rank_to_mask = checks.whole("rank_to_mask", rank_to_mask)
        self.runtime.set_masked(rank_to_mask, checks.flag("mask", mask))

    def low_latency_query_mask_buffer(self, mask_status: Array) -> None:
        """1 in mask_status [N], int32, in host or GPU memory, for every rank that is masked."""
        out = Checks("low_latency_query_mask_buffer", self.rank, gpu_of(mask_status)).array(
            "mask_status", mask_status, ("int32",), (self.group_size,)
        )
        for rank in range(self.group_size):
            out[rank] = self.runtime.mask >> rank & 1

    def low_latency_clean_mask_buffer(self) -> None:
        self.runtime.clear_mask()

"""Calls on tensors in a GPU's memory: what braid.moe.host does for the host's, enqueued on the
current stream. Sizes that only the GPU knows are waited for in a normal dispatch without
num_worst_tokens and without a handle, and nowhere else.
"""

from typing import TYPE_CHECKING, Any

import torch

from braid import _braid
from braid.errors import InvalidArgument, Unsupported
from braid.moe import low_latency
from braid.moe.handles import DispatchHandle, LowLatencyHandle
from braid.moe.library import Checks
from braid.torch.moe.places import Place

if TYPE_CHECKING:
    from braid.moe.buffer import Buffer

_INT64_BYTES = 8
_VECTOR_BYTES = 16
_NO_COPIES = (None,) * 4


def _at(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


class _Sent:
    """A low-latency call between its halves: keeps what the second one reads."""

    def __init__(self, core: Any, ticket: torch.Tensor, *inputs: torch.Tensor | None) -> None:
        self.core, self.ticket, self.inputs = core, ticket, inputs


class _Begun:
    def __init__(
        self,
        core: Any,
        ticket: torch.Tensor,
        incoming: torch.Tensor,
        num_rows: int,
        inputs: tuple[torch.Tensor | None, ...],
    ) -> None:
        self.core, self.ticket, self.incoming = core, ticket, incoming
        self.num_rows, self.inputs = num_rows, inputs

    @property
    def per_expert(self) -> list[int]:
        return list(self.core.per_expert)


class GpuCalls:
    """Collective to make, at the first call of a buffer with a tensor of a GPU."""

    fails_late = True

    def __init__(self, buffer: "Buffer", gpu: int, half_bytes: int, is_small: bool) -> None:
        where = f"Buffer on rank {buffer.rank}"
        if buffer.enable_shrink:
            raise Unsupported(
                f"{where}: argument enable_shrink: ranks are not given up on GPUs; expected False"
            )
        if torch.cuda.is_current_stream_capturing():
            raise InvalidArgument(
                f"{where}: the first call with GPU memory is in a capture: expected one before it,"
                " which makes windows and loads kernels"
            )
        self.gpu: int | None = gpu
        self.device = torch.device("cuda", gpu)
        self.core = _braid.moe.GpuBuffer(buffer._comm._core, gpu, half_bytes, is_small)
        self.state = low_latency.State()
        self.stream = torch.cuda.Stream(self.device)
        self.num_sms = 0  # of the next launches; 0: all
        self._size = buffer.group_size
        self._one_channel = torch.zeros((self._size, 1), dtype=torch.int32, device=self.device)
        torch.cuda.current_stream(self.device).synchronize()

    def place(
        self, previous: Any, is_async: bool, on_comm_stream: bool = False, inputs: Any = ()
    ) -> Place:
        return Place(self.device, self.stream, previous, is_async or on_comm_stream, inputs)

    def wait(self, for_own_stream: bool) -> None:
        """Until the buffer's own stream, or the current one, has done what it holds."""
        stream = self.stream if for_own_stream else torch.cuda.current_stream(self.device)
        stream.synchronize()

    def close(self) -> None:
        self.core.close()

    def _launch(self) -> tuple[int, int]:
        return int(torch.cuda.current_stream(self.device).cuda_stream), self.num_sms

    def _ticket(self) -> torch.Tensor:
        return torch.empty(
            _braid.moe.ticket_bytes // _INT64_BYTES, dtype=torch.int64, device=self.device
        )

    def layout(
        self,
        ids: torch.Tensor,
        sizes: tuple[int, int, int, int],
        per_rank: torch.Tensor,
        per_expert: torch.Tensor,
        is_in: torch.Tensor,
    ) -> None:
        tokens, topk, _, num_experts = sizes
        self.core.layout(
            _at(ids), tokens, topk, num_experts, _at(per_rank), _at(per_expert), _at(is_in),
            self._launch()[0],
        )  # fmt: skip

    # ---- normal ----

    def begin(
        self,
        arrays: tuple[torch.Tensor | None, ...],
        sizes: tuple[int, int, int, int, int],
        known: DispatchHandle | None,
        num_worst_tokens: int,
    ) -> _Begun:
        tells_host = known is None and num_worst_tokens == 0
        if tells_host and torch.cuda.is_current_stream_capturing():
            raise InvalidArgument(
                "dispatch: argument num_worst_tokens: expected a number of rows inside a capture,"
                " where the host cannot wait for sizes, got 0"
            )
        ticket = self._ticket()
        num_local = sizes[4] // self._size
        words = _braid.moe.incoming_words(self._size, num_local)
        incoming = torch.empty(words, dtype=torch.int32, device=self.device)
        _, _, _, _, ids, weights = arrays
        core = self.core.begin(
            *(_at(each) for each in arrays), *sizes, ids is not None, weights is not None,
            _at(known.phase) if known is not None else 0, _at(ticket), _at(incoming), tells_host,
            *self._launch(),
        )  # fmt: skip
        rows = core.num_rows
        if not tells_host:  # as many as the handle's dispatch gave, or as the caller says
            rows = num_worst_tokens or int(known.recv_src_idx.shape[0] if known else 0)
        return _Begun(core, ticket, incoming, rows, arrays)

    def abandon(self, begun: _Begun) -> None:
        self.core.abandon(begun.core, *self._launch())

    def finish(self, begun: _Begun, arrays: tuple[torch.Tensor | None, ...], room: int) -> None:
        self.core.finish(begun.core, *(_at(each) for each in arrays), room, *self._launch())

    def matrices(
        self,
        begun: _Begun,
        new: Any,  # noqa: ARG002
        num_ranks: int,
        is_in: torch.Tensor,  # noqa: ARG002
    ) -> tuple[torch.Tensor, None]:
        """The prefix matrix is a part of what the GPU was told; send_head is nobody's on GPUs."""
        first = _braid.moe.incoming_head_words + num_ranks
        return begun.incoming[first : first + num_ranks**2].view(num_ranks, num_ranks), None

    def channels(
        self,
        new: Any,  # noqa: ARG002
        num_ranks: int,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same zeros for every handle: to make them would be two kernels of every dispatch."""
        return self._one_channel, self._one_channel

    def mark_dispatch(self, handle: DispatchHandle, begun: _Begun) -> None:
        handle.phase, handle.incoming = begun.ticket, begun.incoming

    def combine(
        self,
        handle: DispatchHandle,
        arrays: tuple[torch.Tensor | None, ...],
        sizes: tuple[int, int, int, int],
        dtype: str,
    ) -> None:
        x, weights, *rest = arrays
        self.core.combine(
            _at(x), _at(weights), weights is not None, _at(handle.incoming),
            _at(handle.recv_src_idx), _at(handle.is_token_in_rank), *(_at(each) for each in rest),
            *sizes[1:], dtype, _at(handle.phase), *self._launch(),
        )  # fmt: skip

    # ---- low latency ----

    def check_dispatch(self, sizes: tuple[int, ...], kind: tuple[str, int], weights: bool) -> None:
        self.core.check_dispatch(*sizes, *kind, weights)

    def check_place(self, checks: Checks, argument: str, array: torch.Tensor) -> None:
        if (at := _at(array)) % _VECTOR_BYTES:
            raise checks.refuse(
                argument, f"an address that is a multiple of {_VECTOR_BYTES}", f"{at:#x}"
            )

    def send_dispatch(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        sizes: tuple[int, int, int, int, int],
        kind: tuple[str, int],
    ) -> _Sent:
        ticket = self._ticket()
        core = self.core.send_dispatch(
            _at(x), _at(ids), _at(weights), weights is not None, *sizes, *kind, _at(ticket),
            *self._launch(),
        )  # fmt: skip
        return _Sent(core, ticket, x, ids, weights)

    def receive_dispatch(
        self,
        sent: _Sent,
        arrays: tuple[torch.Tensor | None, ...],
        copies: tuple[torch.Tensor, ...] | None,
        stats: torch.Tensor | None,
    ) -> None:
        *results, waits = arrays
        self.core.receive_dispatch(
            sent.core, *(_at(each) for each in results), _at(stats), _at(waits),
            *(_at(each) for each in copies or _NO_COPIES), *self._launch(),
        )  # fmt: skip

    def mark(
        self,
        handle: LowLatencyHandle,
        sent: _Sent,
        ids: torch.Tensor,  # noqa: ARG002
        weights: torch.Tensor | None,  # noqa: ARG002
    ) -> None:
        handle.phase = sent.ticket

    def send_combine(
        self,
        handle: LowLatencyHandle,
        arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        sizes: tuple[int, int, int, int, int],
        dtype: str,
        sums_by_rank: bool,
    ) -> _Sent:
        ticket = self._ticket()
        x, ids, weights = arrays
        copies = handle.copies if sums_by_rank and handle.copies else _NO_COPIES
        core = self.core.send_combine(
            _at(x), _at(handle.slots), _at(handle[1]), _at(ids), _at(weights), *sizes, dtype,
            sums_by_rank, *(_at(each) for each in copies), _at(handle.phase), _at(ticket),
            *self._launch(),
        )  # fmt: skip
        return _Sent(core, ticket, x, ids, weights, handle.phase, handle.slots, handle[1], *copies)

    def receive_combine(self, sent: _Sent, out: torch.Tensor, waits: torch.Tensor | None) -> None:
        self.core.receive_combine(sent.core, _at(out), _at(waits), *self._launch())

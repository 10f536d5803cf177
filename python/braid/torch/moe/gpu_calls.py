"""Calls on tensors in a GPU's memory: what braid.moe.host does for the host's, enqueued on the
current stream. Sizes that only the GPU knows are waited for in a normal dispatch without
num_worst_tokens and without a handle, and nowhere else.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from braid import _braid
from braid.errors import InvalidArgument, Unsupported
from braid.moe import low_latency
from braid.moe.handles import DispatchHandle, LowLatencyHandle
from braid.moe.library import Checks, Remembered
from braid.torch.moe.expected_rows import ExpectedRows
from braid.torch.moe.places import Caller, Here, Place
from braid.torch.moe.results import (
    NO_COPIES,
    TICKET_BYTES,
    TICKET_WORDS,
    LowLatencyResults,
    Tensors,
    address,
)

if TYPE_CHECKING:
    from braid.moe.buffer import Buffer
    from braid.moe.normal import DispatchForm, Results

_VECTOR_BYTES = 16
_NOWHERE = (0,) * 5


class _Sent:
    """A low-latency call, from before its first half: keeps what the second one reads."""

    core: Any = None
    inputs: tuple[Any, ...] = ()
    may_be_sent = False

    def send(self, call: Callable[..., Any], inputs: tuple[Any, ...], *given: Any) -> None:
        self.inputs, self.may_be_sent = inputs, True
        try:
            self.core = call(*given)
        except Exception:
            self.may_be_sent = False
            raise


class _Begun:
    """A dispatch, from before it begins. Once it has, its sizes have come, with its results if it
    is over as well; or, where sizes are known without it, it is due: then finish() does it all.
    """

    results: "Results | None" = None

    def __init__(
        self, given: Tensors, addresses: tuple[Any, ...], words: torch.Tensor, num_rows: int
    ) -> None:
        self.given, self.addresses, self.words, self.num_rows = given, addresses, words, num_rows
        self.core: Any = None
        self.is_due = False

    @property
    def per_expert(self) -> list[int]:
        return list(self.core.per_expert)


def _tells_host(form: "DispatchForm", known: DispatchHandle | None) -> bool:
    """Whether the host waits for sizes."""
    return known is None and form.num_worst_tokens == 0


class GpuCalls:
    """Collective to make, at the first call of a buffer with a tensor of a GPU."""

    joins_halves = True

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
        self.checked = Remembered()
        self.stream = torch.cuda.Stream(self.device)
        self.num_sms = 0  # of the next launches; 0: all
        self._size = buffer.group_size
        self._expected = ExpectedRows(self._size)
        self._caller = Caller(self.device)
        self._here = Here(self._caller)
        self._one_channel = torch.zeros((self._size, 1), dtype=torch.int32, device=self.device)
        # Of combines without a hook: one is over, in the comm's order, before the next one begins.
        self._ticket = self._words(TICKET_WORDS)
        torch.cuda.current_stream(self.device).synchronize()

    def place(
        self, previous: Any, is_async: bool, on_comm_stream: bool = False, inputs: Any = ()
    ) -> Here | Place:
        if previous is None and not is_async and not on_comm_stream:
            return self._here
        return Place(self._caller, self.stream, previous, is_async or on_comm_stream, inputs)

    def wait(self, for_own_stream: bool) -> None:
        """Until the buffer's own stream, or the current one, has done what it holds."""
        stream = self.stream if for_own_stream else torch.cuda.current_stream(self.device)
        stream.synchronize()

    def close(self) -> None:
        self.core.close()

    def _launch(self) -> tuple[int, int]:
        return self._caller.handle(), self.num_sms

    def _words(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int32, device=self.device)

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
            address(ids), tokens, topk, num_experts, *map(address, (per_rank, per_expert, is_in)),
            self._caller.handle(),
        )  # fmt: skip

    # ---- normal ----

    def new_dispatch(
        self,
        given: Tensors,
        form: "DispatchForm",
        known: DispatchHandle | None,
    ) -> _Begun:
        sizes = form.sizes
        if _tells_host(form, known) and torch.cuda.is_current_stream_capturing():
            raise InvalidArgument(
                "dispatch: argument num_worst_tokens: expected a number of rows inside a capture,"
                " where the host cannot wait for sizes, got 0"
            )
        # The ticket, and behind it what comes.
        count = TICKET_WORDS + _braid.moe.incoming_words(self._size, sizes[4] // self._size)
        words = self._words(count)
        at = words.data_ptr()
        _, _, _, _, ids, weights = given
        addresses = (
            *map(address, given), sizes, ids is not None, weights is not None,
            0 if known is None else known.kept.data_ptr(), at, at + TICKET_BYTES,
        )  # fmt: skip
        # As many as the caller says, or as the handle's dispatch gave.
        rows = form.num_worst_tokens or (0 if known is None else int(known.recv_src_idx.shape[0]))
        return _Begun(given, addresses, words, rows)

    def begin(
        self,
        begun: _Begun,
        given: Tensors,  # noqa: ARG002  it has them
        form: "DispatchForm",
        known: DispatchHandle | None,
    ) -> None:
        if not _tells_host(form, known):
            begun.is_due = True
            return
        begun.core = _braid.moe.GpuBegun()
        self.core.begin(begun.core, *begun.addresses, True, *self._launch())
        self._await_sizes(begun, form)

    def _await_sizes(self, begun: _Begun, form: "DispatchForm") -> None:
        """While the host waits the GPU goes on, into memory for a little more than came of late.
        What comes fits into it, and then all is done; or nothing was.
        """
        tried, room = None, self._expected.room(form.sizes[0])
        try:
            if room != 0:
                tried = form.results(room)
        except torch.cuda.OutOfMemoryError:  # exact sizes may be less
            room = 0
        addresses = _NOWHERE if tried is None else map(address, tried)
        had_room = self.core.await_sizes(begun.core, *addresses, room, *self._launch())
        begun.num_rows = rows = begun.core.num_rows
        self._expected.saw(form.sizes[0], rows)
        if had_room and tried is not None:
            # Slices would take three times as long, and be views, into which torch forbids to write
            # behind a function that has a gradient of its own.
            for each, kind in zip(tried, form.kinds, strict=True):
                if each is not None and kind is not None:
                    each.resize_(rows, *kind[0])
            begun.results = tried

    def abandon(self, begun: _Begun) -> None:
        """Whatever has become of it: what is begun is given up, and so is what is due, in which the
        others take part.
        """
        if begun.is_due:
            begun.is_due, begun.core = False, _braid.moe.GpuBegun()
            self.core.begin(begun.core, *begun.addresses, False, *self._launch())
        if begun.core is not None:
            self.core.abandon(begun.core, *self._launch())

    def finish(self, begun: _Begun, arrays: Tensors, room: int) -> None:
        if begun.core is not None:
            self.core.finish(begun.core, *map(address, arrays), room, *self._launch())
            return
        begun.is_due = False  # one way or the other
        self.core.run(*begun.addresses, *map(address, arrays), room, *self._launch())

    def matrices(
        self,
        begun: _Begun,
        new: Any,  # noqa: ARG002
        num_ranks: int,
        is_in: torch.Tensor,  # noqa: ARG002
    ) -> tuple[torch.Tensor, None]:
        """The prefix matrix is a part of what the GPU was told; send_head is nobody's on GPUs."""
        first = TICKET_WORDS + _braid.moe.incoming_head_words + num_ranks
        return begun.words.as_strided((num_ranks, num_ranks), (num_ranks, 1), first), None

    def channels(
        self,
        new: Any,  # noqa: ARG002
        num_ranks: int,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same zeros for every handle: to make them would be two kernels of every dispatch."""
        return self._one_channel, self._one_channel

    def mark_dispatch(self, handle: DispatchHandle, begun: _Begun) -> None:
        handle.kept = begun.words

    def combine(
        self,
        handle: DispatchHandle,
        arrays: Tensors,
        sizes: tuple[int, int, int, int],
        dtype: str,
    ) -> None:
        x, weights, *rest = arrays
        ticket = handle.kept.data_ptr()
        self.core.combine(
            address(x), address(weights), weights is not None, ticket + TICKET_BYTES,
            address(handle.recv_src_idx), address(handle.is_token_in_rank), *map(address, rest),
            *sizes[1:], dtype, ticket, *self._launch(),
        )  # fmt: skip

    # ---- low latency ----

    def check_dispatch(self, sizes: tuple[int, ...], kind: tuple[str, int], weights: bool) -> None:
        self.core.check_dispatch(sizes, *kind, weights)

    def check_place(self, checks: Checks, argument: str, array: torch.Tensor) -> None:
        if (at := array.data_ptr()) % _VECTOR_BYTES:
            raise checks.refuse(
                argument, f"an address that is a multiple of {_VECTOR_BYTES}", f"{at:#x}"
            )

    def results(self, form: low_latency.DispatchForm) -> LowLatencyResults:
        return LowLatencyResults(form)

    def _sending(
        self, handle: LowLatencyHandle, given: tuple[torch.Tensor, torch.Tensor, Any]
    ) -> tuple[Any, ...]:
        x, ids, weights = given
        form = handle.form
        return (
            x.data_ptr(), ids.data_ptr(), address(weights), form.has_weights, form.sizes,
            *form.kind, handle.kept.at,
        )  # fmt: skip

    def run_dispatch(
        self,
        handle: LowLatencyHandle,
        given: tuple[torch.Tensor, torch.Tensor, Any],
        got: LowLatencyResults,
        stats: torch.Tensor | None,
        waits: torch.Tensor | None,
    ) -> None:
        self.core.run_dispatch(
            *self._sending(handle, given), *got.addresses(stats, waits), *self._launch()
        )

    def new_send(self, is_combine: bool) -> _Sent:  # noqa: ARG002
        return _Sent()

    def drop(self, sent: _Sent) -> bool:
        """Whether it may have been sent: its receive half, a kernel, stays due on a GPU."""
        return sent.may_be_sent

    def send_dispatch(
        self,
        sent: _Sent,
        handle: LowLatencyHandle,
        given: tuple[torch.Tensor, torch.Tensor, Any],
    ) -> None:
        inputs = (given, handle.kept)
        sent.send(self.core.send_dispatch, inputs, *self._sending(handle, given), *self._launch())

    def receive_dispatch(
        self,
        sent: _Sent,
        handle: LowLatencyHandle,
        got: LowLatencyResults,
        stats: torch.Tensor | None,
        waits: torch.Tensor | None,
    ) -> None:
        try:
            self.core.receive_dispatch(sent.core, *got.addresses(stats, waits), *self._launch())
        except Exception:
            # The caller has the results already. A hook that was called before leaves them alone.
            if not handle.is_received:
                with suppress(Exception):
                    got.forget()
            raise

    def _returning(
        self,
        handle: LowLatencyHandle,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        form: low_latency.CombineForm,
        sums_by_rank: bool,
    ) -> tuple[Any, ...]:
        x, ids, weights = given
        kept = handle.kept
        return (
            x.data_ptr(), kept.slots, kept.ranges, ids.data_ptr(), weights.data_ptr(),
            form.sizes, form.dtype, sums_by_rank, *(kept.copies_at if sums_by_rank else NO_COPIES),
            kept.at,
        )  # fmt: skip

    def run_combine(
        self,
        handle: LowLatencyHandle,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        form: low_latency.CombineForm,
        sums_by_rank: bool,
        out: torch.Tensor,
        waits: torch.Tensor | None,
    ) -> None:
        self.core.run_combine(
            *self._returning(handle, given, form, sums_by_rank), self._ticket.data_ptr(),
            out.data_ptr(), address(waits), *self._launch(),
        )  # fmt: skip

    def send_combine(
        self,
        sent: _Sent,
        handle: LowLatencyHandle,
        given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        form: low_latency.CombineForm,
        sums_by_rank: bool,
    ) -> None:
        ticket = self._words(TICKET_WORDS)
        sent.send(
            self.core.send_combine, (ticket, given, handle.kept),
            *self._returning(handle, given, form, sums_by_rank), ticket.data_ptr(), *self._launch(),
        )  # fmt: skip

    def receive_combine(self, sent: _Sent, out: torch.Tensor, waits: torch.Tensor | None) -> None:
        self.core.receive_combine(sent.core, out.data_ptr(), address(waits), *self._launch())

"""The collectives that a program makes: what they are, how long they take in it, and alone.

A Tap notes calls of torch.distributed's functions, which FSDP2 and hand-written tensor parallelism
use. (DDP's reducer calls its group from C++ and is not seen.) In a program a call's time is that
between two events on the stream it is made from: with the wait for a rank that is late, and slowed
down by what computes beside it. A Replay makes the same calls again with nothing beside them.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

_TAPPED = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")


@dataclass(frozen=True)
class Call:
    """One collective. Counts are elements of this rank's tensors."""

    op: str
    """torch.distributed's name."""
    sent: int
    received: int
    dtype: torch.dtype
    reduce: Any = None
    """torch's operator; None where nothing is reduced."""

    @property
    def nbytes(self) -> int:
        """As nccl-tests counts: the sum over the ranks; the buffer of an all_reduce."""
        return max(self.sent, self.received) * self.dtype.itemsize


class Tap:
    """`with Tap(device) as tap:` notes this thread's collectives until it ends."""

    def __init__(self, device: torch.device) -> None:
        self.calls: list[Call] = []
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self._real: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "Tap":
        for name in _TAPPED:
            self._real[name] = getattr(dist, name)
            setattr(dist, name, self._tapped(name, self._real[name]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, real in self._real.items():
            setattr(dist, name, real)

    def busy_us(self) -> float:
        """All calls' times together. The device must be done."""
        if self._device.type == "cuda":
            return sum(begin.elapsed_time(end) * 1e3 for begin, end in self._spans)
        return sum(end - begin for begin, end in self._spans) * 1e6

    def _tapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(real)

        @wraps(real)
        def call(*args: Any, **more: Any) -> Any:
            self.calls.append(_call(name, names.bind(*args, **more).arguments))
            begin = self._now()
            answer = real(*args, **more)
            self._spans.append((begin, self._now()))
            return answer

        return call

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _call(name: str, given: dict[str, Any]) -> Call:
    if name == "all_reduce":
        tensor = given["tensor"]
        sent, received = tensor, tensor
    elif name == "reduce_scatter_tensor":
        sent, received = given["input"], given["output"]
    else:
        sent, received = given["input_tensor"], given["output_tensor"]
    reduce = None if name == _TAPPED[0] else given.get("op", dist.ReduceOp.SUM)
    return Call(name, sent.numel(), received.numel(), sent.dtype, reduce)


class Replay:
    """Calls on buffers of their own, one row per type that is as long as the longest needs it."""

    def __init__(self, calls: Sequence[Call], device: torch.device) -> None:
        self.calls = list(calls)
        self._device = device
        self._sent: dict[torch.dtype, torch.Tensor] = {}
        self._received: dict[torch.dtype, torch.Tensor] = {}
        for dtype in {call.dtype for call in calls}:
            own = [call for call in calls if call.dtype == dtype]
            self._sent[dtype] = self._row(max(call.sent for call in own), dtype)
            self._received[dtype] = self._row(max(call.received for call in own), dtype)

    @property
    def nbytes(self) -> int:
        """Of all calls."""
        return sum(call.nbytes for call in self.calls)

    def run(self, group: Any) -> None:
        """All of them, in order, on the current stream."""
        for call in self.calls:
            self._do(call, group)

    def wrong_bytes(self, group: Any) -> int:
        """Of this rank's results, each kind of call made once with numbers whose sums are exact.

        Collective. Leaves zeros, whose sums stay what they are however often a call is repeated.
        """
        wrong = 0
        for call in dict.fromkeys(self.calls):
            mine = numbers(call.sent, call.dtype, dist.get_rank(), self._device)
            row = self._received if call.op == "all_reduce" else self._sent
            row[call.dtype][: call.sent].copy_(mine)
            self._do(call, group)
            got = self._received[call.dtype][: call.received]
            wrong += _differing_bytes(got, expected(call, self._device))
        for row in (*self._sent.values(), *self._received.values()):
            row.zero_()
        return wrong

    def _row(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=self._device)

    def _do(self, call: Call, group: Any) -> None:
        out = self._received[call.dtype][: call.received]
        mine = self._sent[call.dtype][: call.sent]
        if call.op == "all_reduce":
            dist.all_reduce(out, op=call.reduce, group=group)
        elif call.op == "reduce_scatter_tensor":
            dist.reduce_scatter_tensor(out, mine, op=call.reduce, group=group)
        else:
            dist.all_gather_into_tensor(out, mine, group=group)


def numbers(count: int, dtype: torch.dtype, rank: int, device: torch.device) -> torch.Tensor:
    """Small whole numbers that depend on place and rank, and divide by the number of ranks: sums
    and averages are exact in every type.
    """
    places = torch.arange(count, device=device)
    return ((places * 7 + 5 * rank) % 11 * dist.get_world_size()).to(dtype)


def expected(call: Call, device: torch.device) -> torch.Tensor:
    """This rank's right result when every rank sent its numbers()."""
    every = [numbers(call.sent, call.dtype, rank, device) for rank in range(dist.get_world_size())]
    if call.op == "all_gather_into_tensor":
        return torch.cat(every)
    total = torch.stack([row.float() for row in every]).sum(0)
    if call.reduce == dist.ReduceOp.AVG:
        total /= len(every)
    if call.op == "reduce_scatter_tensor":
        total = total.view(len(every), -1)[dist.get_rank()]
    return total.to(call.dtype)


def _differing_bytes(got: torch.Tensor, want: torch.Tensor) -> int:
    return int((got.view(torch.uint8) != want.view(torch.uint8)).sum())

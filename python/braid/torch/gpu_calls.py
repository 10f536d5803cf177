"""A group's calls on GPU memory.

A call that its caller waits for anyway is enqueued on the caller's stream: nothing has to wait for
anything. An asynchronous one is enqueued on a stream of the group, between two events: it begins
after what the caller's stream holds now, and the Work's wait() lets the caller's stream go on
after it. Tensors of such a call are held until the Work was waited for or the stream has passed
it, so that the allocator cannot give their memory to somebody else meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braid.errors import InvalidArgument
from braid.torch.work import GpuWork


class GpuCalls:
    """Any thread; one at a time is in a call."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # makes one order of the calls of several threads
        self._streams: dict[torch.device, Any] = {}
        self._in_flight: deque[tuple[Any, GpuWork]] = deque()
        self._ended: BaseException | None = None
        self.device: torch.device | None = None
        """Of the last call; None before any."""

    def submit(
        self,
        name: str,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        body: Callable[[], None],
        *,
        is_async: bool,
    ) -> GpuWork:
        """Enqueues what `body` enqueues on the current stream."""
        with self._mutex, torch.cuda.device(device):
            self.device = device
            if self._ended is not None:
                return GpuWork(name, device, outputs, None, error=self._ended)
            caller = torch.cuda.current_stream(device)
            if not is_async:
                return GpuWork(name, device, outputs, caller, error=_error_of(body))
            return self._submit_async(name, device, tensors, outputs, body)

    def _submit_async(
        self,
        name: str,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        body: Callable[[], None],
    ) -> GpuWork:
        stream = self._stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            error = _error_of(body)
            event = torch.cuda.Event()
            event.record(stream)
        work = GpuWork(name, device, outputs, stream, event, error)
        work.held = list(tensors)
        if not torch.cuda.is_current_stream_capturing():  # a captured event cannot be asked
            self._let_go()
            self._in_flight.append((event, work))
        return work

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _let_go(self) -> None:
        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()[1].held.clear()

    def fence(self) -> Callable[[], None]:
        """A function in which the host waits for all that is on the caller's stream and the
        group's now.
        """
        events = []
        for device, stream in list(self._streams.items()):
            events.append(stream.record_event())
            events.append(torch.cuda.current_stream(device).record_event())
        if self.device is not None and self.device not in self._streams:
            events.append(torch.cuda.current_stream(self.device).record_event())

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait

    def end(self, why: BaseException) -> None:
        """Later calls raise `why`."""
        self._ended = self._ended or why


def _error_of(body: Callable[[], None]) -> BaseException | None:
    try:
        with torch.inference_mode():
            body()
    except Exception as error:
        return error
    return None


def refuse_capture(what: str) -> None:
    """InvalidArgument when a CUDA graph is being captured."""
    if torch.cuda.is_current_stream_capturing():
        raise InvalidArgument(f"{what} cannot be captured in a CUDA graph; make it before")

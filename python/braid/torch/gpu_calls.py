"""A group's calls on GPU memory.

A call that its caller waits for anyway is enqueued on the caller's stream: nothing has to wait for
anything. An asynchronous one is enqueued on a stream of the group, between two events: it begins
after what the caller's stream holds now, and the Work's wait() lets the caller's stream go on
after it. Tensors of such a call are held until the Work was waited for or the stream has passed
it, so that the allocator cannot give their memory to somebody else meanwhile.

submit() is for calls that use torch, which has its own idea of the current stream; enqueue() is for
calls that are told the stream's handle (plain_calls.py), and costs the host little: torch's current
stream stays what it is. Events that the GPU has passed are used again.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braid.torch.errors import InvalidArgument
from braid.torch.streams import CallerStream
from braid.torch.work import GpuWork


class GpuCalls:
    """Any thread; one at a time is in a call."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # makes one order of the calls of several threads
        self._streams: dict[torch.device, Any] = {}
        self._callers: dict[torch.device, CallerStream] = {}
        self._in_flight: deque[GpuWork] = deque()
        self._spare: list[Any] = []  # events that nobody waits for any more
        self._begin: Any = None  # an event between a caller's stream and the group's
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
        return self._on_its_way(GpuWork(name, device, outputs, stream, error=error), tensors)

    def enqueue(
        self,
        name: str,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        call: Callable[[int], None],
        *,
        is_async: bool,
    ) -> GpuWork:
        """Enqueues what `call` enqueues on the stream whose handle it is given."""
        with self._mutex:
            if self._ended is not None:
                return GpuWork(name, device, outputs, None, error=self._ended)
            if is_async:
                return self._enqueue_async(name, device, tensors, outputs, call)
            stream, handle = self._caller(device)()
            return GpuWork(name, device, outputs, stream, error=_error_at(call, handle))

    def _enqueue_async(
        self,
        name: str,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        call: Callable[[int], None],
    ) -> GpuWork:
        if torch.cuda.current_device() != device.index:  # whose stream is asked whether it captures
            with torch.cuda.device(device):
                return self._enqueue_async(name, device, tensors, outputs, call)
        stream, current = self._stream(device), self._caller(device)
        # What the stream waits for is fixed at once, so the next call may record the event anew.
        self._begin = self._begin or torch.cuda.Event()
        self._begin.record(current()[0])
        stream.wait_event(self._begin)
        error = _error_at(call, stream.cuda_stream)
        work = GpuWork(name, device, outputs, stream, error=error, current=current)
        return self._on_its_way(work, tensors)

    def _on_its_way(self, work: GpuWork, tensors: Sequence[torch.Tensor]) -> GpuWork:
        """Gives an asynchronous call its event, and holds its tensors. One that is captured can be
        neither asked nor used again.
        """
        if torch.cuda.is_current_stream_capturing():
            work.begin(torch.cuda.Event(), tensors)
            return work
        self._let_go()
        work.begin(self._spare.pop() if self._spare else torch.cuda.Event(), tensors)
        self._in_flight.append(work)
        return work

    def _caller(self, device: torch.device) -> CallerStream:
        if device not in self._callers:
            self._callers[device] = CallerStream(device)
        return self._callers[device]

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _let_go(self) -> None:
        """Of what the GPU has passed: tensors, and events, which later calls use."""
        while self._in_flight and (event := self._in_flight[0].passed_event()) is not None:
            self._in_flight.popleft()
            self._spare.append(event)

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


def _error_at(call: Callable[[int], None], handle: int) -> BaseException | None:
    try:
        call(handle)
    except Exception as error:
        return error
    return None


def refuse_capture(what: str) -> None:
    """InvalidArgument when a CUDA graph is being captured."""
    if torch.cuda.is_current_stream_capturing():
        raise InvalidArgument(f"{what} cannot be captured in a CUDA graph; make it before")

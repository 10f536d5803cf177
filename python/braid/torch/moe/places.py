"""Where calls on a GPU are made: the caller's stream, or one of the buffer's beside it; and points
in streams as DeepEP's events.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

import torch

from braid.moe.events import EventHandle, EventOverlap, checked_event
from braid.moe.handles import DispatchHandle, LowLatencyHandle
from braid.torch.streams import CallerStream, raw_stream


class Caller:
    """The current stream of one GPU: torch's object, and its handle."""

    def __init__(self, device: torch.device) -> None:
        def stream() -> Any:
            return torch.cuda.current_stream(device)

        self.stream: Callable[[], Any] = stream
        self.handle: Callable[[], int] = lambda: int(stream().cuda_stream)
        if raw_stream is not None:
            known = CallerStream(device)
            self.stream = lambda: known()[0]
            self.handle = partial(raw_stream, device.index)


class CudaEvent(EventHandle):
    """A point in a stream: the current one when it is made. With `behind`, in that stream, when
    somebody first asks for it, and all that the stream was given meanwhile is before it: of most
    calls nobody asks, and to take a point is a good part of what they cost the host.
    """

    def __init__(self, behind: Any = None) -> None:
        self._stream = behind
        self._event = None if behind is not None else torch.cuda.current_stream().record_event()

    @property
    def event(self) -> Any:
        if self._event is None:
            self._event = self._stream.record_event()
        return self._event

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


def _tensors(things: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Those among `things`, in tuples too, and what handles have besides."""
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, LowLatencyHandle):  # its tensors are parts of this one
            yield from _tensors((getattr(thing.kept, "memory", None),))
        elif isinstance(thing, DispatchHandle):
            yield from _tensors((thing.kept, *thing))
        elif isinstance(thing, tuple | list):
            yield from _tensors(thing)


class Here:
    """A call's stream where it is the caller's, and nothing is waited for."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __enter__(self) -> "Here":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def over(self, is_async: bool, outputs: Iterable[Any] = ()) -> EventOverlap:  # noqa: ARG002
        return EventOverlap(CudaEvent(behind=self._caller.stream()))


class Place:
    """A call's stream: current while the call is made. On the buffer's own stream it is behind
    `previous`, or else behind what the caller's holds, and tensors of both are kept from being
    given away while either uses them.
    """

    def __init__(
        self,
        caller: Caller,
        own: torch.cuda.Stream,
        previous: EventOverlap | None,
        is_beside: bool,
        inputs: Iterable[Any],
    ) -> None:
        self._caller = caller.stream()
        self._own = own if is_beside else None
        event = None if previous is None else checked_event(previous).event
        if self._own is None:
            if event is not None:
                event.current_stream_wait()
            return
        if isinstance(event, CudaEvent):
            self._own.wait_event(event.event)
        else:
            self._own.wait_stream(self._caller)
        for tensor in _tensors(inputs):
            tensor.record_stream(self._own)

    def __enter__(self) -> "Place":
        if self._own is not None:
            torch.cuda.set_stream(self._own)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._own is not None:
            torch.cuda.set_stream(self._caller)

    def over(self, is_async: bool, outputs: Iterable[Any] = ()) -> EventOverlap:
        """The event of what was called; the caller's stream waits for it unless `is_async`."""
        event = CudaEvent()
        if self._own is not None:
            for tensor in _tensors(outputs):
                tensor.record_stream(self._caller)
            if not is_async:
                self._caller.wait_event(event.event)
        return EventOverlap(event)

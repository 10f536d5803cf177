"""Where calls on a GPU are made: the caller's stream, or one of the buffer's beside it; and points
in streams as DeepEP's events.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch

from braid.moe.events import EventHandle, EventOverlap, checked_event


class CudaEvent(EventHandle):
    """A point in a stream: the current one when it is made."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event()
        self.event.record()

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


def _tensors(things: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Those among `things`, in tuples too, and what handles have besides."""
    for thing in things:
        if hasattr(thing, "phase"):
            more = ("phase", "slots", "copies")
            yield from _tensors(getattr(thing, each, None) for each in more)
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, tuple | list):
            yield from _tensors(thing)


class Place:
    """A call's stream: current while the call is made. On the buffer's own stream it is behind
    `previous`, or else behind what the caller's holds, and tensors of both are kept from being
    given away while either uses them.
    """

    def __init__(
        self,
        device: torch.device,
        own: torch.cuda.Stream,
        previous: EventOverlap | None,
        is_beside: bool,
        inputs: Iterable[Any],
    ) -> None:
        self._caller = torch.cuda.current_stream(device)
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

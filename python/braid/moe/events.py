"""Points in time, as DeepEP has them. In host memory a call is over when it returns, so an event
has happened when it is made; what a caller does with it is the same as on a GPU.
"""

from types import TracebackType
from typing import Any

from braid.errors import InvalidArgument


class EventHandle:
    """What EventOverlap holds."""

    def current_stream_wait(self) -> None:
        """Returns at once."""


class EventOverlap:
    """Keeps `extra_tensors` until it is dropped; as a context manager it waits at the end."""

    def __init__(
        self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.current_stream_wait()


def checked_event(event: Any) -> EventOverlap:
    if isinstance(event, EventOverlap):
        return event
    raise InvalidArgument(
        f"argument previous_event: expected None or an EventOverlap, got {type(event).__name__}"
    )

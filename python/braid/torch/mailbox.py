"""Messages that arrived and requests that wait for one, matched in order."""

import threading
from dataclasses import dataclass
from typing import Any

from braid.torch.errors import InvalidArgument
from braid.torch.work import HostWork


@dataclass(eq=False)
class Request:
    """Somebody waits for a message."""

    source: int | None
    """None: from any rank."""
    tag: int
    target: Any
    """uint8 NumPy array of the length that he expects."""
    work: HostWork

    def matches(self, source: int, tag: int) -> bool:
        return tag == self.tag and self.source in (None, source)


Message = tuple[int, int, bytes | bytearray]  # source, tag, bytes


class Mailbox:
    """Messages that arrived and requests that wait, matched in order. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[Message] = []
        self._wanted: list[Request] = []
        self._lost: dict[int, BaseException] = {}

    def ask(self, request: Request) -> None:
        """The request gets its message now or later."""
        with self._lock:
            found = next((m for m in self._arrived if request.matches(m[0], m[1])), None)
            if found is not None:
                self._arrived.remove(found)
            elif request.source in self._lost:
                return request.work.finish(self._lost[request.source])
            else:
                self._wanted.append(request)
                return None
        return _fill(request, found[0], found[2])

    def claim(self, source: int, tag: int) -> Request | None:
        """Who gets the message that begins to arrive; he is not in the list any more."""
        with self._lock:
            for i, request in enumerate(self._wanted):
                if request.matches(source, tag):
                    return self._wanted.pop(i)
        return None

    def put(self, source: int, tag: int, data: bytes | bytearray) -> None:
        """A message that is here as a whole."""
        with self._lock:
            found = next((r for r in self._wanted if r.matches(source, tag)), None)
            if found is None:
                self._arrived.append((source, tag, data))
                return
            self._wanted.remove(found)
        _fill(found, source, data)

    def lose(self, source: int | None, why: BaseException) -> None:
        """Nothing more comes from `source`; None: from anybody."""
        with self._lock:
            if source is not None:
                self._lost.setdefault(source, why)
            ended = [r for r in self._wanted if source is None or r.source == source]
            self._wanted = [r for r in self._wanted if r not in ended]
        for request in ended:
            request.work.finish(why)


def wrong_size(request: Request, source: int, found: int) -> InvalidArgument:
    return InvalidArgument(
        f"recv from rank {source} with tag {request.tag}: asked for {request.target.nbytes} bytes,"
        f" found a message of {found}"
    )


def _fill(request: Request, source: int, data: bytes | bytearray) -> None:
    if len(data) != request.target.nbytes:
        return request.work.finish(wrong_size(request, source, len(data)), source)
    memoryview(request.target)[:] = data
    return request.work.finish(None, source)

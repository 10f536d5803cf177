"""What torch.distributed gets back from a call: a torch Work.

HostWork is done when a thread says so. GpuWork is done when a CUDA stream is: its wait() lets the
current stream wait and returns. An error shows at wait(), and in the future.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work
from torch.futures import Future

from braid.torch.callbacks import Callbacks, depth_here
from braid.torch.errors import Timeout, as_torch

_POLL_S = 0.001

_events = threading.RLock()
"""Held where a GpuWork's event is waited for or taken away: another call may use it at once."""


def seconds_of(timeout: timedelta | None) -> float | None:
    """None for "no limit of its own", which torch says as no timeout, 0 or a negative one."""
    if timeout is None or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()


def _failed(error: BaseException) -> Future[Any]:
    """A future that has failed, for C++ too: only an exception inside then() tells C++."""

    def fail(_: Future[Any]) -> None:
        raise error

    base: Future[Any] = Future()
    base.set_result(None)
    return base.then(fail)


class HostWork(Work):
    """A call on host memory. Any thread."""

    def __init__(
        self,
        name: str,
        outputs: Sequence[torch.Tensor] = (),
        limit_s: float | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        """`limit_s`: how long wait() waits when it is not told. `callbacks` tells futures that the
        call is done; without it, whoever ends the call does.
        """
        super().__init__()
        self._name = name
        self._limit_s = limit_s
        self._callbacks = callbacks
        self._outputs = list(outputs)
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[Future[Any], int]] = []  # told when it is done, with their depth
        self._source = -1

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        """Done, well or with an error. Only the first word counts."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = as_torch(error) if error is not None else None
            self._source = source
            self._done.set()
            waiting, self._waiting = self._waiting, []
        for future, depth in waiting:
            if self._callbacks is not None:
                self._callbacks.tell(future, depth)
            else:
                future.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until it is done and raises what went wrong. Timeout after `timeout`, which
        leaves the call running.
        """
        limit_s = seconds_of(timeout) or self._limit_s
        if not self._done.wait(limit_s):
            raise Timeout(f"{self._name}: timed out after {limit_s} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Who sent what a recv from any source got; -1 before that."""
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Future[Any]:
        """Its value is the list of output tensors."""
        base: Future[Any] = Future()
        outcome = base.then(self._outcome)
        with self._lock:
            is_done = self._done.is_set()
            if not is_done:
                self._waiting.append((base, depth_here()))
        if is_done:
            base.set_result(None)
        return outcome

    def _outcome(self, _: Future[Any]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs


class GpuWork(Work):
    """A call that was enqueued on a CUDA stream, or that could not be.

    `stream` is where, None where nothing was enqueued. When that is not the caller's own stream,
    whose later work is in order anyway, begin() puts an event behind it. `current` answers which
    stream is to wait in wait(), and its handle; without it torch is asked.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        outputs: Sequence[torch.Tensor],
        stream: Any,
        *,
        error: BaseException | None = None,
        current: Callable[[], tuple[Any, int]] | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._device = device
        self._outputs = list(outputs)
        self._stream = stream
        self._event: Any = None
        self._error = as_torch(error) if error is not None else None
        self._current = current
        self._has_passed = error is not None
        self._held: list[torch.Tensor] = []

    def begin(self, event: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Records the event, and holds the tensors that the stream reads and writes until somebody
        waited for the call or the stream has passed it.
        """
        event.record(self._stream)
        self._event, self._held = event, list(tensors)

    def passed_event(self) -> Any:
        """The event when the stream has passed it, which may then come after another call; else
        None.
        """
        with _events:
            event = self._event
            if not event.query():
                return None
            self._has_passed, self._event = True, None
        self._held.clear()
        return event

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream waits; the host does not, unless `timeout` is given."""
        if self._error is not None:
            raise self._error
        if self._event is not None:
            self._let_stream_wait()
            self._held.clear()  # later use is ordered after the call now
        if timeout is not None and (limit_s := seconds_of(timeout)) is not None:
            self._wait_on_host(limit_s)
        return True

    def _let_stream_wait(self) -> None:
        current = self._current
        stream = torch.cuda.current_stream(self._device) if current is None else current()[0]
        with _events:
            if self._event is not None:
                stream.wait_event(self._event)

    def _wait_on_host(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not self.is_completed():
            if time.monotonic() > end:
                raise Timeout(f"{self._name}: timed out after {limit_s} s; it goes on")
            time.sleep(_POLL_S)

    def is_completed(self) -> bool:
        with _events:
            return self._has_passed or bool((self._event or self._stream).query())

    def is_success(self) -> bool:
        return self._error is None and self.is_completed()

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of this device: whoever waits for it lets his stream wait."""
        if self._error is not None:
            return _failed(self._error)
        future: Future[Any] = Future(devices=[self._device])
        with torch.cuda.stream(self._stream):
            future.set_result(self._outputs)
        return future


class SeveralWorks(Work):
    """Calls that were made together; wait() waits for all."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        futures = [work.get_future() for work in self._works]
        together: Future[Any] = torch.futures.collect_all(futures)
        return together.then(lambda all_done: [t for f in all_done.value() for t in f.value()])

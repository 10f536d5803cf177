"""Where a future's callbacks run: not in the thread that performs calls or reads messages, for that
thread must be free to perform what a callback calls.

Futures are told in the order in which their calls were done, one after the other: so callbacks
that call collectives do so in one order on all ranks. A callback may wait for a future that it
asked for itself; that one is told by a further thread, which is the next depth. Should a callback
wait for a future that was asked for elsewhere, the thread of its depth cannot tell it: after
_PATIENCE_S another one does.

Threads start with the first future that needs them.
"""

import threading
import time
from collections import deque
from typing import Any

from torch.futures import Future

_PATIENCE_S = 0.2  # longer than callbacks that only compute take, as a rule

_here = threading.local()  # .depth: of the callback that this thread is in


def depth_here() -> int:
    """0 outside of callbacks; in one, 1 more than where its future was asked for."""
    return int(getattr(_here, "depth", 0))


class Callbacks:
    """The callbacks of one group. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._turns: list[_Turns] = []  # by depth

    def tell(self, future: Future[Any], depth: int) -> None:
        """Completes a future that was asked for at that depth, soon."""
        with self._lock:
            while len(self._turns) <= depth:
                self._turns.append(_Turns(self._name, len(self._turns) + 1))
            turns = self._turns[depth]
        turns.add(future)

    def finish(self, limit_s: float) -> None:
        """Waits until all callbacks have run, but not for the one that asks, nor for longer."""
        end = time.monotonic() + limit_s
        for turns in list(self._turns):
            turns.finish(end)


class _Turns:
    """One depth: futures, and threads that take turns."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = f"{name} callbacks {depth}", depth
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._queue: deque[Future[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._num_free = 0  # threads that are in no callback
        self._running: list[float] = []  # when the callbacks that run began
        self._is_ended = False

    def add(self, future: Future[Any]) -> None:
        with self._mutex:
            self._queue.append(future)
            self._ensure_thread()
            self._wake.notify_all()

    def _ensure_thread(self) -> None:
        """One waits for its turn whenever a future does."""
        if self._queue and self._num_free == 0:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._num_free += 1
            self._threads.append(thread)

    def _work(self) -> None:
        _here.depth = self._depth
        while (turn := self._next()) is not None:
            future, began = turn
            future.set_result(None)
            del future, turn  # its tensors are the caller's
            with self._mutex:
                self._running.remove(began)
                self._num_free += 1
                self._wake.notify_all()

    def _next(self) -> tuple[Future[Any], float] | None:
        with self._mutex:
            while not self._queue or (pause_s := self._pause_s()) > 0:
                if not self._queue and self._is_ended:
                    self._num_free -= 1
                    return None
                self._wake.wait(pause_s if self._queue else None)
            self._running.append(time.monotonic())
            future = self._queue.popleft()
            self._num_free -= 1
            self._ensure_thread()
            return future, self._running[-1]

    def _pause_s(self) -> float:
        """Until it is the next future's turn, whatever the callbacks before it do."""
        return max(self._running, default=0.0) + _PATIENCE_S - time.monotonic()

    def finish(self, end: float) -> None:
        with self._mutex:
            self._is_ended = True
            self._wake.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

"""A group's calls on host memory, one after the other in the order in which they were made.

A call that its caller waits for anyway runs in the caller's thread when nothing is before it.
All others run in the group's worker thread, which starts with the first of them: so an
asynchronous call is asynchronous, and both kinds keep one order.

States of `_is_busy`: false, nobody is in a call and the queue is empty; true, one thread is. Who is
in a call and finds the queue filled when he is done, hands over to the worker. Everything is
under `_mutex`; calls run without it.
"""

import threading
from collections import deque
from collections.abc import Callable

import torch

from braid.torch.work import HostWork

Task = tuple[HostWork, Callable[[], None]]


def _perform(work: HostWork, body: Callable[[], None]) -> None:
    """What the body raises is the work's error; Ctrl-C in the caller's thread goes on as well."""
    try:
        with torch.inference_mode():  # tensors of either kind may be written to
            body()
    except Exception as error:
        work.finish(error)
    except BaseException as error:
        work.finish(error)
        raise
    else:
        work.finish()


class HostCalls:
    """The queue and its worker. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._queue: deque[Task] = deque()
        self._is_busy = False
        self._ended: BaseException | None = None  # why nothing is taken any more
        self._worker: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        with self._mutex:
            return not self._is_busy and not self._queue

    def submit(self, work: HostWork, body: Callable[[], None], *, is_async: bool) -> HostWork:
        """Runs `body` when what was submitted before is done. Returns `work`, which is done already
        when the call was not asynchronous and nothing was before it.
        """
        with self._mutex:
            if self._ended is not None:
                work.finish(self._ended)
                return work
            is_now = not is_async and not self._is_busy and not self._queue
            if is_now:
                self._is_busy = True
            else:
                self._start()
                self._queue.append((work, body))
                self._wake.notify()
        if is_now:
            try:
                _perform(work, body)
            finally:
                self._hand_over()
        return work

    def _start(self) -> None:
        if self._worker is None:
            worker = threading.Thread(target=self._work, name=self._name, daemon=True)
            worker.start()
            self._worker = worker

    def _hand_over(self) -> None:
        with self._mutex:
            self._is_busy = False
            self._wake.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            _perform(*task)
            self._hand_over()
            del task  # its tensors are the caller's

    def _next(self) -> Task | None:
        with self._mutex:
            while self._is_busy or (not self._queue and self._ended is None):
                self._wake.wait()
            if not self._queue:
                return None
            self._is_busy = True
            return self._queue.popleft()

    def finish(self, why: BaseException) -> None:
        """Takes nothing more, and returns when what was taken is done. Later calls raise `why`."""
        with self._mutex:
            self._ended = self._ended or why
            self._wake.notify_all()
            while self._is_busy or self._queue:
                self._wake.wait()
            worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def give_up(self, why: BaseException) -> None:
        """Takes nothing more and drops what has not begun; does not wait for what runs."""
        with self._mutex:
            self._ended = self._ended or why
            dropped = list(self._queue)
            self._queue.clear()
            self._wake.notify_all()
        for work, _ in dropped:
            work.finish(why)

    def join(self, limit_s: float) -> None:
        """After give_up(): waits for the worker, which ends with the call that it is in."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(limit_s)

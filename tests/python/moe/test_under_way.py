"""What other threads and handlers of signals do to a buffer while a call of it waits: they are
refused, and change nothing.
"""

import signal
import threading
import time

from moe_calls import Calls, made, refused
from moe_data import same

import braid


def wait_until(is_so, what):
    end = time.monotonic() + 50
    while not is_so():
        assert time.monotonic() < end, f"not within 50 s: {what}"
        time.sleep(0.002)


class InHandler:
    """Calls `function` once in a signal's handler, while a call of the buffer waits; then tells."""

    def __init__(self, buffer, told, function):
        self.buffer, self.told, self.function = buffer, told, function
        self.said = None

    def handle(self, *_):
        if self.said is not None or not self.buffer.runtime.is_in_call:
            return
        try:
            self.function()
            self.said = "it was let in"
        except braid.Error as error:
            self.said = f"{type(error).__name__}: {error}"
        self.told.touch()

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self.handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


OPTIONS = {"BRAID_TIMEOUT": "60s"}


def test_a_buffer_is_not_destroyed_beside_a_call(ranks, tmp_path):
    def body(comm):
        told = tmp_path / "told"
        with made(comm) as buffer:
            c = Calls(buffer)
            if comm.rank == 1:
                wait_until(told.exists, "rank 0 has tried")
                c.good(2)
            else:
                done = []
                thread = threading.Thread(target=lambda: (c.good(2), done.append(True)))
                thread.start()
                wait_until(lambda: buffer.runtime.is_in_call, "the call waits")
                words = "destroy on rank 0: a call of the buffer is under way"
                refused(words, buffer.destroy)
                told.touch()
                thread.join()
                assert done
            assert not buffer.runtime.is_in_call
            c.good(2)
        assert buffer.runtime.is_closed

    ranks(2, body, OPTIONS)


def test_a_buffer_is_not_destroyed_by_a_handler_around_which_a_call_waits(ranks, tmp_path):
    def body(comm):
        told = tmp_path / "told"
        with made(comm) as buffer:
            c = Calls(buffer)
            if comm.rank == 1:
                wait_until(told.exists, "rank 0 has tried")
                c.good(2)
            else:
                with InHandler(buffer, told, buffer.destroy) as handler:
                    c.good(2)
                assert "InvalidArgument: destroy on rank 0: a call" in handler.said
            c.good(2)

    ranks(2, body, OPTIONS)


def test_a_hook_that_was_refused_may_be_called_again(ranks, tmp_path):
    def body(comm):
        told = tmp_path / "told"
        with made(comm) as buffer:
            c = Calls(buffer)
            if comm.rank == 1:
                wait_until(told.exists, "rank 0 has tried")
            first = c.low_latency(return_recv_hook=True)
            second = c.low_latency(return_recv_hook=True)
            if comm.rank == 1:
                first[4]()
            else:
                with InHandler(buffer, told, second[4]) as handler:
                    first[4]()
                assert "another thread is in a call" in handler.said
            second[4]()
            refused("its hook was called already", second[4])
            for rows, _, handle, _, _ in (first, second):
                out, _, _ = buffer.low_latency_combine(rows, c.own.ids, c.own.weights, handle)
                same(out, c.own.x)
            c.good(2)

    ranks(2, body, OPTIONS)

"""Mistakes between ranks, lost ranks, wrong environments: a typed exception on every rank, never
a hang.
"""

import os
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import braid
from braid.launch import free_port


def test_disagreement_is_told_to_all(ranks):
    def body(comm):
        mine = comm.rank
        for call in (
            lambda: comm.all_gather(np.ones(4 + mine), out=np.full(2 * (4 + mine), 7.0)),
            lambda: comm.all_reduce(np.ones(4, ["f4", "i4"][mine])),
            lambda: comm.all_reduce(np.ones(4), ["sum", "max"][mine]),
            lambda: comm.broadcast(np.ones(4), mine),
            lambda: comm.barrier() if mine else comm.all_gather(np.ones(4)),
        ):
            with pytest.raises(braid.InvalidArgument):
                call()
        return comm.all_reduce(np.ones(2)).tolist()  # the comm still works

    assert ranks(2, body) == [[2, 2], [2, 2]]


def test_disagreement_leaves_memory_alone(ranks):
    def body(comm):
        out = np.full(10, 7.0)
        with pytest.raises(braid.InvalidArgument):
            comm.all_gather(np.ones(5 - comm.rank), out[: 2 * (5 - comm.rank)])
        return (out == 7.0).all()

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize("name", ["all_to_all", "reduce"])
def test_memory_that_one_rank_lacks_is_told_to_all(ranks, name):
    """Before it enters the call, in which the others wait for it."""

    def body(comm):
        buf = np.zeros((2, 16 << 20))  # 256 MiB; a copy, or the block of half as much, is to fail
        comm.barrier()
        before = resource.getrlimit(resource.RLIMIT_AS)
        if comm.rank == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + (64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        start = time.monotonic()
        try:
            with pytest.raises(braid.Exhausted, match=rf"{name} .*rank 0 has no memory left for"):
                comm.all_to_all(buf, out=buf) if name == "all_to_all" else comm.reduce(buf, root=1)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return time.monotonic() - start < 5

    assert ranks(2, body) == [True, True]


def test_closed_comm(ranks):
    def body(comm):
        comm.barrier()
        comm.close()
        comm.close()
        assert repr(comm) == "<braid.Comm closed>"
        with pytest.raises(braid.InvalidArgument, match="closed"):
            comm.all_reduce(np.ones(2))
        with pytest.raises(braid.InvalidArgument, match="closed"):
            comm.barrier()

    ranks(2, body)


def test_two_threads_in_one_comm(ranks):
    def body(comm):
        refused = []

        def second():
            time.sleep(0.3)
            try:
                comm.all_reduce(np.ones(2))
            except braid.InvalidArgument as error:
                refused.append(str(error))

        if comm.rank == 0:
            thread = threading.Thread(target=second)
            thread.start()  # runs while this thread waits: the GIL is released
        else:
            time.sleep(1.0)
        comm.barrier()
        if comm.rank == 0:
            thread.join()
            assert len(refused) == 1, "the second thread was not refused"
            assert "thread" in refused[0]
        return comm.all_reduce(np.ones(2)).tolist()

    assert ranks(2, body) == [[2, 2], [2, 2]]


@pytest.mark.parametrize("last", [False, True])
def test_an_interrupted_progress_ends_init(ranks, last):
    """Ctrl-C while the callback runs: the rank raises it, the callback is not called again, and the
    other rank does not wait for it.
    """

    def body():
        calls = []

        def progress(done, what):
            calls.append(what)
            if not last or done == 1.0:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)  # Python handles it here

        options = {"tune": "force", "tune_time": "200ms", "timeout": 5, "links": "shm,staged"}
        if os.environ["RANK"] == "0":
            with pytest.raises(KeyboardInterrupt):
                braid.init(progress=progress, **options)
            return last or len(calls) == 1
        try:
            braid.init(progress=False, **options).close()
        except (braid.PeerLost, braid.Unavailable):
            return True
        return last

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRAID_CACHE_DIR", os.devnull)  # nothing is kept
        assert ranks.collect(ranks.start(2, body)) == [True, True]


def test_ctrl_c_in_a_call_is_told_at_once(ranks):
    """Rank 0 is interrupted while it waits for rank 2; rank 1 is in the same call."""

    def body(comm):
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        comm.barrier()
        if comm.rank == 2:
            time.sleep(1.5)
        if comm.rank == 0:
            threading.Timer(0.3, press).start()
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(np.ones(10))
        else:
            with pytest.raises(braid.PeerLost, match="rank 0 failed: interrupted by a signal"):
                comm.all_reduce(np.ones(10))
        return (*pressed, time.monotonic())

    (pressed, ended), (told,), _ = ranks(3, body)
    assert ended - pressed < 0.4  # 0.02 s between looks; it took half a second more
    assert told - pressed < 0.4


def test_a_dropped_comm_lets_other_threads_run(ranks):
    """Without close(), and the other rank does not leave yet: who dropped it waits alone."""

    def body():
        comm = braid.init(progress=False)
        comm.barrier()
        if comm.rank == 1:
            time.sleep(1.5)
            comm.close()
            return 0
        pauses = [0.0]
        stop = threading.Event()

        def tick():
            last = time.monotonic()
            while not stop.wait(0.01):
                now = time.monotonic()
                pauses.append(now - last)
                last = now

        ticker = threading.Thread(target=tick)
        ticker.start()
        time.sleep(0.1)
        del comm
        time.sleep(0.1)
        stop.set()
        ticker.join()
        return max(pauses)

    assert max(ranks.collect(ranks.start(2, body))) < 0.7


def test_killed_rank(ranks):
    def body():
        comm = braid.init(progress=False)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()

        def until_it_fails():
            for _ in range(1000):
                comm.all_reduce(np.ones(100_000))

        with pytest.raises(braid.PeerLost, match="rank 1"):
            until_it_fails()
        return time.monotonic() - start

    waits = ranks.collect(ranks.start(3, body), killed={1: signal.SIGKILL})
    assert max(waits[0], waits[2]) < 10


def test_stopped_rank(ranks):
    def body():
        comm = braid.init(progress=False, timeout=1.0)
        comm.barrier()
        if comm.rank == 1:
            time.sleep(3)  # a stopped process would look the same, and could not be collected
            return None
        with pytest.raises((braid.Timeout, braid.PeerLost)) as caught:
            comm.all_reduce(np.ones(1000))
        assert isinstance(caught.value, braid.Error)
        return str(caught.value)

    texts = ranks.collect(ranks.start(2, body))
    assert "rank 1" in texts[0]


def test_missing_rank():
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in {**environment, "MASTER_PORT": str(free_port())}.items():
            patch.setenv(name, text)
        with pytest.raises((braid.Unavailable, braid.Timeout), match=r"127\.0\.0\.1"):
            braid.init(timeout="700ms", progress=False)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, "two"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "x"}, "MASTER_PORT"),
        ({"BRAID_TIMEOUT": "soon"}, "BRAID_TIMEOUT"),
    ],
)
def test_wrong_environment(monkeypatch, environment, words):
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(braid.InvalidArgument, match=words):
        braid.init(progress=False)


def test_wrong_options():
    with pytest.raises(braid.InvalidArgument, match="BRAID_PACE"):
        braid.init(pcae="shm=1GB/s", progress=False)
    with pytest.raises(braid.InvalidArgument, match="progress"):
        braid.init(progress=7)


def test_exceptions_are_what_python_expects():
    assert issubclass(braid.InvalidArgument, ValueError)
    assert issubclass(braid.Timeout, TimeoutError)
    assert issubclass(braid.PeerLost, ConnectionError)
    names = ("InvalidArgument", "Unsupported", "Unavailable", "Exhausted")
    names += ("DriverError", "Timeout", "PeerLost", "InternalError")
    assert all(issubclass(getattr(braid, name), braid.Error) for name in names)

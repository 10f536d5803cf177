"""Asynchronous calls: their order, their handles, and what happens when something goes wrong."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from elements import same

import braid
from braid import _braid
from braid.work import GpuWork, HostWork


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_collective(ranks, size):
    def body(comm):
        n, r = comm.size, comm.rank
        x = np.arange(6.0 * n) + 100 * r
        both = {"async_op": True}
        rows = [2 if i else 0 for i in range(n)]
        calls = [
            lambda **a: comm.all_gather(x, **a),
            lambda **a: comm.all_gather(np.full(rows[r], r), counts=rows, **a),
            lambda **a: comm.all_reduce(x.copy(), "max", **a),
            lambda **a: comm.reduce_scatter(x, **a),
            lambda **a: comm.reduce_scatter(x[: sum(rows)].copy(), counts=rows, **a),
            lambda **a: comm.all_to_all(x, **a),
            lambda **a: comm.all_to_all(
                x[:n].copy(), send_counts=[1] * n, recv_counts=[1] * n, **a
            ),
            lambda **a: comm.broadcast(x.copy(), n - 1, **a),
            lambda **a: comm.reduce(x.copy(), "sum", n - 1, **a),
            lambda **a: comm.gather(x, n - 1, **a),
            lambda **a: comm.scatter(x if r == 0 else None, np.empty(6), **a),
            lambda **a: comm.barrier(**a),
        ]
        works = [call(**both) for call in calls]
        assert all(isinstance(work, braid.Work) for work in works)
        for call, work in zip(calls, works, strict=True):
            found, expected = work.wait(20), call()  # which goes behind all of them
            assert work.done()
            if expected is None:
                assert found is None
            else:
                same(found, expected)
                assert work.result is found

    ranks(size, body)


def test_computes_meanwhile_and_stays_in_order(ranks):
    """Ranks that wait for some of their calls at different places make the same calls in order."""

    def body(comm):
        dice = np.random.default_rng(comm.rank)
        sums, works = [], []
        for number in range(40):
            works.append(comm.all_reduce(np.full(10_000, comm.rank + number), async_op=True))
            np.ones((60, 60)) @ np.ones((60, 60))
            if dice.random() < 0.2:
                sums.append(comm.all_reduce(np.full(3, number))[0])
                assert all(work.done() for work in works), "a later call came first"
            else:
                sums.append(comm.all_reduce(np.full(3, number), async_op=True).wait()[0])
        for number, work in enumerate(works):
            assert (work.wait() == 3 + 3 * number).all()
        return sums == [3 * number for number in range(40)]

    assert ranks(3, body) == [True] * 3


def test_the_caller_goes_on_while_a_peer_is_late(ranks):
    def body(comm):
        if comm.rank == 1:
            time.sleep(0.5)
            return comm.all_reduce(np.ones(2)).tolist()
        start = time.monotonic()
        work = comm.all_reduce(np.ones(2), async_op=True)
        assert not work.done()
        assert time.monotonic() - start < 0.4
        with pytest.raises(braid.Timeout, match=r"all_reduce: not over within 0.01 s"):
            work.wait(0.01)
        with pytest.raises(braid.InvalidArgument, match="deadline"):
            work.wait(-1)
        return work.wait(10).tolist()

    assert ranks(2, body) == [[2, 2], [2, 2]]


def test_errors_are_told_by_wait_and_the_next_call_works(ranks):
    def body(comm):
        work = comm.all_reduce(np.ones(4 + comm.rank), async_op=True)
        good = comm.all_reduce(np.ones(4), async_op=True)
        for _ in range(2):  # as often as it is asked
            with pytest.raises(braid.InvalidArgument, match="all_reduce of 4 float64"):
                work.wait()
        with pytest.raises(braid.InvalidArgument, match="all_reduce of 4 float64"):
            _ = work.result
        assert work.done()
        with pytest.raises(braid.InvalidArgument, match="argument op"):
            comm.all_reduce(np.ones(4), "mean", async_op=True)
        return good.wait().tolist()

    assert ranks(2, body) == [[2] * 4] * 2


def test_close_waits_and_leaves_no_thread(ranks):
    def body():
        comm = braid.init(progress=False)
        x = np.full(300_000, 1.0)
        work = comm.all_reduce(x, async_op=True)
        comm.close()
        assert work.done()
        assert (x == 2).all()
        late = comm.all_reduce(x, async_op=True)
        with pytest.raises(braid.InvalidArgument, match="closed"):
            late.wait()
        end = time.monotonic() + 5
        while any(t.name == "braid calls" for t in threading.enumerate()):
            assert time.monotonic() < end
            time.sleep(0.01)

    ranks.collect(ranks.start(2, body))


def test_a_program_that_waits_for_nothing_ends(tmp_path):
    script = tmp_path / "leave.py"
    script.write_text(
        "import braid, numpy as np\n"
        "comm = braid.init(progress=False, tune=False)\n"
        "comm.all_reduce(np.ones(3), async_op=True)\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, script], timeout=60, check=False)
    assert done.returncode == 0
    assert time.monotonic() - start < 30


def test_killed_rank_during_a_call(ranks, tmp_path):
    def body():
        comm = braid.init(progress=False)
        comm.barrier()
        if comm.rank == 1:
            comm.all_reduce(np.ones(100), async_op=True).wait()
            end = time.monotonic() + 15  # its death ends also what the others are not through with
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(np.ones(100))
        (tmp_path / str(comm.rank)).touch()
        works = [comm.all_reduce(np.ones(1_000_000), async_op=True) for _ in range(3)]
        start = time.monotonic()
        for work in works:
            with pytest.raises(braid.PeerLost, match="rank 1"):
                work.wait()
        with pytest.raises(braid.PeerLost):
            comm.barrier()
        comm._core.close(say_farewell=False)
        return time.monotonic() - start

    results = ranks.collect(ranks.start(3, body), killed={1: signal.SIGKILL})
    assert results[1] is None
    assert results[0] < 5
    assert results[2] < 5


def test_a_rank_that_leaves_with_an_error_tells_the_others(ranks):
    def body():
        try:
            with braid.init(progress=False) as comm:
                if comm.rank == 0:
                    comm.all_reduce(np.ones(3), async_op=True)
                    raise RuntimeError("mine")
                time.sleep(0.2)
                comm.all_reduce(np.ones(3), async_op=True).wait()
                comm.barrier()
        except (RuntimeError, braid.Error) as error:
            return type(error).__name__
        return "nothing"

    assert ranks.collect(ranks.start(2, body)) == ["RuntimeError", "PeerLost"]


class SlowlyClosed:
    """An exchange that takes its time over its end."""

    def __init__(self, core):
        self._exchange = Exchange(core)

    def __getattr__(self, name):
        return getattr(self._exchange, name)

    def close(self):
        time.sleep(0.1)
        self._exchange.close()


Exchange = _braid.Exchange


def test_the_comm_is_the_callers_once_it_has_waited(ranks, monkeypatch):
    """Also while the comm's thread, which has told of the last message, still closes its exchange:
    calls were refused as another thread's.
    """
    monkeypatch.setattr(_braid, "Exchange", SlowlyClosed)

    def body(comm):
        peer, got = 1 - comm.rank, np.empty(1)
        first, second = (comm.send, comm.recv) if comm.rank == 0 else (comm.recv, comm.send)
        for call in (
            comm.barrier,
            lambda: first(np.ones(1), peer),
            lambda: second(np.ones(1), peer),
            lambda: comm.barrier(async_op=True).wait(),
        ):
            sent = comm.isend(np.full(1, float(comm.rank)), peer)
            comm.irecv(got, peer).wait()
            sent.wait()
            call()
            assert got == peer
        comm.isend(np.ones(1), peer)
        comm.irecv(got, peer).wait()
        comm.close()

    ranks(2, body)


def no_thread(_):
    raise RuntimeError("can't start new thread")


def test_a_call_without_a_thread_was_never_made(ranks):
    def body(comm):
        mine = np.full(2, comm.rank + 1.0)
        if comm.rank == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(threading.Thread, "start", no_thread)
                for call in (comm.all_reduce, lambda buf, **_: comm.isend(buf, 0)):
                    with pytest.raises(braid.Exhausted, match="no thread: can't start new thread"):
                        call(mine, async_op=True)
            comm._calls.await_all()
        found = comm.all_reduce(mine, async_op=True).wait(10).tolist()
        comm.barrier()
        return found

    assert ranks(2, body) == [[3, 3], [3, 3]]


def test_a_start_that_is_interrupted_leaves_one_thread(ranks):
    """Ctrl-C while a thread is started that comes all the same: only one makes the calls."""
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    def body(comm):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                comm.barrier(async_op=True)
        works = [comm.all_reduce(np.full(1, n), async_op=True) for n in range(20)]
        return [int(work.wait()[0]) for work in works]

    assert ranks(2, body) == [[2 * n for n in range(20)]] * 2


def test_a_plan_is_told_behind_calls_that_were_started(ranks):
    def body(comm):
        if comm.rank == 1:
            time.sleep(0.3)
            return comm.all_reduce(np.ones(1)).tolist(), True
        work = comm.all_reduce(np.ones(1), async_op=True)
        text = str(comm.explain("all_reduce", 1 << 20))
        return work.wait(0).tolist(), "all_reduce" in text

    assert ranks(2, body) == [([2], True)] * 2


def of_fork(function, limit_s=10):
    """What `function` says in a fork of this process; None: it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = function()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    has_said = select.select([read], [], [], limit_s)[0]
    said = os.read(read, 10_000).decode() if has_said else None
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("when", ["over", "under way", "the lock is held"])
def test_a_fork_waits_for_nothing(ranks, tmp_path, when):
    """The comm's thread is not there, and the lock that was held when it was made, stays so."""

    def leave(comm, work):
        calls = [
            comm.barrier,
            lambda: comm.barrier(async_op=True),
            lambda: comm.send(np.ones(1), 1),
            lambda: comm.isend(np.ones(1), 1),
            lambda: comm.explain("all_reduce", 8),
            lambda: comm._force_shares(None),
        ]
        for call in calls + ([] if when == "over" else [work.wait]):
            with pytest.raises(braid.InvalidArgument, match=r"process .* in its fork"):
                call()
        with pytest.raises(OSError, match="mine"), comm:
            raise OSError("mine")
        with comm:
            comm.close()
        return "left"

    def body(comm):
        tried = tmp_path / "tried"
        if comm.rank == 1:
            end = time.monotonic() + 15
            while when != "over" and not tried.exists() and time.monotonic() < end:
                time.sleep(0.01)
            return comm.all_reduce(np.ones(1)).tolist()
        work = comm.all_reduce(np.ones(1), async_op=True)
        if when == "over":
            work.wait()
        said = []
        thread = threading.Thread(target=lambda: said.append(of_fork(lambda: leave(comm, work))))
        with comm._calls._changed if when == "the lock is held" else nullcontext():
            thread.start()  # the lock is this thread's
            thread.join()
        tried.touch()
        assert said == ["left"]
        return work.wait().tolist()

    assert ranks(2, body) == [[2], [2]]


class Mark:
    """A point in a stream that comes when the test says so."""

    def __init__(self):
        self.is_over = False

    def is_done(self):
        return self.is_over


def test_a_handle_of_a_gpu_call():
    """What is not the driver's: tests/gpu/calls.py has the rest."""
    mark, told = Mark(), []
    work = GpuWork("all_reduce", "result", mark, lambda: told.append("checked"))
    assert not work.done()
    assert repr(work) == "<braid.Work all_reduce on a GPU>"
    with pytest.raises(braid.Timeout, match=r"all_reduce: not over within 0.01 s"):
        work.wait(0.01)
    with pytest.raises(braid.InvalidArgument, match="not over"):
        _ = work.result
    assert told == []
    timer = threading.Timer(0.05, lambda: setattr(mark, "is_over", True))
    timer.start()
    assert work.wait(10) == work.result == "result"
    assert told == ["checked", "checked"]

    def fail():
        raise braid.PeerLost("rank 1 is gone")

    with pytest.raises(braid.PeerLost):
        GpuWork("barrier", None, mark, fail).wait()


def test_a_deadline_is_a_number_of_seconds():
    """Of any size: what is more than a system's wait takes, is as None."""

    def started():
        mark, on_host = Mark(), HostWork("barrier", "result")
        yield on_host, lambda: on_host.finish(None)
        yield GpuWork("barrier", "result", mark, lambda: None), lambda: setattr(mark, "is_over", 1)

    for deadline in (float("inf"), 1e12, 10**400, threading.TIMEOUT_MAX, 30, np.float32(30)):
        for work, end in started():
            threading.Timer(0.01, end).start()
            assert work.wait(deadline) == "result"
    for wrong in ("5", b"5", [5], float("nan"), -1e-9, -float("inf"), 1j, np.ones(2)):
        for work, _ in started():
            with pytest.raises(braid.InvalidArgument, match="deadline: asked for 0 seconds or"):
                work.wait(wrong)

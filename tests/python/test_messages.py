"""Messages between two ranks: sent and waited for, or started and met later."""

import os
import signal
import time

import numpy as np
import pytest
from elements import MOVABLE, content, same

import braid


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_type_around_a_ring(ranks, size):
    def body(comm):
        to, source = (comm.rank + 1) % size, (comm.rank - 1) % size
        for shape in ((), (0, 3), (7, 3), (20_000,)):
            for dtype in MOVABLE:
                mine, out = content(comm.rank, shape, dtype), np.empty(shape, dtype)
                if comm.rank == 0:
                    comm.send(mine, to)
                    assert comm.recv(out, source) is out
                else:
                    comm.recv(out, source)
                    comm.send(mine, to)
                same(out, content(source, shape, dtype))
        comm.barrier()

    ranks(size, body)


def test_the_last_call_is_the_last_collective(ranks):
    """Not what messages did since, nor what a call has done so far that others keep waiting."""

    def body(comm):
        comm.all_reduce(np.ones(1000))
        before = comm.last_call()
        assert before["op"] == "all_reduce"
        assert before["duration_ns"] > 0
        assert 0 < sum(link["received_bytes"] for link in before["links"]) <= 8000
        if comm.rank == 0:
            comm.send(np.ones(100_000), 1)
            work = comm.all_gather(np.ones(10), async_op=True)
            time.sleep(0.2)
        else:
            comm.recv(np.empty(100_000), 0)
            time.sleep(0.5)
        assert comm.last_call() == before
        if comm.rank == 0:
            work.wait()
        else:
            comm.all_gather(np.ones(10))
        assert comm.last_call()["op"] == "all_gather"

    ranks(2, body)


def test_a_torch_tensor(ranks):
    torch = pytest.importorskip("torch")

    def body(comm):
        if comm.rank == 0:
            comm.send(torch.arange(5, dtype=torch.bfloat16), 1)
            return None
        return comm.recv(torch.empty(5, dtype=torch.bfloat16), 0).tolist()

    assert ranks(2, body)[1] == [0, 1, 2, 3, 4]


def test_all_ranks_with_all_at_once(ranks):
    """More than one a pair, both ways, of several lengths; waited for when all are started."""

    def body(comm):
        works, others = [], [r for r in range(comm.size) if r != comm.rank]
        for number in range(3):
            for peer in others:
                sent = np.full(40_000 * number + 1, 100 * comm.rank + 10 * peer + number)
                works.append(comm.isend(sent, peer))
        got = []
        for peer in others:
            for number in range(3):
                got.append((peer, number, comm.irecv(np.empty(40_000 * number + 1, int), peer)))
        for peer, number, work in reversed(got):
            expected = 100 * peer + 10 * comm.rank + number
            assert (work.wait(20) == expected).all(), (peer, number)
        for work in works:
            work.wait(20)
        assert all(work.done() for work in works)
        return int(comm.all_reduce(np.ones(1))[0])

    assert ranks(5, body) == [5] * 5


def test_started_ones_meet_those_that_are_waited_for(ranks):
    """isend() to a peer that does the same, then recv() from it."""

    def body(comm):
        to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for number in range(5):
            sent = comm.isend(np.full(70_000, 10 * comm.rank + number), to)
            got = comm.recv(np.empty(70_000, int), source)
            assert (got == 10 * source + number).all()
            sent.wait(10)
            taken = comm.irecv(np.empty(3, int), to)
            comm.send(np.full(3, number), source)
            assert (taken.wait(10) == number).all()
        return comm.all_gather_object(comm.rank)

    assert ranks(3, body) == [[0, 1, 2]] * 3


def test_a_message_is_over_although_another_is_not(ranks):
    """Rank 0 waits for one of two; the other is sent only after it has."""

    def body(comm):
        if comm.rank == 0:
            late = comm.irecv(np.empty(3, int), 2)
            early = comm.irecv(np.empty(3, int), 1)
            assert early.wait(10).tolist() == [1, 1, 1]
            assert not late.done()
            with pytest.raises(braid.InvalidArgument, match="not over"):
                _ = late.result
            with pytest.raises(braid.Timeout, match=r"not over within 0.05 s"):
                late.wait(0.05)
            go = comm.isend(np.zeros(1), 2)  # joins the one that waits
            assert late.wait(10).tolist() == [2, 2, 2]
            go.wait(10)
        elif comm.rank == 1:
            comm.send(np.full(3, 1), 0)
        else:
            comm.recv(np.empty(1), 0)
            comm.send(np.full(3, 2), 0)
        comm.barrier()

    ranks(3, body)


def test_disagreement_is_told_to_both(ranks):
    def body(comm):
        data = np.ones(10)
        for call in (
            lambda: comm.send(data, 1) if comm.rank == 0 else comm.recv(np.empty(9), 0),
            lambda: comm.send(data, 1) if comm.rank == 0 else comm.recv(np.empty(10, "f4"), 0),
        ):
            if comm.rank < 2:
                with pytest.raises(
                    braid.InvalidArgument, match="rank 0 sends 10 float64 to rank 1"
                ):
                    call()
        if comm.rank == 0:
            comm.send(data, 1)
        elif comm.rank == 1:
            assert comm.recv(np.empty(10), 0).sum() == 10
        return comm.all_reduce(np.ones(1)).tolist()

    assert ranks(3, body) == [[3]] * 3


def test_what_one_rank_can_see_is_refused_there(ranks):
    def body(comm):
        for peer in (comm.rank, 2, -1, 2**40, None, 0.5):
            for call in (comm.send, comm.recv, comm.isend, comm.irecv):
                with pytest.raises(braid.InvalidArgument, match="peer is ") as caught:
                    call(np.ones(2), peer)
                assert "\n" not in str(caught.value)
        with pytest.raises(braid.InvalidArgument, match="recv: argument buf"):
            comm.recv(b"read only", 1 - comm.rank)
        with pytest.raises(braid.InvalidArgument, match="recv: argument buf"):
            comm.irecv(b"read only", 1 - comm.rank).wait(10)
        comm.barrier()

    ranks(2, body)


@pytest.mark.parametrize("way", ["send", "recv", "isend", "irecv"])
def test_a_collective_in_the_way_ends_all_ranks_at_once(ranks, way):
    def body():
        comm = braid.init(progress=False)
        start = time.monotonic()

        def call():
            if comm.rank == 0:
                work = getattr(comm, way)(np.ones(4), 1)
                return work.wait() if way.startswith("i") else work
            return comm.all_reduce(np.ones(3))

        with pytest.raises(braid.Error) as caught:
            call()
        assert time.monotonic() - start < 10
        with pytest.raises(braid.Error):
            comm.barrier()
        comm._core.close(say_farewell=False)
        return str(caught.value)

    for text in ranks.collect(ranks.start(3, body)):
        assert "all_reduce of 3 float64, sum" in text
        assert "\n" not in text


def test_two_that_both_send_first_find_the_deadline(ranks):
    def body():
        comm = braid.init(progress=False, timeout=0.5)
        with pytest.raises(braid.Error) as caught:
            comm.send(np.ones(4), 1 - comm.rank)
        comm._core.close(say_farewell=False)
        return str(caught.value)

    texts = ranks.collect(ranks.start(2, body))
    assert any("nothing moved for 500" in text and "has not called recv" in text for text in texts)


@pytest.mark.parametrize("way", ["recv", "irecv"])
def test_killed_peer(ranks, way):
    def body():
        comm = braid.init(progress=False)
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        buf = np.empty(1_000_000)
        with pytest.raises(braid.PeerLost, match="rank 1"):
            comm.recv(buf, 1) if way == "recv" else comm.irecv(buf, 1).wait()
        comm._core.close(say_farewell=False)
        return time.monotonic() - start

    results = ranks.collect(ranks.start(3, body), killed={1: signal.SIGKILL})
    assert results[1] is None
    assert results[0] < 5
    assert results[2] < 5

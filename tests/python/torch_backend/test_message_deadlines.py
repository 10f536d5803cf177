"""Messages that nobody takes, or that do not come: deadlines, and what is kept meanwhile."""

import ctypes
import os
import signal
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_backend_data import mine, numbers, same

import braid
from braid.torch import mailbox
from braid.torch.mailbox import Mailbox
from braid.torch.receive import RecvWork, Request


def pair(limit_s):
    return dist.new_group([0, 1], timeout=timedelta(seconds=limit_s))


def test_a_send_that_nobody_takes_ends_by_the_deadline(torch_ranks):
    """The receiver never asks for messages; leaving the group does not wait for ever either."""

    def body():
        group = pair(1)
        began = time.monotonic()
        if dist.get_rank() == 0:
            with pytest.raises(
                braid.Timeout, match=r"timed out.*messages to be received by rank 1"
            ):
                dist.send(torch.ones(3), 1, group=group)
            dist.isend(torch.ones(3), 1, group=group)
            dist.destroy_process_group(group)
        took_s = time.monotonic() - began
        dist.barrier()
        return took_s

    assert 1.8 < torch_ranks(2, body)[0] < 5


def test_a_send_to_a_stopped_process_ends_by_the_deadline(torch_ranks):
    """In the middle of the message, after which nothing can be sent to that rank any more."""

    def body():
        group = pair(1.5)
        pid = torch.tensor([os.getpid()])
        if dist.get_rank() == 1:
            dist.send(pid, 0)
            dist.recv(torch.empty(1), 0, group=group)
            time.sleep(4)
            return None
        dist.recv(pid, 1)
        dist.send(torch.ones(1), 1, group=group)
        time.sleep(0.3)
        os.kill(int(pid), signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(braid.Timeout, match=r"send to rank 1.*timed out"):
                dist.send(torch.ones(20_000_000), 1, group=group)
            took_s = time.monotonic() - began
            with pytest.raises(braid.PeerLost, match="an earlier message"):
                dist.send(torch.ones(1), 1, group=group)
        finally:
            os.kill(int(pid), signal.SIGCONT)
        return took_s

    assert 1.2 < torch_ranks(2, body, timeout_s=30)[0] < 4


def test_the_first_message_waits_for_a_busy_receiver(torch_ranks, monkeypatch):
    """No thread of the receiver's runs; the time for a greeting is the group's."""
    monkeypatch.setattr(braid.torch.post, "_GREETING_S", 1.0, raising=False)  # which was less

    def body():
        got = torch.zeros(2)
        if dist.get_rank() == 0:
            dist.barrier()
            time.sleep(0.2)
            dist.send(torch.ones(2), 1)
            return None
        work = dist.irecv(got, 0)
        dist.barrier()
        ctypes.PyDLL(None).usleep(2_500_000)  # with the interpreter's lock
        work.wait()
        return got.tolist()

    assert torch_ranks(2, body) == [None, [1, 1]]


def test_a_wait_that_ran_out_leaves_the_receive(torch_ranks):
    def body():
        got, next_ = torch.zeros(4), torch.zeros(4)
        if dist.get_rank() == 0:
            dist.barrier()
            dist.send(torch.ones(4), 1)
            dist.send(torch.full((4,), 2.0), 1)
            dist.barrier()
            return None
        work = dist.irecv(got, 0)
        with pytest.raises(braid.Timeout, match="timed out"):
            work.wait(timedelta(milliseconds=300))
        assert not work.is_completed()
        dist.barrier()
        work.wait(timedelta(seconds=10))
        dist.recv(next_, 0)
        dist.barrier()
        return got[0].item(), next_[0].item()

    assert torch_ranks(2, body) == [None, (1, 2)]


@pytest.mark.parametrize("how", ["wait", "future"])
def test_a_receive_whose_time_is_over_takes_nothing(torch_ranks, how):
    def body():
        group = pair(1)
        late, got = torch.zeros(4), torch.zeros(4)
        if dist.get_rank() == 0:
            dist.barrier()
            dist.send(torch.ones(4), 1, group=group)
            dist.barrier()
            return None
        work = dist.irecv(late, 0, group=group)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait() if how == "wait" else work.get_future().wait()
        took_s = time.monotonic() - began
        assert work.is_completed()
        dist.barrier()
        dist.recv(got, 0, group=group)
        dist.barrier()
        return late.tolist(), got.tolist(), 0.8 < took_s < 3

    assert torch_ranks(2, body)[1] == ([0] * 4, [1] * 4, True)


def test_a_receive_that_ends_within_its_message_is_not_written_to(torch_ranks):
    def body():
        group, pid, count = pair(2), torch.tensor([os.getpid()]), 60_000_000
        if dist.get_rank() == 0:
            dist.send(pid, 1)
            dist.recv(torch.empty(1), 1)
            work = dist.isend(torch.ones(count), 1, group=group)
            work.wait()
            dist.send(torch.ones(1), 1)
            dist.recv(torch.empty(1), 1)
            return None
        dist.recv(pid, 0)
        late = torch.zeros(count)
        work = dist.irecv(late, 0, group=group)
        dist.send(torch.ones(1), 0)
        while late[0] == 0:
            pass
        os.kill(int(pid), signal.SIGSTOP)
        try:
            with pytest.raises(braid.Timeout, match="timed out"):
                work.wait()
            late.zero_()
        finally:
            os.kill(int(pid), signal.SIGCONT)
        dist.recv(torch.empty(1), 0)
        dist.send(torch.ones(1), 0)
        return late.sum().item()

    assert torch_ranks(2, body, timeout_s=30)[1] == 0


def test_what_nobody_asks_for_is_kept_up_to_a_limit(torch_ranks, monkeypatch):
    """The sender waits then; a receive of what is behind it is served all the same."""
    monkeypatch.setattr(mailbox, "KEPT_BYTES", 4_000_000)

    def body():
        many, size = 30, 1_000_000
        if dist.get_rank() == 0:
            works = [dist.isend(mine(size), 1, tag=1) for _ in range(many)]
            works.append(dist.isend(torch.full((3,), 7.0), 1, tag=2))
            dist.barrier()
            time.sleep(0.5)
            are_done = [work.is_completed() for work in works]
            dist.barrier()
            for work in works:
                work.wait()
            dist.barrier()
            return are_done[0], are_done[-1]
        got, last = torch.empty(size), torch.empty(3)
        dist.recv(got, 0, tag=1)
        dist.barrier()
        time.sleep(0.5)
        kept = dist.group.WORLD._comms.post._mailbox._kept_bytes[0]
        dist.barrier()
        dist.recv(last, 0, tag=2)  # with 29 messages before it on the wire
        for _ in range(many - 1):
            dist.recv(got, 0, tag=1)
        left = dist.group.WORLD._comms.post._mailbox._kept_bytes[0]
        dist.barrier()
        return kept, last.tolist(), left

    sent, (kept, last, left) = torch_ranks(2, body)
    assert sent == (True, False)
    assert kept <= 4_000_000
    assert (last, left) == ([7] * 3, 0)


def test_a_message_larger_than_what_is_kept_waits_for_its_receive(torch_ranks, monkeypatch):
    monkeypatch.setattr(mailbox, "KEPT_BYTES", 1000)

    def body():
        if dist.get_rank() == 0:
            dist.send(mine(5_000_000), 1)
            return None
        time.sleep(0.3)
        got = torch.empty(5_000_000)
        assert dist.recv(got) == 0
        same(got, numbers(5_000_000, torch.float32, 0))
        return True

    assert torch_ranks(2, body)[1]


def request(source, tag, count=1):
    """A receive without a group."""
    work = RecvWork("recv", 0.1, lambda: None, None)
    return Request(source, tag, np.zeros(count, np.uint8), work)


def test_a_mailbox_in_one_process():
    box, first = Mailbox(2), request(1, 5)
    box.ask(first)
    assert box.claim(1, 5, 1) is first
    first.work.get_future()
    time.sleep(0.15)
    box.end_late(None)  # while its message arrives
    assert first.is_over
    with pytest.raises(braid.Timeout, match="timed out"):
        first.work.wait()
    box.filled(first)
    box.lose(1, braid.PeerLost("gone"))
    lost, any_ = request(1, 5), request(None, 5)
    box.ask(lost)
    box.ask(any_)
    assert isinstance(lost.work.exception(), braid.PeerLost)
    assert not any_.work.is_completed()
    box.close(braid.PeerLost("ended"))
    assert not box.wait_for_requests()
    assert isinstance(any_.work.exception(), braid.PeerLost)
    with pytest.raises(ConnectionError):
        box.claim(1, 5, 1)


def test_from_any_rank_when_all_others_have_left():
    """Once somebody waits for it; before that, this rank may still send to itself."""
    box, waited, own, other = Mailbox(2), request(None, 5), request(None, 6), request(2, 5)
    for each in (waited, own):
        each.work.limit_s = 60
        box.ask(each)
    future = waited.work.get_future()
    box.lose(1, braid.PeerLost("rank 1 has left"))
    box.end_late(None)
    assert not waited.work.is_completed()  # rank 2 can send
    box.lose(2, braid.PeerLost("rank 2 has left"))
    box.end_late(None)
    with pytest.raises(braid.PeerLost, match=r"every other rank.*rank 2 has left"):
        waited.work.wait()
    assert future.done()
    box.ask(other)
    assert isinstance(other.work.exception(), braid.PeerLost)
    box.put(0, 6, b"x")
    assert own.work.is_success()
    late = request(None, 5)  # asked for when they had gone
    late.work.limit_s = 60
    box.ask(late)
    assert not late.work.is_completed()
    late.work.get_future()
    box.end_late(None)
    assert isinstance(late.work.exception(), braid.PeerLost)
    alone = Mailbox(0)
    alone.ask(mine_alone := request(None, 5))
    mine_alone.work.limit_s = 60
    mine_alone.work.get_future()
    alone.end_late(None)
    assert not mine_alone.work.is_completed()


def test_who_asks_while_another_thread_delivers_waits_for_it():
    began, go_on, order = threading.Event(), threading.Event(), []

    def deliver():
        began.set()
        go_on.wait(10)
        order.append("delivered")

    work = RecvWork("recv", 60, deliver, None)
    assert not work.is_completed()
    work.finish()
    first = threading.Thread(target=work.is_completed)
    first.start()
    assert began.wait(10)

    def ask():
        assert work.wait()
        order.append("waited")

    second = threading.Thread(target=ask)
    second.start()
    second.join(0.2)
    assert order == []
    go_on.set()
    for thread in (first, second):
        thread.join(10)
    assert order == ["delivered", "waited"]


def test_what_failed_is_not_delivered():
    work = RecvWork("recv", 60, lambda: pytest.fail("delivered"), None)
    work.finish(braid.PeerLost("gone"))
    assert work.is_completed()
    assert not work.is_success()


def test_a_receive_on_a_gpu_is_delivered_on_the_stream_of_who_waits():
    delivered = []
    work = RecvWork("recv", 60, lambda: delivered.append(1), None, is_on_host=False)
    work.finish()
    assert work.is_completed()
    assert delivered == []
    work.wait()
    work.wait()
    assert delivered == [1]

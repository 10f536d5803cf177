"""Ctrl-C in a receive: the message that it waited for is the next receive's, or its own when it is
waited for again, and its tensor is left alone meanwhile.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_backend_data import numbers, same

import braid
from braid.torch import mailbox
from braid.torch.mailbox import Mailbox
from braid.torch.receive import RecvWork, Request


def interrupted(wait):
    """Ctrl-C in `wait`, after a while."""
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait()


def send_two(count=4):
    dist.barrier()
    for salt in (1, 2):
        dist.send(numbers(count, torch.float32, 0, salt=salt), 1)
    dist.barrier()


@pytest.mark.parametrize("source", [0, None])
def test_the_next_receive_gets_the_message(torch_ranks, source):
    def body():
        if dist.get_rank() == 0:
            return send_two()
        first, got = torch.zeros(4), [torch.zeros(4), torch.zeros(4)]
        interrupted(lambda: dist.recv(first, source))
        dist.barrier()
        for tensor in got:
            assert dist.recv(tensor, source) == 0
        dist.barrier()
        assert not first.any()
        for salt, tensor in enumerate(got, 1):
            same(tensor, numbers(4, torch.float32, 0, salt=salt))
        return None

    torch_ranks(2, body)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_receive_is_waited_for_again(torch_ranks, is_there):
    """In its place, before one that was made later; whether its message came meanwhile or not."""

    def body():
        if dist.get_rank() == 0:
            dist.barrier() if is_there else time.sleep(1)
            for salt in (1, 2):
                dist.send(numbers(4, torch.float32, 0, salt=salt), 1)
            dist.barrier()
            return
        got = [torch.zeros(4), torch.zeros(4)]
        works = [dist.irecv(tensor, 0) for tensor in got]
        interrupted(works[0].wait)
        if is_there:
            dist.barrier()
            works[1].wait()
            assert not got[0].any()  # the user's, until he asks
        for work in works:
            work.wait()
            assert work.is_success()
        for salt, tensor in enumerate(got, 1):
            same(tensor, numbers(4, torch.float32, 0, salt=salt))
        dist.barrier()

    torch_ranks(2, body)


def test_a_receive_that_another_one_replaced_says_so(torch_ranks):
    def body():
        if dist.get_rank() == 0:
            return send_two()
        first, got = torch.zeros(4), torch.zeros(4)
        works = [dist.irecv(first, 0)]
        interrupted(works[0].wait)
        works.append(dist.irecv(got, 0))
        dist.barrier()
        works[1].wait()
        with pytest.raises(braid.Cancelled, match=r"recv from rank 0.*interrupted"):
            works[0].wait()
        same(got, numbers(4, torch.float32, 0, salt=1))
        dist.recv(got, 0)
        same(got, numbers(4, torch.float32, 0, salt=2))
        assert not first.any()
        dist.barrier()
        return None

    torch_ranks(2, body)


@pytest.mark.parametrize("again", ["the same", "another"])
def test_ctrl_c_within_a_message(torch_ranks, again):
    """The sender stands still in the middle of it until the receive is interrupted."""
    count = 60_000_000

    def body():
        pid = torch.tensor([os.getpid()])
        if dist.get_rank() == 0:
            dist.send(pid, 1)
            dist.recv(torch.empty(1), 1)
            for salt in (1, 2):
                dist.send(torch.full((count,), float(salt)), 1)
            dist.barrier()
            return
        dist.recv(pid, 0)
        tensor, other = torch.zeros(count), torch.zeros(count)
        work = dist.irecv(tensor, 0)
        is_within = []

        def interrupt():
            while tensor[0] == 0:
                pass
            os.kill(int(pid), signal.SIGSTOP)
            is_within.append(tensor[-1].item() == 0)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            dist.send(torch.ones(1), 0)
            with pytest.raises(KeyboardInterrupt):
                work.wait()
        finally:
            os.kill(int(pid), signal.SIGCONT)
        assert is_within == [True]
        if again == "the same":
            work.wait()
            first, second = tensor, other
        else:
            kept = tensor.clone()
            dist.recv(other, 0)
            assert torch.equal(tensor, kept)
            with pytest.raises(braid.Cancelled):
                work.wait()
            first, second = other, tensor
        assert (first == 1).all()
        dist.recv(second, 0)
        assert (second == 2).all()
        dist.barrier()

    torch_ranks(2, body, timeout_s=40)


# ---- the mailbox alone ----


def request(source, tag=0, count=4):
    return Request(
        source, tag, np.zeros(count, np.uint8), RecvWork("recv", 1.0, lambda: None, None)
    )


def asked(box, *args):
    made = request(*args)
    box.ask(made)
    return made


def test_a_place_is_for_whom_its_message_may_be_for():
    box = Mailbox(2)
    idle = asked(box, 1)
    idle.work.waits(False)
    others = [asked(box, 2), asked(box, 1, 5)]  # of another rank, of another tag
    assert not idle.work.is_over
    box.put(1, 0, b"abcd")
    assert not idle.work.is_over
    assert asked(box, None).target.tobytes() == b"abcd"
    assert isinstance(idle.work.exception(), braid.Cancelled)
    assert not idle.place.any()
    box.put(2, 0, b"efgh")
    box.put(1, 5, b"ijkl")
    assert [r.target.tobytes() for r in others] == [b"efgh", b"ijkl"]


@pytest.mark.parametrize("how", ["future", "thread"])
def test_ctrl_c_of_one_who_waits_is_not_that_of_another(how):
    box = Mailbox(1)
    waited = asked(box, 1)
    seen = []
    if how == "future":
        future = waited.work.get_future()
        other = threading.Thread(target=lambda: seen.append(future.wait()))
    else:
        other = threading.Thread(target=lambda: seen.append(waited.work.wait()))
    other.start()
    time.sleep(0.1)
    interrupted(waited.work.wait)
    box.put(1, 0, b"abcd")
    other.join(5)
    assert not other.is_alive()
    assert waited.target.tobytes() == b"abcd"
    assert len(seen) == 1


def test_what_is_held_counts_as_kept_and_a_large_message_waits_for_who_asks(monkeypatch):
    monkeypatch.setattr(mailbox, "KEPT_BYTES", 6)
    box = Mailbox(1)
    idle = asked(box, 1)
    idle.work.waits(False)
    assert box.claim(1, 0, 4) is None
    box.put(1, 0, b"abcd")
    claimed = []
    sender = threading.Thread(target=lambda: claimed.append(box.claim(1, 0, 4)))
    sender.start()
    sender.join(0.2)
    assert sender.is_alive()  # there is no room
    idle.work.wait()
    assert idle.target.tobytes() == b"abcd"
    sender.join(5)
    assert claimed == [None]


def test_what_is_idle_ends_with_the_group_and_with_its_rank():
    box = Mailbox(2)
    lost, held = asked(box, 1), asked(box, 2)
    for each in (lost, held):
        each.work.waits(False)
    box.put(2, 0, b"abcd")
    box.lose(1, braid.PeerLost("gone"))
    assert isinstance(lost.work.exception(), braid.PeerLost)
    box.close(braid.Unavailable("over"))
    assert isinstance(held.work.exception(), braid.Unavailable)
    assert not held.place.any()


def test_a_message_that_breaks_off_ends_who_was_interrupted_in_it():
    """Of a receive from any rank: no later message may get to its tensor."""
    box = Mailbox(2)
    broken = asked(box, None)
    assert box.claim(1, 0, 4) is broken
    broken.work.waits(False)
    box.fail(broken, braid.PeerLost("gone"))
    assert isinstance(broken.work.exception(), braid.PeerLost)
    later = asked(box, 2)
    box.put(2, 0, b"abcd")
    assert later.target.tobytes() == b"abcd"
    assert not broken.place.any()

"""send and recv: tags, orders, sizes, sources, and a peer that is gone."""

import contextlib
import time

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import numbers, same

import braid
from braid.torch import doors


@pytest.fixture
def ranks_until_all_are_done(torch_ranks):
    """Rank 0's process has torch's store, in which ranks look each other up."""

    def run(size, body):
        def with_barrier():
            value = body()
            dist.barrier()
            return value

        return torch_ranks(size, with_barrier)

    return run


def test_a_ring_of_messages(ranks_until_all_are_done):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % n, (rank - 1) % n
        for dtype in (torch.float32, torch.bool, torch.bfloat16, torch.complex64):
            for count in (0, 1, 1000, 300_000):
                got = torch.empty(count, dtype=dtype)
                work = dist.isend(numbers(count, dtype, rank), right)
                assert dist.recv(got, left) == left
                work.wait()
                same(got, numbers(count, dtype, left))

    ranks_until_all_are_done(3, body)


def test_both_send_first(ranks_until_all_are_done):
    """Large messages both ways at once: nobody waits for the other's receive."""

    def body():
        rank = dist.get_rank()
        dist.send(numbers(3_000_000, torch.float32, rank), 1 - rank)
        got = torch.empty(3_000_000)
        dist.recv(got, 1 - rank)
        same(got, numbers(3_000_000, torch.float32, 1 - rank))

    ranks_until_all_are_done(2, body)


def test_tags_and_orders(ranks_until_all_are_done):
    def body():
        got = [torch.empty(4) for _ in range(4)]
        if dist.get_rank() == 0:
            for i, tag in enumerate((5, 7, 5, 7)):
                dist.send(numbers(4, torch.float32, 0, salt=i), 1, tag=tag)
            return None
        dist.recv(got[0], 0, tag=7)
        works = [dist.irecv(got[1], 0, tag=5), dist.irecv(got[2], 0, tag=5)]
        dist.recv(got[3], 0, tag=7)
        for work in works:
            work.wait()
        for tensor, salt in zip(got, (1, 0, 2, 3), strict=True):
            same(tensor, numbers(4, torch.float32, 0, salt=salt))
        return works[0].source_rank()

    assert ranks_until_all_are_done(2, body) == [None, 0]


def test_from_any_source(ranks_until_all_are_done):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        if rank != 0:
            dist.send(torch.full((3,), float(rank)), 0)
            return None
        seen = []
        for _ in range(n - 1):
            got = torch.empty(3)
            source = dist.recv(got)
            assert got.tolist() == [source] * 3
            seen.append(source)
        return sorted(seen)

    assert ranks_until_all_are_done(4, body)[0] == [1, 2, 3]


def test_batches_strides_and_oneself(ranks_until_all_are_done):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        outs = [torch.zeros(3, 2).t() for _ in range(n)]
        ops = [dist.P2POp(dist.isend, numbers(6, torch.float32, rank).view(3, 2).t(), peer)
               for peer in range(n)]  # fmt: skip
        ops += [dist.P2POp(dist.irecv, outs[peer], peer) for peer in range(n)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for peer, out in enumerate(outs):
            same(out.contiguous(), numbers(6, torch.float32, peer).view(3, 2).t().contiguous())

    ranks_until_all_are_done(3, body)


@pytest.mark.parametrize("ask", ["is_completed", "is_success"])
def test_a_receive_that_is_done_is_in_its_tensor(ranks_until_all_are_done, ask):
    """Also where the tensor's strides need a copy; told by one thread, it is so for all."""

    def body():
        rank, want = dist.get_rank(), numbers(6, torch.float32, 0).view(3, 2)
        if rank == 0:
            dist.send(want, 1)
            return
        out = torch.zeros(2, 3).t()
        work = dist.irecv(out, 0)
        end = time.monotonic() + 20
        while not getattr(work, ask)():
            assert time.monotonic() < end
            time.sleep(0.01)
        same(out.contiguous(), want)
        out.zero_()  # the user's from now on
        work.wait()
        assert work.is_completed()
        assert not out.any()

    ranks_until_all_are_done(2, body)


def test_a_receive_that_its_tensor_cannot_take_is_no_success(ranks_until_all_are_done):
    """Its elements are one place in memory. A look at it is told, and so is everybody behind it."""

    def body():
        if dist.get_rank() == 0:
            dist.send(numbers(4, torch.float32, 0), 1)
            return
        work = dist.irecv(torch.zeros(1).expand(4), 0)
        end = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not work.is_success()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="single memory location"):
                work.wait()

    ranks_until_all_are_done(2, body)


def test_a_default_device_elsewhere(ranks_until_all_are_done):
    """What braid makes for itself on the CPU is there."""

    def body():
        out = torch.zeros(4, 3)
        if dist.get_rank() == 0:
            dist.send(numbers(12, torch.float32, 0).view(3, 4), 1)
            return
        torch.set_default_device("meta")
        try:
            dist.recv(out.t(), 0)
        finally:
            torch.set_default_device(None)
        same(out.t().contiguous(), numbers(12, torch.float32, 0).view(3, 4))

    ranks_until_all_are_done(2, body)


def test_a_wrong_size_is_told(ranks_until_all_are_done):
    def body():
        if dist.get_rank() == 0:
            dist.send(torch.zeros(5), 1)
            dist.send(torch.ones(2), 1)
            return
        with pytest.raises(braid.InvalidArgument, match="for 12 bytes, found a message of 20"):
            dist.recv(torch.zeros(3), 0)
        got = torch.zeros(2)
        dist.recv(got, 0)
        assert got.tolist() == [1, 1]
        with pytest.raises(braid.InvalidArgument, match=r"source.*found 4"):
            dist.group.WORLD.recv([got], 4)

    ranks_until_all_are_done(2, body)


@pytest.mark.parametrize("tag", [1 << 63, -(1 << 63) - 1, 1.5, "a", None])
def test_a_tag_that_is_none_is_told_on_both_sides(ranks_until_all_are_done, tag):
    """The receiver waited for the deadline, and the sender got an error of Python's struct."""

    def body():
        peer = 1 - dist.get_rank()
        for call in (dist.send, dist.recv, dist.isend, dist.irecv):
            with pytest.raises(braid.InvalidArgument, match="argument tag: asked for a whole"):
                call(torch.ones(1), peer, tag=tag)

    ranks_until_all_are_done(2, body)


def test_a_message_into_a_view_that_flips_its_elements(ranks_until_all_are_done):
    """Negated or conjugated as they are read: as in collectives, the tensor's values arrive."""

    def body():
        values = torch.tensor([1 + 2j, 3 - 4j])
        group, is_sender = dist.group.WORLD, dist.get_rank() == 0
        for tag, view in enumerate((torch.conj, torch._neg_view)):
            flipped = view(torch.zeros(2, dtype=torch.complex64))
            if is_sender:
                group.send([values], 1, tag).wait()
            else:
                group.recv([flipped], 0, tag).wait()
                same(flipped.clone(), values)

    ranks_until_all_are_done(2, body)


def test_messages_of_groups_do_not_mix(ranks_until_all_are_done):
    def body():
        pair = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            early = dist.isend(torch.full((1,), 1.0), 1, group=pair)
            dist.send(torch.full((1,), 2.0), 1)
            early.wait()
            return None
        got = torch.empty(1)
        dist.recv(got, 0)
        first = got.item()
        dist.recv(got, 0, group=pair)
        return first, got.item()

    assert ranks_until_all_are_done(2, body) == [None, (2, 1)]


def test_a_receiver_learns_that_the_sender_left(torch_ranks):
    def body():
        got = torch.empty(2)
        if dist.get_rank() == 0:
            dist.send(torch.ones(2), 1)
            return None
        dist.recv(got, 0)
        began = time.monotonic()
        with pytest.raises(braid.PeerLost, match="rank 0"):
            dist.recv(got, 0)
        return time.monotonic() - began < 5

    assert torch_ranks(2, body) == [None, True]


@pytest.mark.parametrize("has_comm", [True, False])
def test_a_receiver_from_any_rank_learns_that_all_others_left(torch_ranks, has_comm):
    """What it sends to itself still comes."""

    def body():
        group, rank, got = dist.group.WORLD, dist.get_rank(), torch.empty(2)
        if has_comm:
            dist.barrier()
        if rank != 0:
            dist.send(torch.full((2,), float(rank)), 0)
            return None
        assert {dist.recv(got) for _ in range(2)} == {1, 2}
        posted = dist.irecv(torch.empty(2), tag=4)
        for _ in range(2):  # one that waits already, and one that comes later
            with pytest.raises(braid.PeerLost, match="every other rank has left"):
                group.recv_anysource([got], 0).wait()
        group.send([torch.ones(2)], 0, 4)  # dist.send() to oneself is refused
        posted.wait()
        return posted.result()[0].tolist()

    assert torch_ranks(3, body, timeout_s=60)[0] == [1, 1]


def test_a_stranger_is_not_heard(torch_ranks):
    """Who does not know the group's secret is cut off, and nobody notices."""

    def body():
        if dist.get_rank() == 0:
            post = dist.group.WORLD._comms.post
            post._open()
            where = post._meeting.get(["post/0"], "", lambda: None)[0]
            with contextlib.suppress(ConnectionError), doors.connect(where, 5) as stranger:
                stranger.sendall(b"braidp2p" + bytes(36) + bytes(32) + bytes(100))
                while stranger.recv(1000):
                    pass
            got = torch.empty(1)
            dist.recv(got, 1)
            return got.item()
        time.sleep(0.3)
        dist.send(torch.ones(1), 0)
        return None

    assert torch_ranks(2, body)[0] == 1

"""Work objects: asynchronous, in order, with errors at wait()."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import all_ranks, mine, same

import braid
from braid.torch.host_calls import HostCalls
from braid.torch.work import HostWork, SeveralWorks


def test_an_asynchronous_call_returns_before_its_peers_have_come(torch_ranks):
    def body():
        dist.barrier()
        if dist.get_rank() == 0:
            began = time.monotonic()
            tensor = mine(1000)
            work = dist.all_reduce(tensor, async_op=True)
            returned_s, was_done = time.monotonic() - began, work.is_completed()
            work.wait()
            waited_s = time.monotonic() - began
            assert work.is_success()
            assert work.exception() is None
            same(work.result()[0], sum(all_ranks(1000)))
            return returned_s < 0.5, was_done, waited_s > 0.5
        time.sleep(1.0)
        dist.all_reduce(mine(1000))
        return True, False, True

    assert torch_ranks(2, body) == [(True, False, True)] * 2


def test_calls_keep_their_order_whatever_thread_runs_them(torch_ranks):
    def body():
        works, tensors = [], []
        for i in range(60):
            tensor = mine(1 + i * 37, salt=i)
            if i % 3 == 0:
                dist.all_reduce(tensor)  # in this thread, after all before it
                assert all(work.is_completed() for work in works)
            else:
                works.append(dist.all_reduce(tensor, async_op=True))
            tensors.append(tensor)
        for work in reversed(works):
            work.wait()
        for i, tensor in enumerate(tensors):
            same(tensor, sum(all_ranks(tensor.numel(), salt=i)))

    torch_ranks(3, body)


def test_futures(torch_ranks):
    def body():
        tensor = mine(10)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda f: f.value()[0] * 2)
        same(doubled.wait(), 2 * sum(all_ranks(10)))
        done = dist.all_reduce(mine(3), async_op=True)
        done.wait()
        same(done.get_future().wait()[0], sum(all_ranks(3)))
        group = dist.group.WORLD
        outs = [torch.empty(2 * k) for k in (3, 4)]
        together = group.allgather_into_tensor_coalesced(outs, [mine(3), mine(4)])
        same(together.get_future().wait()[1], torch.cat(all_ranks(4)))

    torch_ranks(2, body)


def test_an_error_shows_at_wait_and_in_the_future(torch_ranks):
    def body():
        work = dist.all_reduce(mine(4 + dist.get_rank()), async_op=True)
        future = work.get_future()
        with pytest.raises(braid.InvalidArgument, match="4"):
            work.wait()
        with pytest.raises(RuntimeError, match="InvalidArgument"):
            future.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), braid.InvalidArgument)
        with pytest.raises(braid.InvalidArgument):
            dist.all_reduce(mine(4 + dist.get_rank()))
        total = mine(4)
        dist.all_reduce(total)
        same(total, sum(all_ranks(4)))

    torch_ranks(2, body)


def test_a_limit_of_wait(torch_ranks):
    def body():
        if dist.get_rank() == 0:
            work = dist.all_reduce(mine(8), async_op=True)
            with pytest.raises(braid.Timeout, match="all_reduce"):
                work.wait(timedelta(milliseconds=200))
            work.wait()  # it went on
            options = dist.AllreduceOptions()
            options.timeout = timedelta(milliseconds=200)
            options.asyncOp = False
            late = dist.group.WORLD.allreduce([mine(8)], options)
            with pytest.raises(braid.Timeout):
                late.wait()
            late.wait(timedelta(seconds=20))
        else:
            for _ in range(2):
                time.sleep(0.6)
                dist.all_reduce(mine(8))

    torch_ranks(2, body)


def test_a_barrier_waits_for_everybody(torch_ranks):
    def body():
        dist.barrier()
        began = time.monotonic()
        if dist.get_rank() == 1:
            time.sleep(0.5)
        dist.barrier()
        took_s = time.monotonic() - began
        dist.barrier(async_op=True).wait()
        return took_s > 0.45

    assert torch_ranks(3, body) == [True] * 3


def test_queue_in_one_process():
    """Order, errors, and an end that leaves nobody waiting; without a group."""
    calls, seen = HostCalls("test"), []
    slow = calls.submit(HostWork("slow"), lambda: time.sleep(0.2), is_async=True)
    second = calls.submit(HostWork("second"), lambda: seen.append(2), is_async=False)
    wrong = calls.submit(HostWork("wrong"), lambda: 1 / 0, is_async=True)
    second.wait()
    assert slow.is_completed()
    with pytest.raises(ZeroDivisionError):
        wrong.wait()
    with pytest.raises(ZeroDivisionError):
        SeveralWorks([second, wrong]).wait()
    busy = calls.submit(HostWork("busy"), lambda: time.sleep(0.2), is_async=True)
    dropped = calls.submit(HostWork("dropped"), lambda: seen.append(3), is_async=True)
    time.sleep(0.05)
    calls.give_up(braid.PeerLost("gone"))
    with pytest.raises(braid.PeerLost):
        dropped.wait()
    busy.wait()
    calls.finish(braid.PeerLost("later"))
    with pytest.raises(braid.PeerLost, match="gone"):
        calls.submit(HostWork("late"), lambda: None, is_async=False).wait()
    assert seen == [2]
    assert calls.is_idle

"""Callbacks of futures: they may make calls, and wait for them."""

import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch_backend_data import all_ranks, mine, same

from braid.torch.callbacks import _PATIENCE_S, Callbacks
from braid.torch.work import HostWork


def later(tensor):
    """The future of an all_reduce that is not done before every rank has come."""
    if dist.get_rank() == 1:
        time.sleep(0.3)
    return dist.all_reduce(tensor, async_op=True).get_future()


def test_a_callback_waits_for_a_collective(torch_ranks):
    def body():
        second, third, fourth = mine(4, salt=2), mine(5, salt=3), mine(6, salt=4)

        def in_turn(_):
            dist.all_reduce(second)
            dist.all_reduce(third, async_op=True).wait()
            return dist.all_reduce(fourth, async_op=True).get_future().wait()[0]

        got = later(mine(3)).then(in_turn).wait()
        same(second, sum(all_ranks(4, salt=2)))
        same(third, sum(all_ranks(5, salt=3)))
        same(got, sum(all_ranks(6, salt=4)))

    torch_ranks(2, body)


def test_a_callback_waits_for_a_callback_that_calls(torch_ranks):
    def body():
        def deepest(_):
            return dist.all_reduce(mine(5), async_op=True).get_future().wait()[0]

        def deeper(_):
            return dist.all_reduce(mine(4), async_op=True).get_future().then(deepest).wait()

        same(later(mine(3)).then(deeper).wait(), sum(all_ranks(5)))

    torch_ranks(2, body)


def test_a_callback_of_a_receive_calls(torch_ranks):
    def body():
        rank, got = dist.get_rank(), torch.empty(3)

        def then(_):
            dist.send(got + 1, 1 - rank)
            again = torch.empty(3)
            dist.irecv(again, 1 - rank).get_future().wait()
            return dist.all_reduce(again, async_op=True).get_future().wait()[0]

        future = dist.irecv(got, 1 - rank).get_future().then(then)
        time.sleep(0.3 * rank)
        dist.send(torch.full((3,), float(rank)), 1 - rank)
        return future.wait().tolist()

    assert torch_ranks(2, body) == [[3, 3, 3]] * 2


def test_callbacks_come_in_the_order_of_calls_and_delay_no_wait(torch_ranks):
    def body():
        seen, works, futures, gate = [], [], [], threading.Event()
        # No call is done before all have their callbacks: else one would run in this thread.
        dist.group.WORLD._comms._host.submit(HostWork("gate"), gate.wait, is_async=True)
        for i in range(20):
            work = dist.all_reduce(mine(10), async_op=True)
            works.append(work)

            def note(_, i=i):
                dist.all_reduce(mine(3))
                seen.append(i)
                time.sleep(0.02)

            futures.append(work.get_future().then(note))
        began = time.monotonic()
        gate.set()
        works[-1].wait()
        waited_s = time.monotonic() - began
        torch.futures.wait_all(futures)
        return seen == list(range(20)), waited_s < 0.35

    assert torch_ranks(2, body) == [(True, True)] * 2


def test_a_callback_waits_for_a_call_made_outside(torch_ranks):
    """Its future's turn is after the callback that waits for it."""

    def body():
        both = threading.Event()
        futures = []

        def wait_for_the_second(_):
            both.wait()
            return futures[1].wait()[0]

        first = later(mine(3))
        futures.append(first.then(wait_for_the_second))
        futures.append(
            dist.all_reduce(mine(4), async_op=True).get_future().then(lambda f: f.value())
        )
        both.set()
        same(futures[0].wait(), sum(all_ranks(4)))

    torch_ranks(2, body)


def test_turns_in_one_process():
    """However many callbacks wait for the last future, it is told."""
    callbacks, last = Callbacks("test"), Future()
    waiting = [Future() for _ in range(3)]
    done = [future.then(lambda _: last.wait()) for future in waiting]
    began = time.monotonic()
    for future in [*waiting, last]:
        callbacks.tell(future, 0)
    torch.futures.wait_all(done)
    assert 3 * _PATIENCE_S - 0.05 < time.monotonic() - began < 3 * _PATIENCE_S + 2
    callbacks.finish(5)
    assert not [t for t in threading.enumerate() if t.name.startswith("test callbacks")]
    after = Future()
    callbacks.tell(after, 0)  # is told all the same
    after.wait()


def test_ddp_with_powersgd(torch_ranks):
    """Its hook makes collectives in callbacks, and waits for them there."""

    def body():
        torch.manual_seed(0)
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        )
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(5):
            model(torch.ones(4, 64) * (dist.get_rank() + 1)).sum().backward()
        return [parameter.grad.sum().item() for parameter in model.parameters()]

    first, second = torch_ranks(2, body)
    assert first == second

"""Where no memory is for what a call gives, or a result may not lie where the caller says: it is
raised before anything is sent, or what has come is given back, and the buffer goes on.
"""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from moe_calls import Calls, made, refused
from moe_data import Library, libraries, make, same

import braid
from braid.moe import library, low_latency
from braid.moe.host import HostCalls

H, M, SIZE, EXPERTS = 256, 24, 2, 8


@contextmanager
def memory_that_ends(kind, after=0):
    """Of arrays that a library makes, one more than `after` is one too many."""
    plain = {name: getattr(kind, name) for name in ("empty", "zeros")}
    left = [after]

    def limited(name):
        def make_one(self, shape, dtype):
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError(f"no memory for {shape}")
            return plain[name](self, shape, dtype)

        return make_one

    for name in plain:
        setattr(kind, name, limited(name))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(kind, name, function)


class SendingCalls(HostCalls):
    def __init__(self):
        super().__init__(None)
        self.sent = []

    def check_dispatch(self, *given): ...

    def send_dispatch(self, *_):
        self.sent.append("dispatch")

    def receive_dispatch(self, *given): ...

    def send_combine(self, *_):
        self.sent.append("combine")

    def receive_combine(self, *given): ...


def dispatched(lib, calls, form=0):
    own = make(4, 0, SIZE, H)
    buffer = SimpleNamespace(rank=0, group_size=SIZE, low_latency_mode=True)
    call = low_latency.DispatchCall(
        lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights), M, EXPERTS, None, None, form
    )
    state = low_latency.State()
    return buffer, own, state, low_latency.dispatch(buffer, calls, state, call)


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("name", libraries())
def test_all_memory_is_found_before_anything_is_sent(ranks, name, form):
    def body(_):
        lib = Library(name)
        kind = library.NumPy if name == "numpy" else library.torch_side().Torch
        for after in itertools.count():
            calls = SendingCalls()
            with memory_that_ends(kind, after):
                try:
                    dispatched(lib, calls, form)
                except MemoryError:
                    assert calls.sent == []
                    continue
            break
        assert after == (10 if form else 9)
        assert calls.sent == ["dispatch"]

    ranks(1, body)


def test_a_dispatch_that_found_no_memory_may_be_made_again(ranks):
    def body(comm):
        with made(comm) as buffer:
            c = Calls(buffer)
            if comm.rank == 0:
                with memory_that_ends(library.NumPy):
                    for _ in range(3):
                        with pytest.raises(MemoryError):
                            c.low_latency()
                    # A shape that is refused has no memory either.
                    most = {"num_max_dispatch_tokens_per_rank": 2**31 - 1}
                    refused("the buffer is too small", lambda: c.low_latency(**most))
                    words = "on rank 0: argument num_experts: expected a multiple of 2 ranks, got 7"
                    refused(words, lambda: c.low_latency(num_experts=7))
            for _ in range(3):
                rows, _, handle, _, _ = c.low_latency()
                out, _, _ = buffer.low_latency_combine(rows, c.own.ids, c.own.weights, handle)
                same(out, c.own.x)
            c.good(2)

    ranks(2, body)


def test_a_normal_dispatch_that_found_no_memory_is_given_up(ranks):
    def body(comm):
        with made(comm) as buffer:
            c, calls = Calls(buffer), buffer._host
            begun, given_up = [], []
            begin, abandon = calls.begin, calls.abandon
            calls.begin = lambda which, *given: begin(which, *given) or begun.append(which)
            calls.abandon = lambda which: given_up.append(which) or abandon(which)
            layout = c.layout()
            c.layout = lambda: layout
            if comm.rank == 0:
                with memory_that_ends(library.NumPy), pytest.raises(MemoryError):
                    c.normal()
                assert given_up == begun != []
            else:
                c.normal()
                assert given_up == []
            c.good(2)

    ranks(2, body)


def test_a_place_where_a_gpu_can_not_write_is_refused():
    torch = pytest.importorskip("torch")
    from braid.torch.moe import GpuCalls

    calls, room = GpuCalls.__new__(GpuCalls), torch.zeros(64, dtype=torch.float16)
    checks = library.Checks("low_latency_combine", 1, gpu=0)
    calls.check_place(checks, "out", room)
    refused(
        "low_latency_combine on rank 1: argument out: expected an address that is a multiple of 16",
        lambda: calls.check_place(checks, "out", room[1:33]),
    )


@pytest.mark.parametrize("name", libraries())
def test_the_place_of_a_combine_is_looked_at_before_anything_is_sent(ranks, name):
    def body(_):
        lib, calls = Library(name), SendingCalls()
        buffer, own, state, (x, _, handle, hook) = dispatched(lib, calls)
        hook()
        out = lib.bf16(np.zeros_like(own.x))

        def combine():
            call = low_latency.CombineCall(
                x, lib.of(own.ids), lib.of(own.weights), handle, False, out, None, None
            )
            return low_latency.combine(buffer, calls, state, call)

        def odd(checks, argument, array):
            assert array is out or name == "torch"
            raise checks.refuse(argument, "another address", "this one")

        calls.check_place = odd
        with pytest.raises(braid.InvalidArgument, match="argument out: expected another address"):
            combine()
        assert calls.sent == ["dispatch"]
        del calls.check_place
        combine()
        assert calls.sent == ["dispatch", "combine"]

    ranks(1, body)

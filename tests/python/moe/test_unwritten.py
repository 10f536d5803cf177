"""Calls whose rows nobody moves: nobody believes what was in the memory of their results. What
kernels write there when a call fails is tests/device/moe_check.cc's business.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from moe_data import Library, libraries, make, same

import braid
from braid.moe import ElasticBuffer, library, low_latency
from braid.moe.host import HostCalls

H, M, SIZE, EXPERTS = 256, 24, 2, 8
POISON = 0x5A


class StandingCalls(HostCalls):
    """Takes halves, and moves nothing."""

    def __init__(self):
        super().__init__(None)
        self.sent = []

    def send_dispatch(self, *given):
        self.sent.append(("dispatch", given))

    def receive_dispatch(self, *given): ...

    def send_combine(self, *given):
        self.sent.append(("combine", given))


def spoil(kind):
    """Memory that is not initialised holds anything; here, what addresses must not be made of."""
    empty = kind.empty

    def dirty(self, shape, dtype):
        made = empty(self, shape, dtype)
        self.raw(made)[...] = POISON
        return made

    kind.empty = dirty


def dispatched(lib, calls, state, with_weights):
    own = make(4, 0, SIZE, H)
    buffer = SimpleNamespace(rank=0, group_size=SIZE, low_latency_mode=True)
    weights = lib.of(own.weights)
    call = low_latency.DispatchCall(
        lib.bf16(own.x), lib.of(own.ids), weights if with_weights else None, M, EXPERTS, None,
        None, 0,
    )  # fmt: skip
    return buffer, own, low_latency.dispatch(buffer, calls, state, call)


@pytest.mark.parametrize("name", libraries())
def test_what_a_failed_dispatch_leaves_names_no_row(ranks, name):
    def body(_):
        lib = Library(name)
        spoil(library.NumPy if name == "numpy" else library.torch_side().Torch)
        made = dispatched(lib, StandingCalls(), low_latency.State(), True)
        _, _, (x, count, handle, hook) = made
        hook()
        assert (lib.numpy(handle[0]) != 0).all()  # memory is dirty
        assert tuple(x.shape) == (EXPERTS // SIZE, SIZE * M, H)
        same(count, np.zeros(EXPERTS // SIZE))
        same(handle[1], np.zeros((EXPERTS // SIZE, SIZE)))
        same(handle.copies[0], np.zeros(SIZE))

    ranks(1, body)


@pytest.mark.parametrize("partial", [None, "rank"])
@pytest.mark.parametrize("name", libraries())
def test_a_combine_of_another_shape_of_ids_reads_no_table(ranks, name, partial):
    """On a GPU nobody compares ids: those of another K would be looked up outside of the table."""

    def body(_):
        lib, calls, state = Library(name), StandingCalls(), low_latency.State()
        buffer, own, (x, _, handle, hook) = dispatched(lib, calls, state, True)
        hook()
        tokens, topk = own.ids.shape

        def combine(ids, weights):
            call = low_latency.CombineCall(
                x, lib.of(ids), lib.of(weights), handle, False, None, None, partial
            )
            return low_latency.combine(buffer, calls, state, call)

        for wrong in ((tokens, 2 * topk), (tokens, topk - 1), (tokens - 1, topk)):
            words = (
                f"argument topk_idx: expected [{tokens}, {topk}], as of the dispatch,"
                f" got {list(wrong)}"
            )
            with pytest.raises(braid.InvalidArgument, match=re.escape(words)):
                combine(np.zeros(wrong, np.int64), np.zeros(wrong, np.float32))
        assert [kind for kind, _ in calls.sent] == ["dispatch"]
        combine(own.ids, own.weights)
        assert [kind for kind, _ in calls.sent] == ["dispatch", "combine"]

    ranks(1, body)


@pytest.mark.parametrize("expands", [False, True])
@pytest.mark.parametrize("name", libraries())
def test_a_dispatch_that_fails_when_its_sizes_are_known_leaves_ids_of_nobody(ranks, name, expands):
    def body(comm):
        lib = Library(name)
        spoil(library.NumPy if name == "numpy" else library.torch_side().Torch)
        own = make(4, 0, 1, H)
        with ElasticBuffer(comm, num_max_tokens_per_rank=M, hidden=H) as buffer:
            calls = buffer._inner._host

            def fail_late(begun, arrays, _room):  # as a GPU's kernel does
                calls.abandon(begun)
                arrays[2][:] = -1

            calls.finish = fail_late
            _, ids, _, handle, _ = buffer.dispatch(
                lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights), num_experts=4,
                do_expand=expands,
            )  # fmt: skip
            rows = int(own.is_in.sum())
            assert handle.num_recv_tokens == rows > 0
            if not expands:
                same(ids, np.full((rows, own.ids.shape[1]), -1))
            same(handle.num_unaligned_recv_tokens_per_expert, np.zeros(4))
            same(handle.recv_src_metadata[:, 2:], np.full((rows, own.ids.shape[1]), -1))

    ranks(1, body)

"""A signal's exception in a call that waits: it is raised, whatever comes meanwhile. Ctrl-C
wherever it comes in a call: the buffer goes on.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
from ctrl_c import at_every_instruction

import braid
from braid.moe import Buffer


class _Rung(Exception):  # noqa: N818  the handler's own, no error
    pass


def test_a_handlers_exception_is_raised_though_the_peer_has_come_meanwhile(ranks):
    def body(comm: braid.Comm) -> None:
        tokens, experts = 4, 4
        x = np.ones((tokens, 128), np.float32)
        ids = np.arange(tokens, dtype=np.int64)[:, None] % experts
        with Buffer(comm, 1 << 20, 1 << 20, low_latency_mode=True) as buffer:

            def dispatch() -> None:
                buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)

            def ring(*_: object) -> None:
                time.sleep(1.0)  # the peer comes in this time
                raise _Rung

            dispatch()
            comm.barrier()
            if comm.rank == 0:
                signal.signal(signal.SIGUSR1, ring)
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
                with pytest.raises(_Rung):
                    dispatch()
            else:
                time.sleep(0.8)
                dispatch()

    ranks(2, body)


def interrupt(name, call, works):
    """Ctrl-C anywhere in the call: behind it all works."""
    call()  # what is remembered shortens the next ones
    assert at_every_instruction(call, lambda came: works(f"{name}: {came}")) > 100, name


@pytest.mark.parametrize("tokens", [4, 3000], ids=["one round", "rounds"])
def test_ctrl_c_anywhere_in_a_normal_call_leaves_a_buffer_that_works(ranks, tokens):
    def body(comm: braid.Comm) -> None:
        hidden, experts, topk = 128, 4, 2
        x = np.arange(tokens * hidden, dtype=np.float32).reshape(tokens, hidden)
        ids = np.arange(tokens * topk).reshape(tokens, topk) % experts
        with Buffer(comm, 1 << 18) as buffer:
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(ids, experts)

            def dispatch(handle=None):
                known = {} if handle is None else {"handle": handle}
                laid = {} if handle is not None else {
                    "num_tokens_per_rank": per_rank, "is_token_in_rank": is_in,
                    "num_tokens_per_expert": per_expert, "topk_idx": ids,
                }  # fmt: skip
                return buffer.dispatch(x, **known, **laid)

            _, _, _, _, handle, _ = dispatch()

            def works(after):
                try:
                    got, _, _, _, own, _ = dispatch()
                    back, _, _ = buffer.combine(got, own)
                except braid.Error as error:
                    raise AssertionError(f"after Ctrl-C in {after}: {error}") from error
                assert np.array_equal(got, x)
                assert np.array_equal(back, x)

            calls = {
                "dispatch": dispatch,
                "dispatch with a handle": lambda: dispatch(handle),
                "combine": lambda: buffer.combine(x, handle),
            }
            for name, call in calls.items():
                interrupt(name, call, works)

    ranks(1, body)


def test_ctrl_c_anywhere_in_a_low_latency_call_leaves_a_buffer_that_works(ranks):
    """Where the call has no hook: both halves are over, or none was made."""

    def body(comm: braid.Comm) -> None:
        tokens, hidden, experts, topk = 4, 128, 4, 2
        x = np.arange(tokens * hidden, dtype=np.float32).reshape(tokens, hidden)
        ids = np.arange(tokens * topk).reshape(tokens, topk) % experts
        weights = np.ones((tokens, topk), np.float32)
        with Buffer(comm, 1 << 18, 1 << 20, low_latency_mode=True) as buffer:

            def dispatch():
                return buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)

            def combine(rows, handle):
                return buffer.low_latency_combine(rows, ids, weights, handle)

            def works(after):
                try:
                    rows, _, handle, _, _ = dispatch()
                    out, _, _ = combine(rows, handle)
                except braid.Error as error:
                    raise AssertionError(f"after Ctrl-C in {after}: {error}") from error
                assert np.array_equal(out, topk * x)

            def fresh_combine():
                rows, _, handle, _, _ = dispatch()
                combine(rows, handle)

            interrupt("dispatch", dispatch, works)
            interrupt("dispatch and combine", fresh_combine, works)

    ranks(1, body)


def test_ctrl_c_in_a_dispatch_does_not_let_a_handle_live_longer(ranks):
    """Its rows may be overwritten by the second dispatch behind it, one that was cut off too."""

    def body(comm: braid.Comm) -> None:
        tokens, experts = 4, 4
        x = np.ones((tokens, 128), np.float32)
        ids = np.arange(tokens, dtype=np.int64)[:, None] % experts
        weights = np.ones((tokens, 1), np.float32)
        with Buffer(comm, 1 << 18, 1 << 20, low_latency_mode=True) as buffer:
            send = buffer._host.send_dispatch

            def dispatch():
                return buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)

            def cut_off(*given):
                send(*given)
                raise KeyboardInterrupt

            rows, _, handle, _, _ = dispatch()
            dispatch()
            buffer._host.send_dispatch = cut_off
            with pytest.raises(KeyboardInterrupt):
                dispatch()
            buffer._host.send_dispatch = send
            with pytest.raises(braid.InvalidArgument, match="one of the last 2 dispatches"):
                buffer.low_latency_combine(rows, ids, weights, handle)

    ranks(1, body)

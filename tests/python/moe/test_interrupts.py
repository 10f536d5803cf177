"""A signal's exception in a call that waits: it is raised, whatever comes meanwhile."""

import os
import signal
import threading
import time

import numpy as np
import pytest

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

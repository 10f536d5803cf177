"""A fork has its parent's buffer, whose windows are memory of both: it is refused, and ends without
a trace.
"""

import os
import signal

import ml_dtypes
import numpy as np
import pytest
from moe_data import make

from braid.errors import InvalidArgument
from braid.moe import Buffer

H, M, EXPERTS = 256, 16, 4
LIMIT_S = 20


def in_fork(body):
    """What body() left as a fork's code: 0 fine, 1 it raised, by a signal where it hung."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(call):
    with pytest.raises(InvalidArgument, match="cannot be used in its fork"):
        call()


@pytest.mark.parametrize("size", [1, 2])
def test_a_fork_uses_no_buffer_and_ends_none(ranks, size):
    def body(comm):
        experts = EXPERTS * size
        hint = Buffer.get_low_latency_rdma_size_hint(M, H, size, experts)
        buffer = Buffer(comm, 1 << 20, hint, low_latency_mode=True)
        own = make(4, comm.rank, size, H)
        x = own.x.astype(ml_dtypes.bfloat16)
        laid = buffer.get_dispatch_layout(own.ids, experts)

        def low():
            return buffer.low_latency_dispatch(x, own.ids, M, experts, use_fp8=False)

        def normal():
            return buffer.dispatch(
                own.x, None, laid[0], None, laid[3], laid[2], own.ids, own.weights
            )

        rows, _, handle, _, _ = low()

        def child():
            refused(low)
            refused(normal)
            refused(lambda: buffer.low_latency_combine(rows, own.ids, own.weights, handle))
            buffer.destroy()
            buffer.destroy()

        code = in_fork(child)
        back = buffer.low_latency_combine(rows, own.ids, own.weights, handle)[0]
        got = normal()
        summed = buffer.combine(got[0], got[4])[0]
        buffer.destroy()
        return code, np.isfinite(back.astype(np.float32)).all(), len(summed)

    for code, is_finite, tokens in ranks(size, body):
        assert (code, is_finite) == (0, True)
        assert tokens <= M

"""The sequential way by addresses, on host memory that passes for a GPU's: the same bits as by the
comm's own calls.
"""

import importlib.util
from functools import partial

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

NAMES = {"AG_GEMM": "all_gather", "GEMM_RS": "reduce_scatter", "GEMM_AR": "all_reduce"}


def normal(seed, *shape, dtype):
    import torch

    torch.set_num_threads(1)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _tensors(comm, dtype, layout):
    x = normal(comm.rank, 8, 16, dtype=dtype)
    w = normal(10 + comm.rank, *((24, 16) if layout == "nk" else (16, 24)), dtype=dtype)
    return x, w, normal(20, 24, dtype=dtype)


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_both_ways_have_the_same_bits(ranks, monkeypatch, dtype, layout):
    def body(comm):
        import torch
        from gpu_tensors import STREAM, pass_for_gpu

        from braid.overlap import sequential
        from braid.overlap.shapes import Op, shape_of

        x, w, bias = _tensors(comm, getattr(torch, dtype), layout)
        wanted = {
            (op, b is None): sequential.run(comm, op, x, w, b, layout == "kn")
            for op in Op
            for b in (None, bias)
        }
        core = pass_for_gpu(monkeypatch)
        gap = torch.zeros(8, 20, dtype=x.dtype)[:, :16].copy_(x)
        leaf = w.t().contiguous().t().clone(memory_format=torch.preserve_format).requires_grad_()
        for op in Op:
            shape = shape_of(op, x, w, None, layout, comm.size)
            ready = sequential.on_gpu(shape, 0)
            for b in (None, bias):
                for xs, ws in ((x, w), (gap, w), (torch._neg_view(-x), leaf)):
                    core.calls.clear()
                    made = ready.run(comm, xs, ws, b)
                    assert core.calls == [(NAMES[op.name], STREAM)]
                    assert torch.equal(made, wanted[op, b is None]), op
                    assert not made.requires_grad

    ranks(2, body)


def test_behind_calls_that_are_under_way_it_waits_for_its_turn(ranks, monkeypatch):
    def body(comm):
        import numpy as np
        import torch
        from gpu_tensors import pass_for_gpu

        from braid.overlap import sequential
        from braid.overlap.shapes import Op, shape_of

        x, w, _ = _tensors(comm, torch.bfloat16, "nk")
        core, began = pass_for_gpu(monkeypatch), comm._calls.start
        started = []
        monkeypatch.setattr(
            comm._calls, "start", lambda name, *rest: started.append(name) or began(name, *rest)
        )
        for op in Op:
            message = comm.irecv(np.zeros(1), 1) if comm.rank == 0 else None
            if comm.rank == 1:
                comm.send(np.zeros(1), 0)
            call = partial(sequential.on_gpu(shape_of(op, x, w, None, "nk", 2), 0).run, comm, x, w)
            call(None)
            if message is not None:
                message.wait()
        assert [name for name, _ in core.calls] == [NAMES[op.name] for op in Op]
        return started

    first, second = ranks(2, body)
    assert set(first) <= set(NAMES.values())
    assert second == []


def test_under_autocast_sums_are_of_its_type(ranks, monkeypatch):
    """As by the comm's own calls: the product is of it."""

    def body(comm):
        import torch
        from gpu_tensors import pass_for_gpu

        from braid.overlap import sequential
        from braid.overlap.shapes import Op, shape_of

        x, w, _ = _tensors(comm, torch.float16, "nk")
        core = pass_for_gpu(monkeypatch)
        for op in (Op.GEMM_RS, Op.GEMM_AR):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                wanted = sequential.run(comm, op, x, w, None, False)
                made = sequential.on_gpu(shape_of(op, x, w, None, "nk", 2), 0).run(comm, x, w, None)
            assert made.dtype == wanted.dtype == torch.bfloat16
            assert torch.equal(made, wanted)
        assert len(core.calls) == 4

    ranks(2, body)


def test_a_closed_comm_is_said_to_be(ranks, monkeypatch):
    def body(comm):
        import torch
        from gpu_tensors import pass_for_gpu

        import braid
        from braid.overlap import sequential
        from braid.overlap.shapes import Op, shape_of

        x, w, _ = _tensors(comm, torch.float16, "nk")
        pass_for_gpu(monkeypatch)
        comm.close()
        for op in Op:
            with pytest.raises(braid.InvalidArgument, match="closed"):
                sequential.on_gpu(shape_of(op, x, w, None, "nk", 2), 0).run(comm, x, w, None)

    ranks(2, body)

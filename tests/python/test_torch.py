"""Torch CPU tensors: in, out, every type that torch and braid share.

Skipped where torch is not installed.
"""

import importlib.util

import numpy as np
import pytest

import braid

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


def test_tensors_in_and_out(ranks):
    def body(comm):
        import torch

        n, r = comm.size, comm.rank
        for name in (
            "bfloat16",
            "float16",
            "float32",
            "float64",
            "int8",
            "uint8",
            "int32",
            "int64",
        ):
            dtype = getattr(torch, name)
            send = (torch.arange(4 * n) + r).to(dtype)
            gathered = comm.all_gather(send)
            assert gathered.dtype == dtype
            assert torch.equal(
                gathered, torch.cat([(torch.arange(4 * n) + i).to(dtype) for i in range(n)])
            )
            total = send.clone()
            assert comm.all_reduce(total) is total
            expected = sum((torch.arange(4 * n) + i).to(dtype) for i in range(n))
            assert torch.equal(total, expected)
            assert torch.equal(comm.reduce_scatter(send), expected[4 * r : 4 * r + 4])
            assert comm.all_to_all(send).dtype == dtype
            assert torch.equal(comm.broadcast(send.clone(), 1), (torch.arange(4 * n) + 1).to(dtype))

    ranks(2, body)


def test_narrow_types(ranks):
    def body(comm):
        import torch

        exports_float8 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)  # DLPack
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2) if exports_float8 else ():
            values = torch.tensor([0.5, 1.0, 2.0, -4.0]).to(dtype)
            total = comm.all_reduce(values.clone())
            assert total.dtype == dtype
            assert total.float().tolist() == [1.0, 2.0, 4.0, -8.0]
        flags = torch.tensor([comm.rank == 0, True])
        assert comm.all_gather(flags).tolist() == [True, True, False, True]
        pairs = torch.full((1,), complex(comm.rank, 1))
        assert comm.all_gather(pairs).tolist() == [1j, 1 + 1j]
        with pytest.raises(braid.InvalidArgument, match="complex64"):
            comm.all_reduce(pairs)

    ranks(2, body)


def test_refused_tensors(ranks):
    def body(comm):
        import torch

        with pytest.raises(braid.InvalidArgument, match="contiguous"):
            comm.all_reduce(torch.ones(3, 2).t())
        with pytest.raises(braid.InvalidArgument, match=r"detach\(\)"):
            comm.all_reduce(torch.ones(3, requires_grad=True))
        with pytest.raises(braid.InvalidArgument, match="meta"):
            comm.all_reduce(torch.ones(3, device="meta"))
        negated = torch.tensor(1 + 2j).conj().imag  # -2, and the bytes are those of 2
        for call in (comm.all_gather, comm.all_reduce, lambda t: comm.broadcast(t, 0)):
            with pytest.raises(braid.InvalidArgument, match=r"resolve_neg\(\)"):
                call(negated)
        assert comm.all_reduce(negated.resolve_neg()).item() == -2
        with pytest.raises(braid.InvalidArgument, match="float64 like send, found float32"):
            comm.all_gather(torch.ones(3, dtype=torch.float64), np.ones(3, np.float32))
        mixed = comm.all_gather(torch.ones(3), np.zeros(3, np.float32))
        assert mixed.tolist() == [1, 1, 1]

    ranks(1, body)

"""Products and collectives in chunks: the numbers of the sequential way, in any order of the two
lines of work that events allow. Between CPUs, where both lines are one; on GPUs it is
tests/gpu/overlap.py's.
"""

import importlib.util
from contextlib import nullcontext

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


class OneLine:
    """Work is done as it is enqueued; told what was waited for."""

    def __init__(self):
        self.began = self.joined = 0
        self.events, self.waited = 0, []

    def begin(self):
        self.began += 1

    def beside(self):
        return nullcontext()

    def told(self):
        self.events += 1
        return self.events

    def wait(self, event):
        self.waited.append(event)

    def join(self):
        self.joined += 1


def whole_numbers(seed, *shape):
    """Small, so that every sum is exact whatever its order."""
    import torch

    return torch.from_numpy(np.random.default_rng(seed).integers(-4, 5, shape).astype("f4"))


def check_op(comm, op, chunks):
    import torch

    from braid.overlap import chunked, sequential
    from braid.overlap.shapes import Op

    rows = 128 * chunks * (1 if op is Op.AG_GEMM else comm.size)
    x, w = whole_numbers(comm.rank, rows, 24), whole_numbers(10 + comm.rank, 40, 24)
    bias = whole_numbers(99, 40)
    assert chunked.fits(op, rows, comm.size, chunks)
    for is_kn in (False, True):
        weights = w.t().contiguous() if is_kn else w
        lane = OneLine()
        found = chunked.run(comm, op, x, weights, bias, is_kn, chunks, lane)
        wanted = sequential.run(comm, op, x, weights, bias, is_kn)
        assert found.shape == wanted.shape
        assert torch.equal(found, wanted)
        assert lane.began == lane.joined == 1
        assert lane.waited == list(range(1, chunks + 1))


@pytest.mark.parametrize("size", [2, 3])
def test_chunks_give_the_numbers_of_the_whole(ranks, size):
    def body(comm):
        from braid.overlap.shapes import Op

        for op in Op:
            for chunks in (1, 2, 4):
                check_op(comm, op, chunks)
        return True

    assert ranks(size, body) == [True] * size


def test_chunks_are_alike_and_long_enough():
    from braid.overlap.chunked import fits
    from braid.overlap.shapes import Op

    assert fits(Op.AG_GEMM, 256, 8, 2)
    assert not fits(Op.AG_GEMM, 255, 8, 2)
    assert not fits(Op.AG_GEMM, 254, 8, 2)
    assert not fits(Op.GEMM_RS, 1024, 8, 2)
    assert fits(Op.GEMM_RS, 2048, 8, 2)
    assert fits(Op.GEMM_AR, 512, 8, 4)


def test_gpus_without_our_kernels_have_chunks():
    import torch

    from braid.overlap.shapes import Op, Shape
    from braid.overlap.tuner import candidates

    shape = Shape(Op.GEMM_RS, 8192, 4096, 4096, False, torch.float32, 4)
    ways = [str(way) for way in candidates(shape, has_kernels=False)]
    assert ways == ["sequential", "in chunks, 2", "in chunks, 4"]

"""Which way a call goes must not hang on what one rank alone can know: where its elements lie."""

import importlib.util
from functools import cache

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

ROWS, COLUMNS, DEPTH = 8, 24, 16


@pytest.fixture
def given_to_kernels(monkeypatch):
    """What calls give to kernels on a machine that says it has them."""
    from overlap_kernels import install

    from braid.overlap import sequential

    monkeypatch.setattr(sequential, "run", lambda *_: pytest.fail("sequential"))
    return install(monkeypatch)


@cache
def _class():
    import torch

    return type("OnGpu", (torch.Tensor,), {"is_cuda": True})


def _on_gpu(tensor):
    """Says that it is on one."""
    return tensor.as_subclass(_class())


def _places(shape):
    """Equal numbers at a multiple of 16 bytes, two bytes behind one, with a gap, transposed, and
    negated when they are read.
    """
    import torch

    count = int(torch.Size(shape).numel())
    numbers = torch.arange(float(count)).to(torch.bfloat16).view(shape)
    behind = torch.zeros(count + 1, dtype=torch.bfloat16)[1:].view(shape)
    gap = torch.zeros(*shape[:-1], shape[-1] + 3, dtype=torch.bfloat16)[..., : shape[-1]]
    across = torch.zeros(*reversed(shape), dtype=torch.bfloat16).permute(*range(len(shape))[::-1])
    places = {"even": numbers, "behind": behind, "gap": gap, "across": across}
    for place in places.values():
        place.copy_(numbers)
    return places | {"negated": torch._neg_view(-numbers)}


@pytest.mark.filterwarnings("ignore:.*gradients end here")
@pytest.mark.parametrize("which", ["x", "w", "bias"])
@pytest.mark.parametrize("place", ["even", "behind", "gap", "across", "negated"])
@pytest.mark.parametrize("call", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_kernels_take_a_tensor_wherever_it_lies(given_to_kernels, call, which, place):
    import torch
    from overlap_kernels import Comm

    from braid import overlap

    shapes = {"x": (ROWS, DEPTH), "w": (COLUMNS, DEPTH), "bias": (COLUMNS,)}
    tensors = {name: _on_gpu(_places(shape)["even"]) for name, shape in shapes.items()}
    wanted = dict(tensors)
    tensors[which] = _on_gpu(_places(shapes[which])[place]).requires_grad_(which == "w")
    comm = Comm()
    for _ in range(2):  # the second is looked up
        out = getattr(overlap, call)(tensors["x"], tensors["w"], comm, bias=tensors["bias"])
        given = given_to_kernels.pop()
        assert (given.c, given.stream, given.rank) == (out.data_ptr(), 77, 1)
        assert not out.requires_grad
        for name in shapes:
            assert torch.equal(getattr(given, name), wanted[name].as_subclass(torch.Tensor))
            assert given.at[name] % 16 == 0
            # What lies well already is not copied.
            if name != which or place == "even":
                assert given.at[name] == tensors[name].data_ptr()
    assert overlap.way_of(call, tensors["x"], tensors["w"], Comm()) == "not measured"


def test_dtype_and_shape_are_reasons(given_to_kernels):
    from braid.overlap.shapes import Op, shape_of, why_sequential

    x, w = (_on_gpu(_places(shape)["even"]) for shape in ((ROWS, DEPTH), (COLUMNS, DEPTH)))

    def why(x, w):
        return why_sequential(shape_of(Op.AG_GEMM, x, w, None, "nk", 2), x, w)

    assert why(x, w) == ""
    assert why(x.float(), w.float()) == "torch.float32"
    assert "no multiples of 8" in why(x[:, :15], w[:, :15])
    assert given_to_kernels == []

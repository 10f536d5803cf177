"""The three operations and the layers on the CPU, where they go the sequential way.

Skipped where torch is not installed.
"""

import importlib.util

import pytest

import braid

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

M, N, K = 12, 20, 16  # rows of all ranks


def _whole(seed, *shape):
    """The same on every rank, and other at every place: small integers, which all types hold."""
    import torch

    torch.set_num_threads(1)
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=made)


def test_operations_are_what_they_say(ranks):
    def body(comm):
        import torch

        from braid import overlap

        n, r = comm.size, comm.rank
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x, bias = _whole(1, M, K).to(dtype), _whole(3, N).to(dtype)
            ws = [_whole(10 + i, N, K).to(dtype) for i in range(n)]
            xs = [_whole(20 + i, M, K).to(dtype) for i in range(n)]
            mine = x[r * M // n : (r + 1) * M // n]
            for layout, w in (("nk", ws[r]), ("kn", ws[r].t().contiguous())):
                got = overlap.ag_gemm(mine, w, comm, bias=bias, layout=layout)
                assert torch.equal(got, x @ ws[r].t() + bias)
                wanted = sum(a.float() @ w_.float().t() for a, w_ in zip(xs, ws, strict=True))
                wanted = (wanted + bias.float()).to(dtype)
                got = overlap.gemm_ar(xs[r], w, comm, bias=bias, layout=layout)
                assert torch.equal(got, wanted)
                got = overlap.gemm_rs(xs[r], w, comm, bias=bias, layout=layout)
                assert torch.equal(got, wanted[r * M // n : (r + 1) * M // n])
        assert overlap.way_of("gemm_rs", xs[r], ws[r], comm) == "sequential: not on a GPU"
        for wrong in ("rs_gemm", "", 1, None):
            with pytest.raises(braid.InvalidArgument, match="ag_gemm, gemm_rs, gemm_ar"):
                overlap.way_of(wrong, xs[r], ws[r], comm)

    ranks(2, body)
    ranks(3, body)


@pytest.mark.parametrize("is_cut", [True, False])
def test_layers_have_the_gradients_of_whole_ones(ranks, is_cut):
    def body(comm):
        import torch

        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        n, r = comm.size, comm.rank
        x = _whole(1, 6, 2, K).double() / 4
        up, down = _whole(2, 4 * K, K).double() / 8, _whole(3, K, 4 * K).double() / 8
        up_bias, down_bias = _whole(4, 4 * K).double(), _whole(5, K).double()
        weigh = _whole(6, 6, 2, K).double()

        leaves = [t.clone().requires_grad_() for t in (x, up, up_bias, down, down_bias)]
        linear = torch.nn.functional.linear
        hidden = torch.nn.functional.gelu(linear(leaves[0], leaves[1], leaves[2]))
        wanted = linear(hidden, leaves[3], leaves[4])
        (wanted * weigh).sum().backward()

        def cut(t, axis):
            return t.chunk(n, axis)[r].contiguous()

        options = {"sequence_parallel": is_cut, "dtype": torch.float64}
        first = ColumnParallelLinear(K, 4 * K, comm, **options)
        second = RowParallelLinear(4 * K, K, comm, **options)
        with torch.no_grad():
            first.weight.copy_(cut(up, 0)), first.bias.copy_(cut(up_bias, 0))
            second.weight.copy_(cut(down, 1)), second.bias.copy_(down_bias)
        mine = (cut(x, 0) if is_cut else x.clone()).requires_grad_()
        y = second(torch.nn.functional.gelu(first(mine)))
        assert torch.allclose(y, cut(wanted, 0) if is_cut else wanted)
        (y * (cut(weigh, 0) if is_cut else weigh)).sum().backward()

        grads = [leaf.grad for leaf in leaves]
        assert torch.allclose(mine.grad, cut(grads[0], 0) if is_cut else grads[0])
        assert torch.allclose(first.weight.grad, cut(grads[1], 0))
        assert torch.allclose(first.bias.grad, cut(grads[2], 0))
        assert torch.allclose(second.weight.grad, cut(grads[3], 1))
        assert torch.allclose(second.bias.grad, grads[4])

    ranks(2, body)


def test_bad_input_is_named(ranks):
    def body(comm):
        import torch

        from braid import overlap
        from braid.errors import InvalidArgument
        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        x, w = torch.ones(4, 8), torch.ones(6, 8)
        for words, call in {
            "x has 8 columns, w as 'kn' a depth of 6": lambda: overlap.ag_gemm(
                x, w, comm, layout="kn"
            ),
            "layout 'mk'": lambda: overlap.ag_gemm(x, w, comm, layout="mk"),
            "x of 1 and w of 2 dimensions": lambda: overlap.gemm_ar(x[0], w, comm),
            "all tensors have one dtype": lambda: overlap.gemm_ar(x.half(), w, comm),
            "torch.int64": lambda: overlap.gemm_ar(x.long(), w.long(), comm),
            "bias of shape (5,); (6,)": lambda: overlap.gemm_ar(x, w, comm, bias=torch.ones(5)),
            "3 rows do not divide among 2 ranks": lambda: overlap.gemm_rs(x[:3], w, comm),
            "nothing to do": lambda: overlap.gemm_rs(x[:0], w, comm),
            "out_features 7 do not divide": lambda: ColumnParallelLinear(8, 7, comm),
            "in_features 7 do not divide": lambda: RowParallelLinear(7, 8, comm),
        }.items():
            with pytest.raises(InvalidArgument) as error:
                call()
            assert words in str(error.value), str(error.value)

    ranks(2, body)


def test_layers_where_there_is_no_autocast(ranks):
    """On the meta device, where models are tried for their shapes."""

    def body(comm):
        import torch

        from braid.torch.nn import ColumnParallelLinear

        layer = ColumnParallelLinear(8, 16, comm, sequence_parallel=False).to("meta")
        assert layer(torch.empty(3, 8, device="meta")).shape == (3, 16 // comm.size)

    ranks(2, body)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16"])
def test_layers_under_autocast(ranks, is_cut, x_dtype):
    """In autocast's type, as torch's own layer; gradients in the types of what was given."""

    def body(comm):
        import torch

        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        n, r, dtype = comm.size, comm.rank, getattr(torch, x_dtype)
        whole = _whole(1, 6, 2, K).to(dtype)
        for kind in (ColumnParallelLinear, RowParallelLinear):
            is_column = kind is ColumnParallelLinear
            layer = kind(K, 2 * K, comm, sequence_parallel=is_cut)
            weight, bias = _whole(2, 2 * K, K).float(), _whole(3, 2 * K).float()
            leaves = [t.clone().requires_grad_() for t in (whole, weight, bias)]
            weigh = _whole(4, 6, 2, 2 * K).bfloat16()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                wanted = torch.nn.functional.linear(*leaves)
            (wanted * weigh).sum().backward()

            def cut(t, axis):
                return t.chunk(n, axis)[r].contiguous()

            with torch.no_grad():
                layer.weight.copy_(cut(weight, 0 if is_column else 1))
                layer.bias.copy_(cut(bias, 0) if is_column else bias)
            x = whole if is_column else cut(whole, 2)
            x = (cut(x, 0) if is_cut and is_column else x.clone()).requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = layer(x)
            part = cut(weigh, 2) if is_column else cut(weigh, 0) if is_cut else weigh
            (y * part).sum().backward()
            assert y.dtype == wanted.dtype == torch.bfloat16
            found = cut(wanted, 2) if is_column else cut(wanted, 0) if is_cut else wanted
            assert torch.equal(y, found)
            assert (x.grad.dtype, layer.weight.grad.dtype) == (dtype, torch.float32)
            assert layer.bias.grad.dtype == torch.float32
            grads = [leaf.grad for leaf in leaves]
            mine = grads[0] if is_column else cut(grads[0], 2)
            mine = cut(mine, 0) if is_cut and is_column else mine
            near = {"rtol": 0.02, "atol": 2.0}  # bfloat16 sums of sums, summed in another order
            assert torch.allclose(x.grad, mine, **near)
            axis = 0 if is_column else 1
            assert torch.allclose(layer.weight.grad, cut(grads[1], axis), **near)
            bias_grad = cut(grads[2], 0) if is_column else grads[2]
            assert torch.allclose(layer.bias.grad, bias_grad, **near)
            with torch.autocast("cpu", dtype=torch.bfloat16):  # which leaves float64 alone
                assert layer.double()(x.detach().double()).dtype == torch.float64

    ranks(2, body)


def test_layers_name_the_axis_that_does_not_fit(ranks):
    """Before anything is sent: the next call is in order."""

    def body(comm):
        import torch

        from braid.errors import InvalidArgument
        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        for is_cut in (True, False):
            column = ColumnParallelLinear(8, 6, comm, sequence_parallel=is_cut)
            row = RowParallelLinear(16, 6, comm, sequence_parallel=is_cut)
            for layer in (column, row):
                wrong = {
                    "axis 0 is empty": (0, 2, 8),
                    "axis 1 is empty": (2, 0, 8),
                    "[rows, ..., features]": (8,),
                    "8 on the last axis": (4, 7),
                }
                if is_cut and layer is row:
                    wrong["3 on the first axis do not divide among 2 ranks"] = (3, 2, 8)
                    wrong["1 on the first axis do not divide among 2 ranks"] = (1, 4, 8)
                for words, shape in wrong.items():
                    if comm.rank == 0:
                        with pytest.raises(InvalidArgument) as error:
                            layer(torch.ones(shape))
                        assert words in str(error.value), str(error.value)
                        assert type(layer).__name__ in str(error.value)
            assert column(torch.ones(3, 1, 8)).shape == (6 if is_cut else 3, 1, 3)
            assert row(torch.ones(4, 3, 8)).shape == (2 if is_cut else 4, 3, 6)

    ranks(2, body)


def test_ranks_that_mean_other_rows_get_an_error(ranks):
    def body(comm):
        import torch

        from braid import overlap
        from braid.errors import Error

        with pytest.raises(Error):
            overlap.ag_gemm(torch.ones(4 + comm.rank, 8), torch.ones(6, 8), comm)

    ranks(2, body)

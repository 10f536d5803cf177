"""Arguments that are something else altogether: an error of braid's that names the function, the
argument, what was asked for and what was found, before anything is sent.
"""

import importlib.util

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


class Liar:
    """Has what tensors have, and other things in it."""

    shape, dtype, device, rank, size = "x", "float32", "cpu", 0, 2


NO_TENSORS = [
    [], [[1.0] * 8] * 4, (), "x", b"x", "\ud800", 1, 1.5, object(), object, Liar(), range(3),
    np.ones((4, 8), np.float32), np.ones(6),
]  # fmt: skip
NO_COMMS = [None, *NO_TENSORS]
NO_WORDS = [
    None,
    [],
    {},
    1,
    1.5,
    object(),
    np.array(["nk", "kn"]),
    np.ones(3),
    "",
    "\ud800",
    Liar(),
]


def refused(words, call, *given, **named):
    from braid.errors import InvalidArgument

    with pytest.raises(InvalidArgument) as error:
        call(*given, **named)
    assert words in str(error.value), str(error.value)
    # Nor is it shown what went wrong on the way to finding out.
    assert error.value.__suppress_context__ or error.value.__context__ is None


def no_tensor(value):
    return f"asked for a torch.Tensor, {found(value)}"


def no_comm(value):
    return f"asked for a braid.Comm, {found(value)}"


def found(value):
    return "found None" if value is None else f"found {type(value).__name__}"


def test_operations_name_what_is_no_tensor_and_no_comm(ranks):
    """Also where a call with the right ones is known."""

    def body(comm):
        import torch

        from braid import overlap

        torch.set_num_threads(1)
        x, w, bias = torch.ones(4, 8), torch.ones(6, 8), torch.ones(6)
        for call in (overlap.ag_gemm, overlap.gemm_rs, overlap.gemm_ar):
            name = call.__name__
            of_x = "x_shard" if call is overlap.ag_gemm else "x"
            for _ in range(2):
                for wrong in (None, *NO_TENSORS):
                    of_wrong = no_tensor(wrong)
                    refused(f"{name}: argument {of_x}: {of_wrong}", call, wrong, w, comm)
                    refused(f"{name}: argument {of_x}: {of_wrong}", call, wrong, wrong, comm)
                    refused(f"{name}: argument w: {of_wrong}", call, x, wrong, comm)
                for wrong in NO_TENSORS:
                    words = f"{name}: argument bias: {no_tensor(wrong)}"
                    refused(words, call, x, w, comm, bias=wrong)
                for wrong in (*NO_COMMS, x):
                    refused(f"{name}: argument comm: {no_comm(wrong)}", call, x, w, wrong)
                for wrong in NO_WORDS:
                    refused("'nk' or 'kn'", call, x, w, comm, layout=wrong)
                assert call(x, w, comm, bias=bias)[0, 0] in (9.0, 17.0)

    ranks(2, body)


def test_way_of_names_itself(ranks):
    def body(comm):
        import torch

        from braid.overlap import way_of

        x, w = torch.ones(4, 8), torch.ones(6, 8)
        for wrong in (None, *NO_TENSORS):
            refused(f"way_of: argument x: {no_tensor(wrong)}", way_of, "gemm_ar", wrong, w, comm)
            refused(f"way_of: argument w: {no_tensor(wrong)}", way_of, "gemm_ar", x, wrong, comm)
        for wrong in (*NO_COMMS, x):
            refused(f"way_of: argument comm: {no_comm(wrong)}", way_of, "gemm_ar", x, w, wrong)
        for wrong in NO_WORDS:
            refused("ag_gemm, gemm_rs, gemm_ar", way_of, wrong, x, w, comm)
            refused("'nk' or 'kn'", way_of, "gemm_ar", x, w, comm, layout=wrong)

    ranks(1, body)


def test_a_bias_that_does_not_fit_is_named(ranks):
    def body(comm):
        import torch

        from braid import overlap

        x, w, bias = torch.ones(4, 8), torch.ones(6, 8), torch.ones(6)
        for call in (overlap.ag_gemm, overlap.gemm_rs, overlap.gemm_ar):
            for wrong, words in (
                (bias.half(), "x is torch.float32, bias torch.float16; all tensors have one dtype"),
                (bias.to("meta"), "x on cpu, bias on meta; one device"),
                (torch.tensor(1.0), "bias of shape (); (6,)"),
            ):
                refused(f"{call.__name__}: {words}", call, x, w, comm, bias=wrong)

    ranks(1, body)


def test_layers_name_what_they_cannot_be_made_of(ranks):
    def body(comm):
        import torch

        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        no_numbers = [None, [], "8", 8.0, object(), np.ones(2), torch.ones(2), Liar()]
        several = [np.ones(2), torch.ones(2)]
        no_dtypes = ["float32", 1, np.float32, torch.ones(1), []]
        good = {"in_features": 8, "out_features": 6, "comm": comm}
        for kind in (ColumnParallelLinear, RowParallelLinear):
            for argument, expected, values in (
                ("in_features", "a whole number", no_numbers),
                ("out_features", "a whole number", no_numbers),
                ("comm", "a braid.Comm", [*NO_COMMS, torch.ones(2)]),
                ("bias", "True or False", several),
                ("sequence_parallel", "True or False", several),
                ("device", "a torch.device or its name", [1.5, [], object(), torch.ones(1)]),
                ("dtype", "a torch.dtype", no_dtypes),
            ):
                of = f"{kind.__name__}: argument {argument}: asked for"
                for wrong in values:
                    words = f"{of} {expected}, {found(wrong)}"
                    refused(words, kind, **{**good, argument: wrong})
            for argument in ("in_features", "out_features"):
                for number in (0, -8, 2**31, 2**70):
                    words = f"argument {argument}: asked for 1 to 2147483647, found {number}"
                    refused(words, kind, **{**good, argument: number})
            for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
                refused(f"bfloat16 or float16, found {dtype}", kind, **good, dtype=dtype)
            layer = kind(np.int64(8), 6, comm, bias=np.bool_(True), device="cpu", dtype=torch.half)
            assert layer.weight.dtype == torch.half

    ranks(2, body)


def test_layers_name_an_input_and_a_comm_that_are_none(ranks):
    def body(comm):
        import torch

        from braid.torch.nn import ColumnParallelLinear, RowParallelLinear

        torch.set_num_threads(1)
        for kind in (ColumnParallelLinear, RowParallelLinear):
            for is_cut in (True, False):
                layer = kind(8, 6, comm, sequence_parallel=is_cut)
                for wrong in (None, *NO_TENSORS):
                    refused(f"{kind.__name__}: argument x: {no_tensor(wrong)}", layer, wrong)
                for wrong in NO_COMMS:
                    words = f"{kind.__name__}: argument comm: {no_comm(wrong)}"
                    refused(words, setattr, layer, "comm", wrong)
                assert layer.comm is comm
                layer(torch.ones(4, 8 if kind is ColumnParallelLinear else 4))

    ranks(2, body)

"""A call is checked once, and again wherever a check could answer something else."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


@pytest.fixture
def looked(monkeypatch):
    """How often calls have looked closely; kernels take them all."""
    from overlap_kernels import install

    from braid.overlap import operations

    looked = []

    def why(_shape, *_tensors):
        looked.append(1)
        return ""

    install(monkeypatch)
    monkeypatch.setattr(operations, "why_sequential", why)
    return looked


def zeros(*shape, dtype="bfloat16", device="cpu"):
    import torch

    return torch.zeros(*shape, dtype=getattr(torch, dtype), device=device)


def test_a_second_call_is_looked_up(looked):
    import torch
    from overlap_kernels import Comm

    from braid.overlap import gemm_rs

    comm, w = Comm(), zeros(24, 16)
    for x in (zeros(8, 16), zeros(8, 16) + 1, zeros(8, 32)[:, :16], zeros(16, 8).t()):
        out = gemm_rs(x, w, comm)
        assert (out.shape, out.dtype) == ((4, 24), torch.bfloat16)
    assert len(looked) == 1


def test_whatever_checks_look_at_is_looked_at_again(looked):
    from overlap_kernels import Comm

    from braid.overlap import gemm_ar, gemm_rs

    comm, x, w, bias = Comm(), zeros(8, 16), zeros(24, 16), zeros(24)
    calls = [
        lambda: gemm_rs(x, w, comm),
        lambda: gemm_ar(x, w, comm),
        lambda: gemm_rs(x, w, Comm(4)),
        lambda: gemm_rs(x, w, comm, bias=bias),
        lambda: gemm_rs(x, zeros(16, 24), comm, layout="kn"),
        lambda: gemm_rs(zeros(16, 16), w, comm),
        lambda: gemm_rs(x.half(), w.half(), comm),
    ]
    for call in calls:
        call()
    assert len(looked) == len(calls)


def test_no_wrong_call_passes_for_one_that_went_well(looked):
    """One thing is wrong in each, and once more."""
    from overlap_kernels import Comm

    from braid.errors import InvalidArgument
    from braid.overlap import ag_gemm, gemm_ar, gemm_rs

    comm, x, w, bias = Comm(), zeros(16, 16), zeros(16, 16), zeros(16)
    for call in (ag_gemm, gemm_rs, gemm_ar):
        call(x, w, comm)
        call(x, w, comm, bias=bias)
        call(x, w, comm, layout="kn")
        wrong = {
            "layout 'mk'": lambda call=call: call(x, w, comm, layout="mk"),
            "x of 1 and": lambda call=call: call(x[0], w, comm),
            "w of 3 dimensions": lambda call=call: call(x, w[None], comm),
            "x has 8 columns": lambda call=call: call(x[:, :8], w, comm),
            "a depth of 8": lambda call=call: call(x, w[:, :8], comm),
            "all tensors have one dtype": lambda call=call: call(x, w.half(), comm),
            "x is torch.float16": lambda call=call: call(x.half(), w, comm),
            "one dtype": lambda call=call: call(x, w, comm, bias=bias.float()),
            "x on meta": lambda call=call: call(x.to("meta"), w, comm),
            "w on meta": lambda call=call: call(x, w.to("meta"), comm),
            "one device": lambda call=call: call(x, w, comm, bias=bias.to("meta")),
            "bias of shape (8,)": lambda call=call: call(x, w, comm, bias=bias[:8]),
            "bias of shape (1, 16)": lambda call=call: call(x, w, comm, bias=bias[None]),
            "nothing to do": lambda call=call: call(x[:0], w, comm),
        }
        if call is gemm_rs:
            wrong["15 rows do not divide"] = lambda: gemm_rs(x[:15], w, comm)
        before = len(looked)
        for words, each in wrong.items():
            for _ in range(2):
                with pytest.raises(InvalidArgument) as error:
                    each()
                assert words in str(error.value), str(error.value)
        assert len(looked) == before


def test_many_shapes_are_not_kept_for_ever(looked, monkeypatch):
    from overlap_kernels import Comm

    from braid.overlap import ag_gemm, operations

    monkeypatch.setattr(operations, "_MOST_READY", 3)
    comm = Comm()
    for rows in range(1, 9):
        ag_gemm(zeros(rows, 16), zeros(24, 16), comm)
        assert len(operations._ready_of(comm)) <= 3
    assert len(looked) == 8


@pytest.mark.usefixtures("looked")
def test_another_way_holds_from_the_next_call_on(monkeypatch):
    from overlap_kernels import Comm, install

    from braid.overlap import ag_gemm, operations
    from braid.overlap.tuner import FORMS, Way

    given, comm = install(monkeypatch), Comm()
    x, w = zeros(8, 16), zeros(24, 16)
    ag_gemm(x, w, comm)
    kernels = operations._kernels_of(comm)
    ((shape, way),) = kernels.ways.items()
    for form in ("128x128 beside", way.form):
        kernels.set_way(shape, Way(form, 4))
        ag_gemm(x, w, comm)
        assert given[-1].form == FORMS[form]


@pytest.mark.filterwarnings("ignore:gemm_ar. gradients end here")
def test_rows_that_ranks_do_not_divide_are_padded(monkeypatch):
    import torch
    from overlap_kernels import WAY, Comm, install

    from braid.overlap import gemm_ar, operations

    given = install(monkeypatch)
    monkeypatch.setattr(operations, "why_sequential", lambda *_: "")
    comm, w = Comm(), zeros(24, 16)
    x = torch.ones(7, 16).bfloat16().requires_grad_()
    out = gemm_ar(x, w, comm)
    assert (out.shape, out.requires_grad) == ((7, 24), False)
    assert (given[0].shard_rows, given[0].call) == (4, 2)
    assert torch.equal(given[0].x, torch.cat([torch.ones(7, 16), torch.zeros(1, 16)]).bfloat16())
    (shape,) = operations._kernels_of(comm).ways
    operations._kernels_of(comm).set_way(shape, type(WAY)("128x128 beside", 4, exchanges=True))
    assert gemm_ar(x, w, comm).shape == (7, 24)
    assert (given[1].shard_rows, given[1].call, given[1].at["x"]) == (7, 3, x.data_ptr())


def test_a_shape_s_first_call_warns_of_gradients_that_end(ranks):
    def body(comm):
        import warnings

        import torch

        from braid.overlap import ag_gemm

        x, w = torch.ones(4, 16), torch.ones(8, 16).requires_grad_()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with torch.no_grad():
                ag_gemm(x[:2], w, comm)
            assert not told
            for _ in range(2):
                assert not ag_gemm(x, w, comm).requires_grad
        (one,) = told
        assert str(one.message).startswith("ag_gemm: gradients end here")
        assert one.filename == __file__

    ranks(2, body)


def test_a_closed_comm_is_said_to_be(ranks):
    """Also of a shape that has had its calls."""

    def body(comm):
        import torch

        import braid
        from braid import overlap

        torch.set_num_threads(1)
        x, w = zeros(8, 16), zeros(24, 16)
        calls = overlap.ag_gemm, overlap.gemm_rs, overlap.gemm_ar
        for call in calls:
            call(x, w, comm)
        ready = dict(comm._kept)
        comm.close()
        for kept in ({}, ready):
            comm._kept.update(kept)
            for call in calls:
                with pytest.raises(braid.InvalidArgument, match="closed"):
                    call(x, w, comm)

    ranks(2, body)

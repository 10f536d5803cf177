"""The collectives by addresses: what is refused on any machine. tests/gpu runs them."""

import pytest

import braid
from braid import _braid

CALLS = {
    "all_reduce": lambda core, dtype, op: _braid.all_reduce_on(core, 0, 0, 0, 4, dtype, op, 0),
    "reduce_scatter": lambda core, dtype, op: _braid.reduce_scatter_on(
        core, 0, 0, 0, 4, dtype, op, 0
    ),
    "all_gather": lambda core, dtype, _: _braid.all_gather_on(core, 0, 0, 0, 4, dtype, 0),
    "all_to_all": lambda core, dtype, _: _braid.all_to_all_on(core, 0, 0, 0, 4, dtype, 0),
    "broadcast": lambda core, dtype, _: _braid.broadcast_on(core, 0, 0, 4, dtype, 0, 0),
}


def test_codes_are_those_of_the_c_interface():
    names = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32")
    assert [_braid.dtype_code(name) for name in names] == list(range(8))
    assert [_braid.redop_code(op) for op in ("sum", "prod", "max", "min", "avg")] == list(range(5))
    for unknown in ("float4", "bool", ""):
        with pytest.raises(braid.InvalidArgument, match="is unknown"):
            _braid.dtype_code(unknown)
    with pytest.raises(braid.InvalidArgument, match="is unknown"):
        _braid.redop_code("mean")


@pytest.mark.parametrize("name", CALLS)
def test_unknown_codes_are_refused(ranks, name):
    def body(comm):
        core = comm._core
        with pytest.raises(braid.InvalidArgument, match="dtype 99 is unknown"):
            CALLS[name](core, 99, 0)
        if name in ("all_reduce", "reduce_scatter"):
            with pytest.raises(braid.InvalidArgument, match="reduction op 77 is unknown"):
                CALLS[name](core, 7, 77)
        for no_code in (-1, 256, "float32"):
            with pytest.raises(TypeError):
                CALLS[name](core, no_code, 0)

    ranks(1, body)


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_comm_is_refused(ranks, name):
    def body(comm):
        core = comm._core
        comm.close()
        with pytest.raises(braid.InvalidArgument, match="closed"):
            CALLS[name](core, 7, 0)

    ranks(1, body)

"""The lists of operations: each has its own order, and all have the same five."""

from braid.cases import operations
from braid.cli import nccl_rank
from braid.plan.formulas.collectives import COLLECTIVES, OPS, PER_RANK, bus_factor


def test_every_order_has_the_same_collectives() -> None:
    for order in (operations.OPS, nccl_rank.OPS, OPS[:-1]):
        assert sorted(order) == sorted(COLLECTIVES)
    assert OPS[-1] == "send"


def test_a_rank_alone_moves_what_it_counts() -> None:
    assert set(PER_RANK) < set(COLLECTIVES)
    assert all(operations.busbw_factor(op, 1) == 1 for op in COLLECTIVES)
    assert all(operations.busbw_factor(op, 4) == bus_factor(op, 4) for op in COLLECTIVES)

"""The operations and reductions that are measured, and what bandwidth of them means."""

from braid.plan.formulas.collectives import bus_factor

OPS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast")
"""The collectives of braid.plan.formulas, in the order in which they are measured and listed."""
REDOPS = ("sum", "prod", "min", "max", "avg")


def busbw_factor(op: str, ranks: int) -> float:
    """busbw / algbw, as nccl-tests defines it: what a link must carry, whatever the algorithm."""
    return bus_factor(op, ranks) if ranks > 1 else 1.0

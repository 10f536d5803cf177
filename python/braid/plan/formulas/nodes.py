"""Several nodes: what a call puts on each node's NICs and inside each node, by schedule.

The C++ twin is src/plan/nodes.h, which the schedule itself is held to, piece by piece
(tests/coll/nodes/schedule_test.cc). `nbytes` is the size as nccl-tests counts it; `nodes` nodes of
`per_node` ranks each. Times are those of the slower of two things that go on at once; a real call
has its steps' latencies on top.
"""

STAGED_OPS = ("all_gather", "reduce_scatter", "all_reduce")
"""Operations that go in two stages, inside nodes and between them."""
SCHEDULES = ("staged", "flat", "ring")
"""staged: every byte crosses a node's cable once. flat: braid's direct schedule between CPUs, from
each rank straight to each. ring: NCCL's and Gloo's, around all ranks, node after node.
"""


def phases(op: str) -> int:
    """An all_reduce is a reduce_scatter and an all_gather; 0 for what has no stages."""
    return {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}.get(op, 0)


def staged_cable_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that leave one node: its own part to every other one, once."""
    del per_node  # that is the point
    return phases(op) * nbytes * (nodes - 1) / nodes


def flat_cable_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that leave one node: its part to every rank of every other one."""
    return per_node * staged_cable_bytes(op, nodes, per_node, nbytes)


def ring_cable_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that leave one node: everything but one rank's part goes by."""
    ranks = nodes * per_node
    return phases(op) * nbytes * (ranks - 1) / ranks if nodes > 1 else 0.0


def staged_inside_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that one rank sends to others of its node: the blocks of its rail, to each of them."""
    return phases(op) * nbytes * (per_node - 1) / per_node if nodes > 1 else 0.0


def flat_inside_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that one rank sends to others of its node: its own block to each of them."""
    ranks = nodes * per_node
    return phases(op) * nbytes * (per_node - 1) / ranks if nodes > 1 else 0.0


def ring_inside_bytes(op: str, nodes: int, per_node: int, nbytes: float) -> float:
    """Bytes that one rank sends to the next one of its node."""
    return ring_cable_bytes(op, nodes, per_node, nbytes) if per_node > 1 else 0.0


def bytes_per_second(rate_mbit: float) -> float:
    """Of a rate in Mbit/s."""
    return rate_mbit * 1e6 / 8


def slower_us(
    cable_bytes: float, cable_gbps: float, inside_bytes: float, inside_gbps: float
) -> float:
    """Both at once: the time of the one that takes longer."""
    return max(cable_bytes / cable_gbps, inside_bytes / inside_gbps) / 1e3


def in_pieces_us(
    rail_us: float, inside_us: float, arrivals_us: float, pieces: int, piece_us: float
) -> float:
    """A rail whose arrivals are spread inside the node piece by piece, while the next piece is on
    the wire: all of it, and the last piece's spreading behind it, or all that is spread if that
    takes longer. A piece costs `piece_us` besides.
    """
    return max(rail_us + arrivals_us / pieces, inside_us) + pieces * piece_us

"""Collectives: bus factors, bytes on the wire per algorithm, steps, several nodes.

`nbytes` is the size as nccl-tests counts it: the buffer for all_reduce and broadcast, the sum over
the ranks for the others (docs/measuring.md).
"""

import math

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
OPS = (*COLLECTIVES, "send")
PER_RANK = ("all_gather", "reduce_scatter")
"""Operations whose size torch's calls give as one rank's own part: what it sends (all_gather), what
it gets (reduce_scatter). `nbytes` is that times the ranks.
"""
ALGORITHMS = ("ring", "tree", "direct", "nvls")
OVER_NODES = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations that have every algorithm over several nodes."""
NODE_WAYS = {
    "ring": ("ring", "ring"),
    "tree": ("ring", "tree"),
    "direct": ("direct", "direct"),
    "nvls": ("nvls", "tree"),
    "sharp": ("nvls", "sharp"),
}
"""Over several nodes: an algorithm's way inside a node, and its way between nodes. nvls is NCCL's
NVLSTree; sharp adds in the switches between nodes, and inside where NVSwitch can.
"""


def bus_factor(op: str, ranks: int) -> float:
    """F5: bus bandwidth by algorithm bandwidth, as nccl-tests defines it."""
    if op in ("broadcast", "reduce", "send"):
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (ranks - 1) / ranks


def algbw_gbps(nbytes: float, time_us: float) -> float:
    """F6: what a program sees."""
    return nbytes / time_us / 1e3


def busbw_gbps(op: str, ranks: int, nbytes: float, time_us: float) -> float:
    """F6: what a link sees if no byte crosses one twice."""
    return algbw_gbps(nbytes, time_us) * bus_factor(op, ranks)


def time_us(op: str, ranks: int, nbytes: float, busbw: float) -> float:
    """F6, solved for the time."""
    return nbytes * bus_factor(op, ranks) / busbw / 1e3


def wire_bytes(op: str, algorithm: str, ranks: int, nbytes: float) -> float:
    """Bytes that cross one GPU's link in its busier direction.

    In a double binary tree a rank sends half of the buffer up in one tree, and in the other, where
    it has two children (one or none in a small group), another half up and two down. In NVLS (F17)
    it sends the buffer to the switch, which adds, and receives the result; its own part goes both
    ways. Of a gather or a scatter through the switch one direction has the whole buffer.
    """
    if ranks == 1:
        return 0.0
    if op == "all_reduce" and algorithm == "nvls":
        return nbytes * (ranks + 1) / ranks
    if op in OVER_NODES and algorithm == "nvls":
        return nbytes
    if op == "all_reduce" and algorithm == "tree":
        return nbytes * min(2.0, ranks / 2)
    return nbytes * bus_factor(op, ranks)


def steps(op: str, algorithm: str, ranks: int) -> int:
    """How many times one link's latency is waited for, one after the other."""
    if ranks == 1:
        return 0
    if op in ("all_to_all", "send") or algorithm in ("direct", "nvls", "sharp"):
        return phases(op)
    if algorithm == "tree":
        return phases(op) * math.ceil(math.log2(ranks))
    return phases(op) * (ranks - 1)


def phases(op: str) -> int:
    """An all-reduce is a reduce-scatter, then an all-gather."""
    return 2 if op == "all_reduce" else 1


def nvls_wire_gbps(ranks: int, busbw: float) -> float:
    """F17: what the links of an all-reduce carry when NVSwitch adds.

    Bus bandwidth counts a ring's 2(n-1)/n; NVLS moves (n+1)/n. So 480 over 450 GB/s links is 309.
    """
    return busbw * (ranks + 1) / (2 * (ranks - 1))


def nvls_saving(ranks: int) -> float:
    """F17: a ring's bytes by those of NVLS."""
    return 2 * (ranks - 1) / (ranks + 1)


def ring_bytes_of_all(ranks: int, nbytes: float) -> float:
    """What all ranks of a ring all-reduce send together."""
    return ranks * wire_bytes("all_reduce", "ring", ranks, nbytes)


def inside_bytes(op: str, gpus: int, nodes: int, nbytes: float, way: str = "ring") -> float:
    """F18: a GPU's bytes over the links of its node, of a call over `nodes` times `gpus` GPUs.

    `way` is ring, nvls, or direct: every GPU exchanges with every other one of all nodes. A send
    goes to another node.
    """
    if op == "send" and nodes > 1:
        return 0.0
    if op == "all_to_all" or way == "direct":
        return phases(op) * nbytes * (gpus - 1) / (gpus * nodes)
    return wire_bytes(op, way, gpus, nbytes)


def outside_bytes(op: str, gpus: int, nodes: int, nbytes: float, way: str = "ring") -> float:
    """F18: a GPU's bytes over its NIC in the busier direction.

    ring, tree: every GPU exchanges its own part with its like. sharp: it sends its part to the
    switches once, and gets the result once. direct: it sends to every GPU of the other nodes, which
    is as many times the bytes of a ring as a node has GPUs. A send has one NIC.
    """
    if nodes == 1:
        return 0.0
    if op == "send":
        return nbytes
    if op == "all_to_all" or way == "direct":
        return phases(op) * nbytes * (nodes - 1) / nodes
    if way == "sharp":
        return nbytes / gpus
    return wire_bytes(op, way, nodes, nbytes / gpus)


def flat_ring_s(op: str, gpus: int, nodes: int, nbytes: float, node_gbps: float) -> float:
    """Time of one ring through all GPUs, in which every node's border is crossed by the node's
    NICs together.
    """
    return nbytes * bus_factor(op, gpus * nodes) / (node_gbps * 1e9)


def nic_busbw_gbps(busbw: float, gpus: int, nodes: int) -> float:
    """F19: what a GPU's NIC carries in an all-reduce over nodes with this bus bandwidth."""
    return busbw * (nodes - 1) / (gpus * nodes - 1)

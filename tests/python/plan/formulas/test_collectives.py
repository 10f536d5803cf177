"""Bytes and steps of collectives against a count of every message that is sent."""

import math
from collections import Counter

import pytest

from braid.cases import operations
from braid.plan.formulas import collectives
from braid.plan.formulas.collectives import OPS
from braid.saved import table

RANKS = [2, 3, 4, 5, 8, 16]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_ring_s_messages_counted_one_by_one(ranks):
    """Holdings are tracked: after the last step every rank has every block of every rank."""
    blocks, nbytes = 1000, 1000 * ranks
    sums = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # [rank][block] -> added up
    sent = Counter()
    for step in range(2 * (ranks - 1)):
        moves = [(rank, (rank - step) % ranks) for rank in range(ranks)]
        taken = [(rank, block, set(sums[rank][block])) for rank, block in moves]
        for rank, block, held in taken:
            sums[(rank + 1) % ranks][block] |= held
            sent[rank] += blocks
    assert all(held == set(range(ranks)) for row in sums for held in row)
    each = collectives.wire_bytes("all_reduce", "ring", ranks, nbytes)
    assert list(sent.values()) == [pytest.approx(each)] * ranks
    assert sum(sent.values()) == pytest.approx(collectives.ring_bytes_of_all(ranks, nbytes))
    assert collectives.steps("all_reduce", "ring", ranks) == 2 * (ranks - 1)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all"])
def test_block_operations_send_every_block_but_one(op, ranks):
    """The size is the sum over ranks: a rank's links carry all blocks but its own."""
    blocks = 4096
    assert collectives.wire_bytes(op, "direct", ranks, blocks * ranks) == blocks * (ranks - 1)


@pytest.mark.parametrize("ranks", RANKS)
def test_gather_after_scatter_is_an_all_reduce(ranks):
    parts = [
        collectives.wire_bytes(op, "ring", ranks, 7e6) for op in ("reduce_scatter", "all_gather")
    ]
    assert sum(parts) == pytest.approx(collectives.wire_bytes("all_reduce", "ring", ranks, 7e6))
    steps = [collectives.steps(op, "ring", ranks) for op in ("reduce_scatter", "all_gather")]
    assert sum(steps) == collectives.steps("all_reduce", "ring", ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_switch_that_adds_sends_the_buffer_and_a_part(ranks):
    """Up: all parts but the own one, plus the own result down to others: S + S/n in all."""
    nbytes = 1e6 * ranks
    assert collectives.wire_bytes("all_reduce", "nvls", ranks, nbytes) == nbytes + 1e6
    ring = collectives.wire_bytes("all_reduce", "ring", ranks, nbytes)
    saving = ring / collectives.wire_bytes("all_reduce", "nvls", ranks, nbytes)
    assert collectives.nvls_saving(ranks) == pytest.approx(saving)


@pytest.mark.parametrize(("ranks", "times"), [(2, 1.0), (3, 1.5), (4, 2.0), (8, 2.0), (64, 2.0)])
def test_two_trees(ranks, times):
    assert collectives.wire_bytes("all_reduce", "tree", ranks, 1000) == 1000 * times


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", collectives.ALGORITHMS)
def test_one_rank_sends_nothing_and_waits_for_nobody(op, algorithm):
    assert collectives.wire_bytes(op, algorithm, 1, 1e9) == 0
    assert collectives.steps(op, algorithm, 1) == 0


@pytest.mark.parametrize(
    ("op", "algorithm", "steps"),
    [
        ("all_reduce", "ring", 14),
        ("all_reduce", "tree", 6),
        ("all_reduce", "direct", 2),
        ("all_reduce", "nvls", 2),
        ("all_gather", "ring", 7),
        ("all_gather", "tree", 3),
        ("all_gather", "direct", 1),
        ("broadcast", "ring", 7),
        ("broadcast", "tree", 3),
        ("all_to_all", "ring", 1),
        ("send", "ring", 1),
    ],
)
def test_steps_of_eight(op, algorithm, steps):
    assert collectives.steps(op, algorithm, 8) == steps


def test_trees_of_odd_sizes_are_as_deep_as_the_next_power():
    found = [collectives.steps("broadcast", "tree", ranks) for ranks in range(2, 18)]
    assert found == [1, 2, 2, 3, 3, 3, 3] + [4] * 8 + [5]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", RANKS)
def test_time_and_bandwidth_undo_each_other(op, ranks):
    for nbytes in (1, 4096, 3 << 20, 10**10):
        us = collectives.time_us(op, ranks, nbytes, 123.4)
        assert collectives.busbw_gbps(op, ranks, nbytes, us) == pytest.approx(123.4)
        assert us * 123.4e3 == pytest.approx(collectives.wire_bytes(op, "ring", ranks, nbytes))


@pytest.mark.parametrize("ranks", RANKS)
def test_bus_factors_grow_towards_their_limits(ranks):
    for op, limit in (("all_reduce", 2.0), ("all_gather", 1.0), ("all_to_all", 1.0)):
        factors = [collectives.bus_factor(op, n) for n in range(2, ranks + 1)]
        assert factors == sorted(factors)
        assert limit - factors[-1] == pytest.approx(limit / ranks)
    assert collectives.bus_factor("broadcast", ranks) == collectives.bus_factor("send", ranks) == 1


@pytest.mark.parametrize("op", [*OPS, "reduce", "gather"])
def test_bench_and_saved_tables_have_the_same_bus_factor(op):
    """There were three of them, of which one knew that a reduce has 1."""
    for ranks in RANKS:
        factor = collectives.bus_factor(op, ranks)
        assert operations.busbw_factor(op, ranks) == factor
        assert table.busbw_us(op, ranks, 1000) == factor
    assert collectives.bus_factor("reduce", 8) == 1
    assert collectives.bus_factor("gather", 8) == 7 / 8
    assert operations.busbw_factor(op, 1) == 1  # of a single rank the bandwidth of its copy


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_all_to_all_over_nodes_counted_pair_by_pair(gpus, nodes):
    """Rank (node, gpu) sends a block to everybody; inside, and through its own NIC."""
    block = 64
    nbytes = block * gpus * nodes
    inside = sum(block for gpu in range(gpus) if gpu != 0)
    outside = sum(block for node in range(nodes) for _ in range(gpus) if node != 0)
    assert collectives.inside_bytes("all_to_all", gpus, nodes, nbytes) == inside
    assert collectives.outside_bytes("all_to_all", gpus, nodes, nbytes) == outside


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize(("op", "phases"), [("all_reduce", 2), ("all_gather", 1)])
def test_all_pairs_over_nodes_counted_message_by_message(op, phases, gpus, nodes):
    """Rank (0, 0) sends a block to every other rank, twice where it reduces first."""
    block = 64
    ranks = [(node, gpu) for node in range(nodes) for gpu in range(gpus)]
    sent = Counter(node == 0 for node, gpu in ranks if (node, gpu) != (0, 0))
    nbytes = block * len(ranks)
    inside = collectives.inside_bytes(op, gpus, nodes, nbytes, "direct")
    outside = collectives.outside_bytes(op, gpus, nodes, nbytes, "direct")
    assert (inside, outside) == (phases * block * sent[True], phases * block * sent[False])


@pytest.mark.parametrize("nodes", [2, 3, 4, 32])
@pytest.mark.parametrize("gpus", [1, 8])
def test_ways_between_nodes(gpus, nodes):
    """Each NIC has its GPU's part. The tree sends it up and down; a switch that adds takes it once
    and gives the result back once; where nothing is added, ring and tree send the same.
    """
    nbytes = 8e9
    part = nbytes / gpus

    def outside(op, way):
        return collectives.outside_bytes(op, gpus, nodes, nbytes, way)

    assert outside("all_reduce", "tree") == pytest.approx(part * min(2, nodes / 2))
    for op in collectives.OVER_NODES:
        assert outside(op, "sharp") == part
    for op in ("all_gather", "reduce_scatter"):
        assert outside(op, "tree") == outside(op, "ring") == pytest.approx(part - part / nodes)
    depth = math.ceil(math.log2(nodes))
    assert collectives.steps("all_reduce", "tree", nodes) == 2 * depth
    assert collectives.steps("all_gather", "sharp", nodes) == 1
    assert collectives.steps("all_reduce", "sharp", nodes) == 2
    assert collectives.outside_bytes("all_reduce", gpus, 1, nbytes, "sharp") == 0


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_switch_inside_nodes(gpus):
    nbytes = 8e9
    for op in ("all_gather", "reduce_scatter"):
        assert collectives.inside_bytes(op, gpus, 4, nbytes, "nvls") == nbytes
    added = collectives.inside_bytes("all_reduce", gpus, 4, nbytes, "nvls")
    assert added == pytest.approx(nbytes + nbytes / gpus)


@pytest.mark.parametrize("nodes", [2, 4, 32])
@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_an_all_reduce_over_nodes_in_two_levels(gpus, nodes):
    """Inside: scatter and gather of the whole. Outside: an all-reduce of a GPU's part of it."""
    nbytes = 8e9
    inside = 2 * (gpus - 1) * nbytes / gpus
    outside = 2 * (nodes - 1) / nodes * (nbytes / gpus)
    assert collectives.inside_bytes("all_reduce", gpus, nodes, nbytes) == pytest.approx(inside)
    assert collectives.outside_bytes("all_reduce", gpus, nodes, nbytes) == pytest.approx(outside)
    flat_s = collectives.flat_ring_s("all_reduce", gpus, nodes, nbytes, 400.0)
    ranks = gpus * nodes
    assert flat_s == pytest.approx(2 * (ranks - 1) * nbytes / ranks / 400e9)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_what_a_nic_carries_follows_from_its_bytes(nodes):
    """F19 from F6 and F18: bytes through the NIC by the time that the bus bandwidth says."""
    nbytes, gpus, busbw = 1e9, 8, 350.0
    seconds = collectives.time_us("all_reduce", gpus * nodes, nbytes, busbw) / 1e6
    carried = collectives.outside_bytes("all_reduce", gpus, nodes, nbytes) / seconds / 1e9
    assert collectives.nic_busbw_gbps(busbw, gpus, nodes) == pytest.approx(carried)


def test_bandwidths_in_numbers():
    """64 MiB on 8 GPUs in 684.6 us, of a published table."""
    assert collectives.algbw_gbps(64 << 20, 684.6) == pytest.approx(98.03, abs=0.01)
    assert collectives.busbw_gbps("all_reduce", 8, 64 << 20, 684.6) == pytest.approx(171.55, 1e-4)
    assert math.isclose(collectives.nvls_wire_gbps(8, 480), 480 * 9 / 14)

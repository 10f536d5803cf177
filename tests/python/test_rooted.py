"""Collectives with a root, and those with blocks of several lengths, beside NumPy."""

import numpy as np
import pytest
from elements import MOVABLE, REDUCIBLE, content, join, same

import braid

SIZES = [1, 2, 3, 5]
FOLDS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def counts_of(size):
    """Rows of each rank's block: none of rank 1, no two others alike."""
    return [0 if r == 1 else 2 * r + 1 for r in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_moves_every_type(ranks, size):
    def body(comm):
        r, counts = comm.rank, counts_of(size)
        for dtype in MOVABLE:
            for root in range(size):
                mine = [content(i, (2 * size, 3), dtype) for i in range(size)]
                found = comm.gather(mine[r], root)
                if r == root:
                    same(found, join(mine))
                else:
                    assert found is None
                out = np.empty((2, 3), dtype)
                assert comm.scatter(mine[root] if r == root else None, out, root) is out
                same(out, mine[root][2 * r : 2 * r + 2])
            blocks = [content(i, (counts[i], 3), dtype) for i in range(size)]
            same(comm.all_gather(blocks[r], counts=counts), join(blocks))

    ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_reduces_every_type(ranks, size):
    def body(comm):
        r, counts = comm.rank, counts_of(size)
        begin = sum(counts[:r])
        for dtype in REDUCIBLE:
            # Small integers: exact in every type and order.
            total = sum(counts)
            parts = [((np.arange(total) * 3 + i) % 5 + 1).astype(dtype) for i in range(size)]
            for op, fold in FOLDS.items():
                expected = fold.reduce(parts, dtype=dtype)
                buf, root = parts[r].copy(), size - 1
                found = comm.reduce(buf, op, root)
                assert found is (buf if r == root else None)
                same(buf, expected if r == root else parts[r])
                block = comm.reduce_scatter(parts[r], op, counts=counts)
                same(block, expected[begin : begin + counts[r]])
            average = comm.reduce(np.full(3, size, dtype), "avg")
            if r == 0:
                same(average, np.full(3, size, dtype))

    ranks(size, body)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_bits_are_those_of_all_reduce(ranks, dtype):
    """Whatever the links carry: sums in rank order, rounded once."""

    def body(comm):
        dice = np.random.default_rng(5)
        mine = np.random.default_rng(comm.rank).standard_normal(30_001).astype(dtype)
        counts = [7, 0, 30_001 - 7]
        begin = sum(counts[: comm.rank])
        whole = comm.all_reduce(mine.copy())
        for _ in range(10):
            comm._force_shares(dice.random(len(comm.links)) + 1e-6)
            found = comm.reduce(mine, root=2, out=np.empty_like(mine))
            if comm.rank == 2:
                same(found, whole)
            block = comm.reduce_scatter(mine, counts=counts)
            same(block, whole[begin : begin + counts[comm.rank]])

    ranks(3, body)


def test_out_and_in_place(ranks):
    def body(comm):
        n, r, root = comm.size, comm.rank, 1
        rows = [np.arange(6.0) + 10 * i for i in range(n)]
        whole = np.zeros(6 * n)
        own = whole[6 * r : 6 * r + 6]
        own[:] = rows[r]
        found = comm.gather(own, root, whole)
        if r == root:
            assert found is whole
            same(whole, np.concatenate(rows))
        blocks = np.arange(6.0 * n)
        mine = comm.scatter(blocks, blocks[6 * root : 6 * root + 6] if r == root else own, root)
        same(mine, np.arange(6.0) + 6 * r)
        same(blocks, np.arange(6.0 * n))

        counts = [1, 0, 5]
        begin = sum(counts[:r])
        uneven = np.zeros(6)
        uneven[begin : begin + counts[r]] = r + 1
        part = uneven[begin : begin + counts[r]]
        assert comm.all_gather(part, uneven, counts) is uneven
        same(uneven, np.array([1.0, 3, 3, 3, 3, 3]))
        sums = np.arange(6.0)
        comm.reduce_scatter(sums, "sum", sums[begin : begin + counts[r]], counts)
        expected = np.arange(6.0)
        expected[begin : begin + counts[r]] *= 3
        same(sums, expected)

    ranks(3, body)


def test_empty_blocks(ranks):
    def body(comm):
        none = np.empty((0, 4), np.int32)
        same(comm.all_gather(none, counts=[0, 0, 0]), none)
        same(comm.reduce_scatter(none, counts=[0, 0, 0]), none)
        found = comm.gather(none)
        assert (found is None) == (comm.rank != 0)
        same(comm.scatter(none if comm.rank == 0 else None, none.copy()), none)
        comm.reduce(none)

    ranks(3, body)


def test_disagreement_is_told_to_all(ranks):
    def body(comm):
        mine = comm.rank
        for call, words in (
            (lambda: comm.reduce(np.ones(4), root=mine), "root"),
            (lambda: comm.reduce(np.ones(4), ["sum", "max"][mine]), "max"),
            (lambda: comm.gather(np.ones(4 + mine)), "gather of 4"),
            (lambda: comm.scatter(np.ones(8), np.ones(4 + mine), 1 - mine), "scatter"),
            (lambda: comm.all_gather(np.ones(1), counts=[1, 1] if mine else [1, 2]), "block 1"),
            (lambda: comm.reduce_scatter(np.ones(4), counts=[2 + mine, 2 - mine]), "block 0"),
            (lambda: comm.gather(np.ones(4)) if mine else comm.all_gather(np.ones(4)), "gather"),
        ):
            with pytest.raises(braid.InvalidArgument, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)
        return comm.all_reduce(np.ones(2)).tolist()  # the comm still works

    assert ranks(2, body) == [[2, 2], [2, 2]]


def test_what_one_rank_can_see_is_refused_there(ranks):
    def body(comm):
        x, wide = np.ones(4), np.ones((2, 16))
        for call, words in (
            (lambda: comm.reduce(x, root=2), "root is 2, with 2 ranks it must be 0 to 1"),
            (lambda: comm.gather(x, root=-1), "root is "),
            (lambda: comm.broadcast(x, 2**40), "root is "),
            (lambda: comm.broadcast(x, "all"), "root is "),
            (
                lambda: comm.reduce(x, "mean"),
                "argument op: 'mean' is unknown; braid has sum, prod, min, max, avg",
            ),
            (lambda: comm.all_reduce(x, None), "argument op"),
            (lambda: comm.reduce_scatter(x, "SUM"), "argument op"),
            (lambda: comm.scatter(None, root=1 - comm.rank), "asked for an array on every rank"),
            (lambda: comm.scatter(np.ones(3), root=comm.rank), "2 ranks divide, found 3"),
            (lambda: comm.all_gather(x, counts=[4]), "asked for 2 counts"),
            (lambda: comm.all_gather(x, counts=[4, -1]), "0 or more"),
            (lambda: comm.all_gather(x, counts=[3, 3]), "elements, found 4"),
            (lambda: comm.all_gather(x, counts=[4, 2**63]), f"sum to {2**62} at most"),
            (lambda: comm.all_gather(wide, x, counts=[2**62, 0]), f"sum to {2**58} at most"),
            (lambda: comm.reduce_scatter(wide, out=x, counts=[2**62, 0]), f"sum to {2**58} at"),
            (lambda: comm.all_to_all(wide, x, [1, 1], [0, 2**60]), f"sum to {2**58} at most"),
            (lambda: comm.reduce_scatter(x, counts=[3, 3]), "sum to the buffer's 4 elements"),
            (lambda: comm.reduce_scatter(x, counts="ab"), "whole numbers"),
            (lambda: comm.reduce(np.ones(2, bool)), "bool"),
            (lambda: comm.explain("all_reduce", 2**70), "nbytes"),
        ):
            with pytest.raises(braid.InvalidArgument, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)
        with pytest.raises(braid.Exhausted, match="no memory for a result of shape"):
            comm.all_gather(np.empty(1, "V65536"), counts=[2**60, 2**60])
        comm.barrier()

    ranks(2, body)


def test_last_call_and_names_in_traces(ranks, tmp_path):
    def body(comm):
        comm.gather(np.ones(1000))
        comm.reduce(np.ones(1000))
        names = [entry["profiling_name"] for entry in comm.flight_record()["entries"]]
        assert names == ["nccl:gather", "nccl:reduce"]
        comm.trace(tmp_path / f"trace{comm.rank}.json")
        return (tmp_path / f"trace{comm.rank}.json").read_text().count('"gather"') > 0

    assert ranks(2, body, {"BRAID_TRACE_CALLS": "16"}) == [True, True]

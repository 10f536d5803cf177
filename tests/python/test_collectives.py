"""Shapes, types and values of the five collectives from Python.

Bits and faults in depth are tests/coll's business.
"""

import re

import numpy as np
import pytest
from elements import MOVABLE, REDUCIBLE, content, join, same

import braid


def test_identity(ranks):
    def body(comm):
        assert comm.local_rank == comm.rank
        assert repr(comm) == f"<braid.Comm rank {comm.rank} of 3>"
        return comm.rank, comm.size

    assert ranks(3, body) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_moves_every_type(ranks, size):
    def body(comm):
        for dtype in MOVABLE:
            mine = [content(r, (2 * size, 3), dtype) for r in range(size)]
            send = mine[comm.rank]
            same(comm.all_gather(send), join(mine))
            blocks = [m[2 * comm.rank : 2 * comm.rank + 2] for m in mine]
            same(comm.all_to_all(send), join(blocks))
            buf = send.copy()
            assert comm.broadcast(buf, size - 1) is buf
            same(buf, mine[size - 1])
            same(send, content(comm.rank, (2 * size, 3), dtype))  # send was not written to

    ranks(size, body)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_reduces_every_type(ranks, size):
    folds = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

    def body(comm):
        for dtype in REDUCIBLE:
            # Small integers: exact in every type and order.
            parts = [((np.arange(12 * size) + r) % 5 + 1).astype(dtype) for r in range(size)]
            for op, fold in folds.items():
                expected = fold.reduce(parts, dtype=dtype)
                buf = parts[comm.rank].copy()
                assert comm.all_reduce(buf, op) is buf
                same(buf, expected)
                block = expected[12 * comm.rank : 12 * comm.rank + 12]
                same(comm.reduce_scatter(parts[comm.rank], op), block)
            same(comm.all_reduce(np.full(3, size, dtype), "avg"), np.full(3, size, dtype))

    ranks(size, body)


def test_out_and_in_place(ranks):
    def body(comm):
        n, r = comm.size, comm.rank
        send = np.arange(6.0) + 10 * r
        expected = np.concatenate([np.arange(6.0) + 10 * i for i in range(n)])
        out = np.zeros(6 * n)
        assert comm.all_gather(send, out) is out
        same(out, expected)
        stacked = np.zeros((n, 6))
        same(
            comm.all_gather(send, out=stacked).ravel(), expected
        )  # any shape with as many elements

        whole = np.zeros(6 * n)
        whole[6 * r : 6 * r + 6] = send
        comm.all_gather(whole[6 * r : 6 * r + 6], whole)
        same(whole, expected)

        target = np.zeros(6)
        assert comm.all_reduce(send, out=target) is target
        same(send, np.arange(6.0) + 10 * r)
        same(target, expected.reshape(n, 6).sum(0))

        blocks = np.tile(send, n)
        comm.reduce_scatter(blocks, "sum", blocks[6 * r : 6 * r + 6])
        same(blocks[6 * r : 6 * r + 6], target)

        exchange = np.arange(4.0 * n) + 100 * r
        comm.all_to_all(exchange, exchange)
        same(exchange, np.concatenate([np.arange(4.0) + 4 * r + 100 * i for i in range(n)]))

    ranks(3, body)


def test_uneven_all_to_all(ranks):
    def body(comm):
        n, r = comm.size, comm.rank
        send_counts = [(r + j) % 3 for j in range(n)]  # zeros among them
        recv_counts = [(i + r) % 3 for i in range(n)]
        send = np.arange(sum(send_counts) * 2, dtype=np.int32).reshape(-1, 2) + 1000 * r

        def block(i):
            counts = [(i + j) % 3 for j in range(n)]
            begin = sum(counts[:r])
            rows = np.arange(sum(counts) * 2, dtype=np.int32).reshape(-1, 2) + 1000 * i
            return rows[begin : begin + counts[r]]

        expected = np.concatenate([block(i) for i in range(n)])
        same(comm.all_to_all(send, send_counts=send_counts), expected)
        same(comm.all_to_all(send, None, send_counts, recv_counts), expected)
        out = np.empty_like(expected)
        assert comm.all_to_all(send, out, send_counts, recv_counts) is out
        same(out, expected)

    ranks(4, body)


def test_small_shapes(ranks):
    def body(comm):
        n = comm.size
        same(comm.all_gather(np.float32(3)), np.full(n, 3, np.float32))
        same(comm.all_gather(np.array(7)), np.full(n, 7))
        same(comm.all_gather(np.empty((0, 4))), np.empty((0, 4)))
        same(comm.all_to_all(np.empty((0, 4))), np.empty((0, 4)))
        same(comm.reduce_scatter(np.ones(n)), np.full(1, float(n)))
        same(comm.all_reduce(np.empty(0)), np.empty(0))
        same(comm.broadcast(np.array([comm.rank], np.int8), 1), np.array([1], np.int8))

    ranks(2, body)


def test_shares_do_not_change_a_bit(ranks):
    def body(comm):
        dice = np.random.default_rng(5)
        mine = np.random.default_rng(comm.rank).standard_normal(50_001).astype(np.float32)
        first = comm.all_reduce(mine.copy())
        for _ in range(20):
            comm._force_shares(dice.random(len(comm.links)) + 1e-6)
            same(comm.all_reduce(mine.copy()), first)
        comm._force_shares(None)
        return first.tobytes()

    assert len(set(ranks(3, body))) == 1


def test_facts(ranks):
    def body(comm):
        comm.all_gather(np.zeros(1000))
        health = comm.health()
        assert health["ok"] is True
        assert health["rank"] == comm.rank
        assert [link["name"] for link in health["links"]] == [link.name for link in comm.links]
        assert all(link.kind and link.state == "up" for link in comm.links)
        assert comm.gpu_links == []  # no call on GPU memory was made
        told = (braid.Comm.health.__doc__ or "").split("and once", 1)[0]
        names = [*health, *health["links"][0]]
        assert sorted(re.findall(r'"(\w+)"', told)) == sorted(names)
        call = comm.last_call()
        assert (call["op"], call["bytes"]) == ("all_gather", 8000 * comm.size)
        assert call["duration_ns"] > 0
        assert sum(link["share"] for link in call["links"]) == pytest.approx(1.0)
        assert sum(link["received_bytes"] for link in call["links"]) == 8000 * (comm.size - 1)
        plan = comm.explain("all_reduce", 1 << 20)
        assert "all_reduce" in str(plan)
        assert isinstance(plan.json, dict)
        assert isinstance(comm.balance_log(), list)
        return str(plan)

    assert len(set(ranks(2, body))) == 1


def test_alone_without_environment():
    comm = braid.init(progress=False, tune=False)
    try:
        assert (comm.rank, comm.size) == (0, 1)
        same(comm.all_reduce(np.arange(3.0)), np.arange(3.0))
        comm.barrier()
    finally:
        comm.close()

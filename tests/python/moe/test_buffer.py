"""braid.moe.Buffer on NumPy arrays and torch tensors: what comes is what was sent, in DeepEP's
shapes. Bits, orders and faults in depth are tests/moe's business.
"""

import os

import ml_dtypes
import numpy as np
import pytest
from moe_data import Library, libraries, make, rows_by_expert, rows_by_source, same

from braid.moe import Buffer
from braid.moe.meeting import meet

H = 256
M = 24


def made(comm, **options):
    size = Buffer.get_low_latency_rdma_size_hint(M, H, comm.size, 4 * comm.size)
    return Buffer(comm, 1 << 20, size, low_latency_mode=True, **options)


@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("size", [1, 2, 3])
def test_normal_goes_there_and_back(ranks, size, library):
    def body(comm):
        lib = Library(library)
        with made(comm) as buffer:
            for seed in range(4):
                every = [make(seed, r, size, H) for r in range(size)]
                own = every[comm.rank]
                x, ids, weights = lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights)
                per_rank, rdma, per_expert, is_in, event = buffer.get_dispatch_layout(ids, 4 * size)
                assert rdma is None
                same(per_expert, own.per_expert)
                event.current_stream_wait()
                got, got_ids, got_weights, counts, handle, event = buffer.dispatch(
                    x, None, per_rank, None, is_in, per_expert, ids, weights, 8, async_finish=True
                )
                rows = rows_by_source(every, comm.rank)
                same(got, np.stack([every[s].x[t] for s, t in rows]) if rows else np.empty((0, H)))
                local = [
                    [i - 4 * comm.rank if i // 4 == comm.rank else -1 for i in every[s].ids[t]]
                    for s, t in rows
                ]
                same(got_ids, np.array(local).reshape(-1, own.ids.shape[1]))
                wanted = [sum(row.count(e) for row in local) for e in range(4)]
                assert counts == [(n + 7) // 8 * 8 for n in wanted]
                same(handle[3], np.array([t for _, t in rows], np.int32))
                # Every rank sends its rows back as they came: a token comes back once for each.
                back, back_weights, _ = buffer.combine(got, handle, got_weights)
                times = own.is_in.sum(1)[:, None]
                same(back, (own.x * times).astype(ml_dtypes.bfloat16).astype(np.float32))
                same(back_weights, np.where(own.ids < 0, 0, own.weights))
                again, none_ids, none_weights, none_counts, _, _ = buffer.dispatch(x, handle=handle)
                same(again, got)
                assert (none_ids, none_weights, none_counts) == (None, None, None)
                worst, worst_ids, _, empty, worst_handle, _ = buffer.dispatch(
                    x, None, per_rank, None, is_in, per_expert, ids, weights, num_worst_tokens=99
                )
                assert empty == []
                assert worst.shape[0] == 99
                same(worst[: len(rows)], got)
                assert (lib.numpy(worst_ids)[len(rows) :] == -1).all()
                bias = lib.bf16(np.ones_like(own.x))
                biased, _, _ = buffer.combine(worst, worst_handle, None, (bias, bias))
                total = own.x * times + 2
                same(biased, total.astype(ml_dtypes.bfloat16).astype(np.float32))

    ranks(size, body)


def test_a_buffer_that_may_gather_gives_the_same(ranks):
    def body(comm):
        lib, ways = Library("numpy"), []
        every = [make(4, r, 3, H) for r in range(3)]
        own = every[comm.rank]
        with made(comm, may_gather=True) as buffer:
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(own.ids, 12)
            for _ in range(12):
                got, ids, weights, _, handle, _ = buffer.dispatch(
                    lib.bf16(own.x), None, per_rank, None, is_in, per_expert, own.ids, own.weights
                )
                same(got, np.stack([every[s].x[t] for s, t in rows_by_source(every, comm.rank)]))
                assert (ids < 4).all()
                assert ((weights == 0) == (ids < 0)).all()
                back, _, _ = buffer.combine(got, handle, partial="node")
                same(back, own.x * own.is_in.sum(1)[:, None])
                ways.append(buffer.runtime.has_gathered)
        return ways

    first, *others = ranks(3, body)
    assert set(first[:8]) == {False, True}  # both are measured
    assert all(ways == first for ways in others)


@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("size", [1, 2, 3])
def test_low_latency_goes_there_and_back(ranks, size, library):
    def body(comm):
        lib = Library(library)
        stats = lib.of(np.zeros(4, np.int32))
        waits = lib.of(np.zeros(size, np.int64))
        total = np.zeros(4, np.int64)
        with made(comm) as buffer:
            for seed in range(6):
                every = [make(seed, r, size, H) for r in range(size)]
                own = every[comm.rank]
                x, ids, weights = lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights)
                got, count, handle, _, hook = buffer.low_latency_dispatch(
                    x, ids, M, 4 * size, stats, waits, use_fp8=False, return_recv_hook=True
                )
                hook()
                assert tuple(got.shape) == (4, M * size, H)
                for e in range(4):
                    rows = rows_by_expert(every, comm.rank, e)
                    assert int(count[e]) == len(rows)
                    total[e] += len(rows)
                    same(got[e, : len(rows)], [every[s].x[t] for s, t, _ in rows])
                    same(handle[0][e, : len(rows)], [t for _, t, _ in rows])
                    for s in range(size):
                        begin, n = int(handle[1][e, s]) >> 32, int(handle[1][e, s]) & 0xFFFFFFFF
                        assert [row[0] for row in rows[begin : begin + n]] == [s] * n
                for zero_copy in (False, True):
                    if zero_copy:
                        buffer.get_next_low_latency_combine_buffer(handle)[:] = got
                    y, _, hook = buffer.low_latency_combine(
                        got, ids, weights, handle, zero_copy=zero_copy, return_recv_hook=True
                    )
                    hook()
                    # Weights of a token sum to a power of two: exact in bf16.
                    same(y, own.x * np.where(own.ids < 0, 0, own.weights).sum(1)[:, None])
                    if library == "numpy":
                        break  # the buffer of zero_copy is made once, by either library
            same(stats, total)
            assert lib.numpy(waits).min() >= 0

    ranks(size, body)


@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("size", [1, 2, 3])
def test_low_latency_sums_by_rank(ranks, size, library):
    """One row for each (token, rank): of fewer bytes, and of other sums, which are exact here."""

    def body(comm):
        lib, sent = Library(library), {}
        with made(comm) as buffer:
            for seed in range(6):
                own = make(seed, comm.rank, size, H)
                x, ids, weights = lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights)
                for partial in (None, "rank"):
                    got, _, handle, _, _ = buffer.low_latency_dispatch(
                        x, ids, M, 4 * size, use_fp8=False, topk_weights=weights
                    )
                    before = sum(buffer.sent_bytes())
                    y, _, hook = buffer.low_latency_combine(
                        got, ids, weights, handle, return_recv_hook=True, partial=partial
                    )
                    hook()
                    sent[partial] = sent.get(partial, 0) + sum(buffer.sent_bytes()) - before
                    same(y, own.x * np.where(own.ids < 0, 0, own.weights).sum(1)[:, None])
            refused = buffer.low_latency_dispatch(x, ids, M, 4 * size, use_fp8=False)
            with pytest.raises(ValueError, match="argument partial: expected None, or a dispatch"):
                buffer.low_latency_combine(refused[0], ids, weights, refused[2], partial="rank")
            with pytest.raises(ValueError, match="argument topk_weights: expected those of the"):
                buffer.low_latency_combine(got, ids, weights + 1, handle, partial="rank")
            with pytest.raises(ValueError, match="argument partial: expected None or 'rank'"):
                buffer.low_latency_combine(got, ids, weights, handle, partial="node")
        assert size == 1 or sent["rank"] < sent[None]

    ranks(size, body)


@pytest.mark.parametrize("library", libraries())
def test_rows_are_cast_to_fp8(ranks, library):
    def body(comm):
        lib = Library(library)
        hidden = 512
        with Buffer(
            comm, 0, Buffer.get_low_latency_rdma_size_hint(M, hidden, 2, 8), low_latency_mode=True
        ) as buffer:
            every = [make(5, r, 2, hidden) for r in range(2)]
            own = every[comm.rank]
            for options in ({}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}):
                (got, scales), count, _, _, hook = buffer.low_latency_dispatch(
                    lib.bf16(own.x), lib.of(own.ids), M, 8, **options
                )
                assert hook is None
                words = hidden // (512 if "use_ue8m0" in options else 128)
                assert tuple(scales.shape) == (4, 2 * M, words)
                got = lib.numpy(got)
                for e in range(4):
                    n = int(count[e])
                    scale = lib.numpy(scales)[e, :n]
                    if "use_ue8m0" in options:
                        bits = np.ascontiguousarray(scale).view(np.uint8).astype(np.uint32) << 23
                        scale = bits.view(np.float32)
                    wide = got[e, :n].astype(np.float32).reshape(n, -1, 128) * scale[:, :, None]
                    rows = [every[s].x[t] for s, t, _ in rows_by_expert(every, comm.rank, e)]
                    if rows:
                        error = np.abs(wide.reshape(n, -1) - np.stack(rows))
                        assert error.max() <= np.abs(np.stack(rows)).max() / 16

    ranks(2, body)


def test_two_results_are_alive_and_hooks_keep_their_rules(ranks):
    def body(comm):
        lib = Library("numpy")
        with made(comm) as buffer:
            own = make(1, comm.rank, comm.size, H)
            x, ids = lib.bf16(own.x), own.ids

            def send():
                return buffer.low_latency_dispatch(
                    x, ids, M, 4 * comm.size, use_fp8=False, return_recv_hook=True
                )

            first, second = send(), send()
            with pytest.raises(ValueError, match="hook"):
                send()
            first[4]()
            with pytest.raises(ValueError, match="hook was called already"):
                first[4]()
            second[4]()
            buffer.low_latency_combine(first[0], ids, own.weights, first[2])
            third = send()
            third[4]()
            with pytest.raises(ValueError, match="one of the last 2 dispatches"):
                buffer.low_latency_combine(first[0], ids, own.weights, first[2])
            late = send()
            comm.barrier()
            buffer.destroy()
            with pytest.raises(ValueError, match="destroyed"):
                late[4]()

    ranks(2, body)


@pytest.mark.parametrize("bind", ["203.0.113.77", "127.0.0.2"])  # no host has the first
def test_ranks_of_another_librarys_group_meet_whatever_braid_bind_says(ranks, bind):
    """It is where the job's rank 0 listens; they meet elsewhere."""

    def body(comm):
        os.environ["BRAID_BIND"] = bind
        with meet(comm.rank, comm.size, comm.all_gather_object, timeout=10) as met:
            return met.all_gather_object(comm.rank)

    assert ranks(2, body) == [[0, 1], [0, 1]]

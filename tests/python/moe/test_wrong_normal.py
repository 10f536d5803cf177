"""Bad input of normal mode, and of every tensor that a call takes: its type, shape, stride and
memory; layouts on which ranks disagree; handles of other calls.
"""

import re
import time

import numpy as np
import pytest
from moe_calls import Calls, M, made, refused
from moe_data import same

import braid


class Elsewhere:
    """Looks like an array that lies in a GPU's memory, to who asks for host memory."""

    def __init__(self, like):
        self.shape, self.dtype, self.itemsize = like.shape, like.dtype, like.itemsize

    def __dlpack_device__(self):
        return 2, 0


def cases_of_normal(c):
    _, _, per_expert, is_in, _ = c.layout()
    wide = np.tile(c.own.ids[:, :1], (1, 33))
    swapped = np.asfortranarray(is_in)
    yield "x: expected rows of a multiple of 16 bytes, got 6", {"x": c.x[:, :3].copy()}
    yield "x: expected a contiguous array", {"x": c.x[:, ::2]}
    yield "x: expected shape [any, any]", {"x": c.x[0]}
    yield "x scales: expected a contiguous array", {"x": (c.x, np.zeros((len(c.x), 4))[:, ::2])}
    yield "topk_idx: expected int64, got int32", {"topk_idx": c.own.ids.astype(np.int32)}
    yield f"topk_idx: expected shape [{len(c.x)}, any]", {"topk_idx": c.own.ids[1:]}
    yield "topk_idx: expected a contiguous array", {"topk_idx": np.asfortranarray(c.own.ids)}
    yield (
        "topk_idx: expected 1 to 32 experts a token, got 33",
        {
            "topk_idx": wide,
            "topk_weights": None,
        },
    )
    yield "topk_idx: expected an array beside topk_weights", {"topk_idx": None}
    yield (
        "topk_weights: expected float32, got float64",
        {"topk_weights": c.own.weights.astype(np.float64)},
    )
    yield "topk_weights: expected shape", {"topk_weights": c.own.weights[:, 1:].copy()}
    yield "is_token_in_rank: expected bool, got uint8", {"is_token_in_rank": is_in.view(np.uint8)}
    yield "is_token_in_rank: expected shape", {"is_token_in_rank": is_in[:, 1:].copy()}
    yield "is_token_in_rank: expected a contiguous array", {"is_token_in_rank": swapped}
    yield (
        "num_tokens_per_expert: expected int32, got int64",
        {"num_tokens_per_expert": per_expert.astype(np.int64)},
    )
    yield (
        "num_experts: expected a multiple of 2 ranks, got 7",
        {"num_tokens_per_expert": per_expert[:-1].copy()},
    )
    yield "num_tokens_per_rank: expected an array, got None", {"num_tokens_per_rank": None}
    yield "num_worst_tokens: expected 0 or more, got -1", {"num_worst_tokens": -1}
    yield "expert_alignment: expected 1 or more, got -4", {"expert_alignment": -4}
    yield "is_token_in_rank: expected host memory", {"is_token_in_rank": Elsewhere(is_in)}
    yield "topk_weights: expected host memory", {"topk_weights": Elsewhere(c.own.weights)}


def test_every_tensor_of_normal_calls(ranks):
    def body(comm):
        with made(comm) as buffer:
            c, where = Calls(buffer), f"on rank {comm.rank}: argument "
            for words, changed in cases_of_normal(c):
                kind = braid.Unsupported if "host memory" in words else braid.InvalidArgument
                refused(where + words, lambda changed=changed: c.normal(**changed), kind)
            refused("expected a multiple of 2 ranks, got 7", lambda: c.layout(experts=7))
            refused("expected int64, got int32", lambda: c.layout(c.own.ids.astype(np.int32)))
            x, _, weights, _, handle, _ = c.normal()
            for words, call in {
                "x: expected bfloat16 or float16 or float32": lambda: buffer.combine(
                    x.view(np.int16), handle
                ),
                "x: expected a contiguous array": lambda: buffer.combine(
                    np.asfortranarray(x), handle
                ),
                "topk_weights: expected float32": lambda: buffer.combine(
                    x, handle, weights.astype(np.float64)
                ),
                "topk_weights: expected shape": lambda: buffer.combine(x, handle, weights[1:]),
                "bias: expected": lambda: buffer.combine(
                    x, handle, bias=c.own.x.astype(np.float64)
                ),
                "partial: expected None or 'node', got 'rank'": lambda: buffer.combine(
                    x, handle, partial="rank"
                ),
                "handle: expected one that dispatch() gave, got NoneType": lambda: buffer.combine(
                    x, None
                ),
                "topk_idx: expected None beside a handle": lambda: c.normal(handle=handle),
            }.items():
                refused(where + words, call)
            few = c.x[1:].copy()
            refused(
                f"{where}is_token_in_rank: expected shape", lambda: buffer.dispatch(few, handle)
            )
            c.good(2)

    ranks(2, body)


def test_every_tensor_of_low_latency_calls(ranks):
    def body(comm):
        with made(comm) as buffer:
            c, where = Calls(buffer), f"on rank {comm.rank}: argument "
            for words, changed in [
                ("topk_idx: expected a contiguous array", {"topk_idx": c.own.ids[:, ::2]}),
                (
                    "cumulative_local_expert_recv_stats: expected int32, got int64",
                    {"cumulative_local_expert_recv_stats": np.zeros(4, np.int64)},
                ),
                (
                    "dispatch_wait_recv_cost_stats: expected int64, got int32",
                    {"dispatch_wait_recv_cost_stats": np.zeros(2, np.int32)},
                ),
                (
                    "dispatch_wait_recv_cost_stats: expected shape [2]",
                    {"dispatch_wait_recv_cost_stats": np.zeros(3, np.int64)},
                ),
                (
                    "num_max_dispatch_tokens_per_rank: expected 1 or more, got 0",
                    {"num_max_dispatch_tokens_per_rank": 0},
                ),
            ]:
                refused(where + words, lambda changed=changed: c.low_latency(**changed))
            host = Elsewhere(c.own.ids)
            refused(
                f"{where}topk_idx: expected host memory",
                lambda: c.low_latency(topk_idx=host),
                braid.Unsupported,
            )
            refused(
                f"{where}mask_status: expected int32",
                lambda: buffer.low_latency_query_mask_buffer(np.zeros(2, np.int64)),
            )
            rows, _, handle, _, _ = c.low_latency()
            ids, weights, back = c.own.ids, c.own.weights, buffer.low_latency_combine
            x, _, _, _, normal_handle, _ = c.normal()
            out = np.zeros((len(ids), c.x.shape[1]), np.float32)
            for words, call in {
                "x: expected bfloat16 or": lambda: back(rows.view(np.int16), ids, weights, handle),
                "topk_idx: expected int64": lambda: back(
                    rows, ids.astype(np.int32), weights, handle
                ),
                "out: expected bfloat16, got float32": lambda: back(
                    rows, ids, weights, handle, out=out
                ),
                "combine_wait_recv_cost_stats: expected int64": lambda: back(
                    rows, ids, weights, handle, combine_wait_recv_cost_stats=np.zeros(2)
                ),
                "zero_copy: expected rows in": lambda: back(
                    rows, ids, weights, handle, zero_copy=True
                ),
                "handle: expected one that low_latency_dispatch() gave": lambda: back(
                    rows, ids, weights, normal_handle
                ),
            }.items():
                refused(where + words, call)
            refused(
                f"{where}handle: expected one that dispatch() gave",
                lambda: buffer.combine(x, handle),
            )
            same(back(rows, ids, weights, handle)[0], c.own.x)
            c.good(2)

    ranks(2, body)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("bytes a row 512, rank 1 has 256", lambda c: {"x": c.x[:, :128].copy()}),
        (
            "num_topk 4, rank 1 has 2",
            lambda c: {
                "topk_idx": c.own.ids[:, :2].copy(),
                "topk_weights": c.own.weights[:, :2].copy(),
            },
        ),
        (
            "side bytes a row 0, rank 1 has 16",
            lambda c: {"x": (c.x, np.zeros((len(c.x), 4), "f4"))},
        ),
        ("options (weights, ids, scales, partial)", lambda _: {"topk_weights": None}),
        ("num_experts 12, rank 1 has 24", None),
    ],
)
def test_where_ranks_disagree_all_get_the_error(ranks, words, change):
    def body(comm):
        with made(comm) as buffer:
            c = Calls(buffer)
            mine = {}
            if comm.rank == 1 and change is None:
                c.experts = 24
                layout = c.layout()
                mine = {"num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
            elif comm.rank == 1:
                mine = change(c)
                if "topk_idx" in mine:
                    mine["is_token_in_rank"] = c.layout(mine["topk_idx"])[3]
            start = time.monotonic()
            refused("ranks disagree: rank 0 has " + words, lambda: c.normal(**mine))
            assert time.monotonic() - start < 15
            c.experts = 12
            c.good(3)

    ranks(3, body)


def test_a_handle_of_another_call_is_an_error_of_all(ranks):
    def body(comm):
        with made(comm) as buffer:
            c = Calls(buffer)
            first, second = c.normal(), c.normal()
            chosen = first if comm.rank == 1 else second
            x, handle = chosen[0], chosen[4]
            words = "ranks disagree: rank 0 has a handle of the dispatch in phase"
            refused(words, lambda: buffer.combine(x, handle))
            refused(words, lambda: buffer.dispatch(c.x, handle))
            out, _, _ = buffer.combine(first[0], first[4])  # an earlier one than the last is fine
            same(out, c.own.x * c.own.is_in.sum(1)[:, None])
            c.good(2)

    ranks(2, body)


def test_where_ranks_differ_in_partial_all_get_the_error(ranks):
    def body(comm):
        with made(comm) as buffer:
            c = Calls(buffer)
            x, _, _, _, handle, _ = c.normal()
            refused(
                "ranks disagree: rank 0 has options",
                lambda: buffer.combine(x, handle, partial="node" if comm.rank else None),
            )
            for partial in (None, "node"):
                out, _, _ = buffer.combine(x, handle, partial=partial)
                same(out, c.own.x * c.own.is_in.sum(1)[:, None])

    ranks(2, body)


# Counted twice: two rows at the expert, and the sum has it twice.
def test_the_same_expert_twice_counts_twice(ranks):
    def body(comm):
        with made(comm) as buffer:
            c = Calls(buffer)
            ids = np.full((3, 2), 4 * (1 - comm.rank), np.int64)  # the other rank's first expert
            x = c.x[:3].copy()
            rows, count, handle, _, _ = c.low_latency(x=x, topk_idx=ids)
            assert count.tolist() == [6, 0, 0, 0]
            weights = np.full((3, 2), 0.5, np.float32)
            weights[:, 1] = 1.5
            same(buffer.low_latency_combine(rows, ids, weights, handle)[0], 2 * c.own.x[:3])
            per_rank, _, per_expert, is_in, _ = c.layout(ids)
            assert per_expert.sum() == 6
            assert per_rank.tolist() == [3 * comm.rank, 3 * (1 - comm.rank)]
            got, got_ids, _, counts, _, _ = c.normal(
                x=x, num_tokens_per_rank=per_rank, is_token_in_rank=is_in,
                num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights,
            )  # fmt: skip
            assert len(got) == 3
            assert got_ids.tolist() == [[0, 0]] * 3
            assert counts == [6, 0, 0, 0]

    ranks(2, body)


def test_a_buffer_for_less_than_the_hint_says_what_it_needs(ranks):
    def body(comm):
        hint = braid.moe.Buffer.get_low_latency_rdma_size_hint(64 * M, 4096, 2, 8)
        with braid.moe.Buffer(comm, 0, hint // 4, low_latency_mode=True) as buffer:
            x = np.zeros((4, 4096), np.float32)
            with pytest.raises(braid.InvalidArgument) as raised:
                buffer.low_latency_dispatch(x, np.zeros((4, 2), np.int64), 64 * M, 8, use_fp8=False)
            found = re.search(r"expected halves of (\d+) bytes .* got (\d+)", str(raised.value))
            assert found
            assert int(found[1]) > int(found[2])

    ranks(2, body)

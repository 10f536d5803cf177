"""braid.moe.ElasticBuffer: DeepEP's second class, called in the order of its own test: compact,
expanded and cached dispatches, combines of each; and what is refused by name.
"""

import re

import ml_dtypes
import numpy as np
import pytest
from moe_data import Library, libraries, make, rows_by_expert, rows_by_source, same

import braid
from braid.moe import ElasticBuffer, expanded, library

H, M, K, L = 256, 24, 4, 4


def made(comm, **options):
    return ElasticBuffer(comm, num_max_tokens_per_rank=M, hidden=H, num_topk=K, **options)


def rounded(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("alignment", [1, 8])
def test_calls_in_the_order_of_deepeps_test(ranks, size, library, alignment):
    def body(comm):
        lib = Library(library)
        with made(comm) as buffer:
            assert buffer.get_logical_domain_size() == (1, size)
            for seed in range(4):
                every = [make(seed, r, size, H) for r in range(size)]
                one_layer(comm, buffer, lib, every, alignment)

    ranks(size, body)


@pytest.mark.parametrize("library", libraries())
def test_the_way_of_gpus_gives_the_same(ranks, library, monkeypatch):
    """There every row is moved, since how many are here would have to be waited for."""
    monkeypatch.setattr(expanded, "_counts_late", lambda _: True)

    def body(comm):
        with made(comm) as buffer:
            for seed in range(4):
                every = [make(seed, r, 2, H) for r in range(2)]
                one_layer(comm, buffer, Library(library), every, 8)

    ranks(2, body)


def test_in_host_memory_no_row_is_moved_for_a_choice_elsewhere(ranks, monkeypatch):
    class Counted(np.ndarray):
        def __setitem__(self, place, rows):
            spread.append(len(rows))
            super().__setitem__(place, rows)

    spread, summed = [], []
    raw, cast = library.NumPy.raw, library.NumPy.cast

    def note_raw(self, array):
        return raw(self, array).view(Counted)

    def note_cast(self, array, dtype):
        summed.append(len(array))
        return cast(self, array, dtype)

    def body(comm):
        own = make(4, comm.rank, 1, H)
        x, ids = own.x.astype(ml_dtypes.bfloat16), own.ids.copy()
        ids[::2, 1:] = -1
        with made(comm) as buffer:
            got, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=L, do_expand=True)
            monkeypatch.setattr(library.NumPy, "raw", note_raw)
            buffer.dispatch(x, handle=handle, do_expand=True)
            monkeypatch.setattr(library.NumPy, "cast", note_cast)
            buffer.combine(got, handle)
        assert 0 < sum(spread) == (ids >= 0).sum()
        assert summed[-1] == len(x)  # what goes back
        assert sum(summed[:-1]) == (ids >= 0).sum()

    ranks(1, body)


def one_layer(comm, buffer, lib, every, alignment):
    size, own = comm.size, every[comm.rank]
    x, ids, weights = lib.bf16(own.x), lib.of(own.ids), lib.of(own.weights)
    num_sms = buffer.get_theoretical_num_sms(L * size, K)
    asked = {
        "num_sms": num_sms, "num_qps": buffer.get_theoretical_num_qps(num_sms),
        "async_with_compute_stream": True,
    }  # fmt: skip
    stats = lib.of(np.zeros(L, np.int32))
    given = {
        "x": x, "topk_idx": ids, "topk_weights": weights, "num_max_tokens_per_rank": M,
        "num_experts": L * size, "expert_alignment": alignment, **asked,
    }  # fmt: skip
    rows = rows_by_source(every, comm.rank)
    got, got_ids, got_weights, handle, event = buffer.dispatch(
        **given, cumulative_local_expert_recv_stats=stats, previous_event=buffer.capture()
    )
    event.current_stream_wait()
    wanted = np.stack([every[s].x[t] for s, t in rows]) if rows else np.empty((0, H))
    same(got, wanted)
    local = np.array(
        [
            [i - L * comm.rank if i // L == comm.rank else -1 for i in every[s].ids[t]]
            for s, t in rows
        ]
    ).reshape(-1, K)
    same(got_ids, local)
    counts = np.array([(local == e).sum() for e in range(L)])
    padded = (counts + alignment - 1) // alignment * alignment
    same(stats, counts)
    assert handle.num_recv_tokens_per_expert_list == padded.tolist()
    same(handle.psum_num_recv_tokens_per_expert, padded.cumsum())
    same(handle.num_unaligned_recv_tokens_per_expert, counts)
    psum = handle.psum_num_recv_tokens_per_scaleup_rank
    assert int(psum[-1]) == len(rows)
    assert psum.is_contiguous() if lib.name == "torch" else psum.flags["C_CONTIGUOUS"]
    same(handle.recv_src_metadata[:, 0], [s * M + t for s, t in rows])

    by_expert, none, flat_weights, expanded, event = buffer.dispatch(**given, do_expand=True)
    event.current_stream_wait()
    assert none is None
    begins = padded.cumsum() - padded
    same(expanded.psum_num_recv_tokens_per_expert, begins + counts)
    slots = lib.numpy(expanded.recv_src_metadata)[:, 2:]
    assert ((slots >= 0) == (local >= 0)).all()
    for e in range(L):
        for i, (s, t, k) in enumerate(rows_by_expert(every, comm.rank, e)):
            place = begins[e] + i
            same(by_expert[place], every[s].x[t])
            assert float(flat_weights[place]) == every[s].weights[t, k]
            assert slots[rows.index((s, t)), k] == place

    again, none, no_weights, same_handle, _ = buffer.dispatch(x, handle=handle, **asked)
    assert (none, no_weights) == (None, None)
    assert same_handle is handle
    same(again, got)
    zeroed, _, flat_again, _, _ = buffer.dispatch(
        x, topk_weights=weights, do_expand=True, do_zero_padding=True, handle=expanded, **asked
    )
    same(flat_again, flat_weights)
    is_row = np.zeros(padded.sum(), bool)
    is_row[slots[slots >= 0]] = True
    same(lib.numpy(zeroed)[is_row], lib.numpy(by_expert)[is_row])
    assert (lib.numpy(zeroed)[~is_row].astype(np.float32) == 0).all()

    worst, worst_ids, _, without_sync, _ = buffer.dispatch(**given, do_cpu_sync=False)
    assert tuple(worst.shape) == (size * M, H)
    same(worst[: len(rows)], got)
    assert (lib.numpy(worst_ids)[len(rows) :] == -1).all()
    assert without_sync.num_recv_tokens_per_expert_list == []
    same(without_sync.recv_src_metadata[: len(rows), 0], handle.recv_src_metadata[:, 0])

    # A handle is good for as many rows as its own dispatch gave, with weights, too.
    cached, _, cached_weights, _, event = buffer.dispatch(
        x, topk_weights=weights, handle=without_sync, **asked
    )
    event.current_stream_wait()
    assert tuple(cached.shape) == (size * M, H)
    same(cached[: len(rows)], got)

    # Every rank's rows as they came: a token comes back once for each rank, or for each choice.
    bias = lib.bf16(np.ones_like(own.x))
    for h, y, w, times in (
        (handle, got, got_weights, own.is_in.sum(1)),
        (without_sync, worst, None, own.is_in.sum(1)),
        (without_sync, cached, cached_weights, own.is_in.sum(1)),
        (expanded, by_expert, flat_weights, (own.ids >= 0).sum(1)),
    ):
        out, out_weights, event = buffer.combine(y, h, w, (bias, bias), **asked)
        event.current_stream_wait()
        same(out, rounded(own.x * times[:, None] + 2))
        if w is not None:
            same(out_weights, np.where(own.ids < 0, 0, own.weights))


@pytest.mark.parametrize("library", libraries())
def test_fp8_rows_and_their_scales(ranks, library):
    def body(comm):
        lib = Library(library)
        every = [make(5, r, 2, H) for r in range(2)]
        own = every[comm.rank]
        x, scales = own.x.astype(ml_dtypes.float8_e4m3fn), own.x[:, :3].copy()
        if library == "torch":
            import torch

            x = torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn)
            scales = torch.from_numpy(scales)
        with made(comm, use_fp8_dispatch=True) as buffer:
            (rows, row_scales), _, _, handle, _ = buffer.dispatch(
                (x, scales), lib.of(own.ids), lib.of(own.weights), num_experts=8, do_expand=True,
                use_tma_aligned_col_major_sf=True,
            )  # fmt: skip
            for e in range(L):
                for s, t, _ in rows_by_expert(every, comm.rank, e)[:1]:
                    place = int(handle.psum_num_recv_tokens_per_expert[e]) - int(
                        handle.num_unaligned_recv_tokens_per_expert[e]
                    )
                    wide = every[s].x[t].astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
                    same(lib.numpy(rows)[place], wide)
                    same(row_scales[place], every[s].x[t, :3])
            flat = lib.numpy(row_scales)
            assert flat.strides[0] == 4
            assert flat.strides[1] % 16 == 0

    ranks(2, body)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_layout_is_made_where_the_dispatch_waits_for_it(ranks, is_async, monkeypatch):
    """On a GPU an asynchronous dispatch has a stream of its own: a layout on the caller's would be
    read before it is made.
    """

    def body(comm):
        own = make(4, comm.rank, 1, H)
        with made(comm) as buffer:
            inner, seen = buffer._inner, []
            lay_out, dispatch = inner.get_dispatch_layout, inner.dispatch

            def note_layout(ids, experts, previous, *how):
                *laid, event = lay_out(ids, experts, previous, *how)
                seen.append((previous, how, event))
                return *laid, event

            def note_dispatch(*given, **style):
                seen.append(style)
                return dispatch(*given, **style)

            monkeypatch.setattr(inner, "get_dispatch_layout", note_layout)
            monkeypatch.setattr(inner, "dispatch", note_dispatch)
            previous = buffer.capture()
            buffer.dispatch(
                own.x, own.ids, own.weights, num_experts=L, previous_event=previous,
                async_with_compute_stream=is_async, allocate_on_comm_stream=is_async,
            )  # fmt: skip
            (behind, how, event), style = seen
            assert behind is previous
            assert how == (is_async, is_async)
            assert style["previous_event"] is event
            assert (style["async_finish"], style["allocate_on_comm_stream"]) == how

    ranks(1, body)


@pytest.mark.parametrize("do_expand", [False, True])
def test_a_rank_that_nothing_comes_to(ranks, do_expand):
    """All tokens go to rank 0, by the handle with weights as well."""

    def body(comm):
        own = make(4, comm.rank, 2, H)
        x, ids = own.x.astype(ml_dtypes.bfloat16), own.ids % L
        with made(comm) as buffer:
            given = {"do_expand": do_expand}
            got, _, _, handle, _ = buffer.dispatch(x, ids, own.weights, num_experts=2 * L, **given)
            again, _, weights, _, _ = buffer.dispatch(
                x, topk_weights=own.weights, handle=handle, **given
            )
            assert (len(got) == 0) == (comm.rank == 1)
            assert again.shape == got.shape
            out, out_weights, _ = buffer.combine(again, handle, weights)
            same(out, rounded(own.x * (K if do_expand else 1)))
            same(out_weights, own.weights)

    ranks(2, body)


def test_what_is_refused(ranks):
    def refused(words, call, kind=braid.InvalidArgument):
        with pytest.raises(kind, match=re.escape(words)):
            call()

    def body(comm):
        for name, value in {
            "num_cpu_bytes": 1, "sl_idx": 0, "num_cpu_timeout_secs": 5, "num_gpu_timeout_secs": 5,
        }.items():  # fmt: skip
            refused(
                f"argument {name}", lambda n=name, v=value: made(comm, **{n: v}), braid.Unsupported
            )
        own = make(4, comm.rank, 2, H)
        x = own.x.astype(ml_dtypes.bfloat16)
        with made(comm, allow_multiple_reduction=False) as buffer:

            def dispatch(**changed):
                return buffer.dispatch(**{"x": x, "topk_idx": own.ids, "num_experts": 8, **changed})

            got, _, _, handle, _ = dispatch(topk_weights=own.weights)
            for words, changed in {
                "topk_idx: expected an array, or a handle": {"topk_idx": None},
                "num_experts: expected a number": {"num_experts": None},
                "topk_idx: expected None beside a handle": {"handle": handle},
                "at most 2 tokens (num_max_tokens_per_rank)": {"num_max_tokens_per_rank": 2},
                "num_max_tokens_per_rank: expected 1 or more": {"num_max_tokens_per_rank": 0},
                "do_zero_padding: expected False without do_expand": {"do_zero_padding": True},
                "col_major_sf: expected False without": {"use_tma_aligned_col_major_sf": True},
                "handle: expected one that dispatch() gave": {"handle": 3, "topk_idx": None},
            }.items():
                refused(words, lambda c=changed: dispatch(**c))
            cached = {"topk_idx": None, "num_experts": None, "handle": handle}
            for words, changed in {
                "do_expand: expected False, as of the handle": {"do_expand": True},
                "do_cpu_sync: expected False beside": {"do_cpu_sync": True},
                "num_experts: expected 8, as of the handle": {"num_experts": 4},
                "expert_alignment: expected 1, as of": {"expert_alignment": 4},
            }.items():
                refused(words, lambda c=changed: dispatch(**{**cached, **c}))
            for words, changed in {
                "previous_event_before_epilogue": {
                    "previous_event_before_epilogue": buffer.capture()
                },
                "argument do_cpu_sync": {"do_expand": True, "do_cpu_sync": False},
            }.items():
                refused(words, lambda c=changed: dispatch(**c), braid.Unsupported)
            y, _, _, expanded, _ = dispatch(do_expand=True)
            refused(
                "allow_multiple_reduction", lambda: buffer.combine(y, expanded), braid.Unsupported
            )
            refused("argument x: expected the", lambda: buffer.combine(got[:1], handle))
            refused("argument handle: expected one", lambda: buffer.combine(got, handle.inner))
            out, _, _ = buffer.combine(got, handle)
            same(out, rounded(own.x * own.is_in.sum(1)[:, None]))
        refused("it was destroyed", lambda: dispatch())

    ranks(2, body)

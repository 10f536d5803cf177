"""braid.moe on a GPU's tensors against the twin in host memory, byte for byte: both modes, types,
formats, hooks, events, cached handles, worst cases, graphs, bad input, results without memory; and
last what ends a comm.

    braid run -n 2 tests/gpu/moe.py                 a rank per GPU
    braid run -n 3 tests/gpu/moe.py --share         all ranks on the first GPU
    braid run -n 2 tests/gpu/moe.py --end shape     ends with: ids, shape, partial, absent (default:
                                                    nothing)
"""

import argparse
import functools
import os
import sys
import time
from dataclasses import dataclass

import torch

import braid
from braid.errors import Error, InvalidArgument, Unsupported
from braid.moe import Buffer, ElasticBuffer
from braid.torch.moe import Torch

M = 48


@dataclass
class Shape:
    experts: int  # of a rank
    topk: int
    hidden: int
    dtype: torch.dtype = torch.bfloat16


SHAPES = [
    Shape(4, 4, 512),
    Shape(1, 1, 128),
    Shape(3, 6, 2560, torch.float16),
    Shape(8, 8, 7168),
    Shape(2, 5, 1024, torch.float32),
]


@dataclass
class Tokens:
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def cuda(self):
        return Tokens(self.x.cuda(), self.ids.cuda(), self.weights.cuda())


def tokens_of(shape, seed, rank, size, most=M):
    """Uneven, none on some rank at times; some ids of -1, some tokens that name an expert twice."""
    made = torch.Generator().manual_seed(1000 * seed + rank)
    count = 0 if (seed + rank) % 7 == 3 else int(torch.randint(1, most + 1, (), generator=made))
    return so_many_tokens(shape, count, made, size, drops=0.2 if seed % 3 == 1 else 0)


def so_many_tokens(shape, count, made, size, drops=0):
    experts = shape.experts * size
    x = (torch.randn(count, shape.hidden, generator=made) * 3).to(shape.dtype)
    choices = [torch.randperm(experts, generator=made) for _ in range(count)]
    wide = [torch.cat([c] * (shape.topk // experts + 1))[: shape.topk] for c in choices]
    ids = torch.stack(wide) if wide else torch.zeros(0, shape.topk, dtype=torch.int64)
    dropped = torch.rand(ids.shape, generator=made) < drops
    weights = torch.rand(count, shape.topk, generator=made)
    return Tokens(x, ids.masked_fill(dropped, -1), weights)


class Checks:
    def __init__(self, comm):
        self.comm, self.failed, self.made = comm, 0, 0

    def expect(self, is_right, text):
        self.made += 1
        if not is_right:
            self.failed += 1
            if self.failed <= 20:
                print(f"rank {self.comm.rank}: WRONG {text}", flush=True)

    def same(self, found, wanted, text):
        """Bytes, shapes and types."""
        if wanted is None or isinstance(wanted, list):
            self.expect(found == wanted, f"{text}: {found}, expected {wanted}")
            return
        found = found.cpu()
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            self.expect(False, f"{text}: {found.shape} {found.dtype}")
            return
        flat = [each.new_empty(each.numel()).copy_(each.flatten()) for each in (found, wanted)]
        a, b = (each.view(torch.uint8) for each in flat)
        differ = (a != b).nonzero().flatten()
        first = int(differ[0]) if len(differ) else -1
        self.expect(first < 0, f"{text}: {len(differ)} of {len(b)} bytes, first {first}")

    def refused(self, kind, words, call, text):
        try:
            call()
        except kind as error:
            self.expect(words in str(error), f"{text}: said '{error}'")
        else:
            self.expect(False, f"{text}: was taken")


def rows(got, count):
    """Of [L, M*N, ...] what counts say, and no more."""
    return [got[e, :n] for e, n in enumerate(count.tolist())]


def low_latency_capacity(shape, size):
    """Rows of a source that an expert may get: more than tokens where they name it twice."""
    return M * (shape.topk // (shape.experts * size) + 1)


class LowLatency:
    """One dispatch and combine by any memory's calls."""

    def __init__(self, buffer, shape, tokens, form, capacity, **asked):
        self.buffer, self.tokens, self.capacity = buffer, tokens, capacity
        self.experts = shape.experts * buffer.group_size
        fp8 = {"use_fp8": form > 0, "round_scale": form > 1, "use_ue8m0": form > 2}
        place = {"device": tokens.x.device}
        self.stats = torch.ones(shape.experts, dtype=torch.int32, **place)
        self.waits = torch.zeros(buffer.group_size, dtype=torch.int64, **place)
        self.got, self.count, self.handle, self.event, self.hook = buffer.low_latency_dispatch(
            tokens.x, tokens.ids, capacity, self.experts, self.stats, self.waits, **fp8, **asked
        )

    def back(self, y, **asked):
        t = self.tokens
        return self.buffer.low_latency_combine(y, t.ids, t.weights, self.handle, **asked)


def made_rows(like, shape, seed):
    """What experts made: the same numbers in every memory, also in rows that nobody sent."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*like.shape, generator=made).to(shape.dtype)


def check_low_latency(checks, buffer, shape, seed):
    size, rank = checks.comm.size, checks.comm.rank
    form = seed % 4 if shape.hidden % 512 == 0 else seed % 3 if shape.hidden % 128 == 0 else 0
    capacity = low_latency_capacity(shape, size)
    here = tokens_of(shape, seed, rank, size)
    there = here.cuda()
    twin = LowLatency(buffer, shape, here, form, capacity)
    how = seed % 3
    asked = [{}, {"return_recv_hook": True}, {"async_finish": True}][how]
    gpu = LowLatency(buffer, shape, there, form, capacity, **asked)
    if how == 1:
        gpu.hook()
    gpu.event.current_stream_wait()
    name = f"low latency {shape} seed {seed} form {form}"
    checks.same(gpu.count, twin.count, f"{name}: count")
    checks.same(gpu.stats, twin.stats, f"{name}: stats")
    checks.same(gpu.handle[1], twin.handle[1], f"{name}: layout_range")
    pairs = [(gpu.handle[0], twin.handle[0], "src_info")]
    if form:
        pairs += zip(gpu.got, twin.got, ("x", "scales"), strict=True)
    else:
        pairs.append((gpu.got, twin.got, "x"))
    for found, wanted, what in pairs:
        for e, (a, b) in enumerate(
            zip(rows(found, twin.count), rows(wanted, twin.count), strict=True)
        ):
            checks.same(a, b, f"{name}: {what} of expert {e}")
    y = made_rows(twin.got[0] if form else twin.got, shape, seed)
    wanted, _, _ = twin.back(y)
    asked = [{"return_recv_hook": True}, {"async_finish": True}, {}][how]
    if how == 2:
        asked["out"] = torch.full_like(there.x, 7)
    found, event, hook = gpu.back(y.cuda(), **asked)
    if how == 0:
        hook()
    event.current_stream_wait()
    checks.same(found, wanted, f"{name}: combined")


def check_by_rank(checks, buffer, shape, seed):
    """partial="rank", by hooks, streams and with `out`; and a plain combine behind it."""
    size, rank = checks.comm.size, checks.comm.rank
    form = seed % 4 if shape.hidden % 512 == 0 else 0
    capacity = low_latency_capacity(shape, size)
    here = tokens_of(shape, seed, rank, size)
    there = here.cuda()
    how = seed % 3
    asked = [{}, {"return_recv_hook": True}, {"async_finish": True}][how]
    twin = LowLatency(buffer, shape, here, form, capacity, topk_weights=here.weights)
    gpu = LowLatency(buffer, shape, there, form, capacity, topk_weights=there.weights, **asked)
    if how == 1:
        gpu.hook()
    gpu.event.current_stream_wait()
    name = f"by rank {shape} seed {seed} form {form}"
    checks.same(gpu.count, twin.count, f"{name}: count")
    x, wanted = (gpu.got[0], twin.got[0]) if form else (gpu.got, twin.got)
    pairs = zip(rows(x, twin.count), rows(wanted, twin.count), strict=True)
    for e, (a, b) in enumerate(pairs):
        checks.same(a, b, f"{name}: rows of expert {e}")
    copies = [each.cpu() for each in gpu.handle.copies]
    checks.same(copies[0], twin.handle.copies[0], f"{name}: copies")
    for source, n in enumerate(twin.handle.copies[0].tolist()):
        for what in (1, 2):
            checks.same(
                copies[what][source, :n], twin.handle.copies[what][source, :n],
                f"{name}: table {what} of rank {source}",
            )  # fmt: skip
    y = made_rows(wanted, shape, seed)
    wanted, _, _ = twin.back(y, partial="rank")
    asked = [{"return_recv_hook": True}, {"async_finish": True}, {}][how]
    if how == 2:
        asked["out"] = torch.full_like(there.x, 7)
    found, event, hook = gpu.back(y.cuda(), partial="rank", **asked)
    if how == 0:
        hook()
    event.current_stream_wait()
    checks.same(found, wanted, f"{name}: combined")
    checks.same(gpu.back(y.cuda())[0], twin.back(y)[0], f"{name}: combined in full")


def check_two_alive(checks, buffer, shape, seed):
    """Two dispatches under way, received in the other order; a third one is refused."""
    size, rank = checks.comm.size, checks.comm.rank
    tokens = [tokens_of(shape, seed + i, rank, size) for i in range(2)]
    capacity = low_latency_capacity(shape, size)
    twins = [LowLatency(buffer, shape, each, 0, capacity) for each in tokens]
    first, second = (
        LowLatency(buffer, shape, each.cuda(), 0, capacity, return_recv_hook=True)
        for each in tokens
    )
    third = lambda: LowLatency(buffer, shape, tokens[0].cuda(), 0, capacity)  # noqa: E731
    checks.refused(InvalidArgument, "two results are alive", third, "a third result")
    second.hook(), first.hook()
    checks.refused(InvalidArgument, "called already", first.hook, "a hook called twice")
    for gpu, twin, which in ((first, twins[0], "first"), (second, twins[1], "second")):
        y = made_rows(twin.got, shape, seed)
        checks.same(gpu.count, twin.count, f"two alive: count of the {which}")
        for a, b in zip(rows(gpu.got, twin.count), rows(twin.got, twin.count), strict=True):
            checks.same(a, b, f"two alive: rows of the {which}")
        checks.same(gpu.back(y.cuda())[0], twin.back(y)[0], f"two alive: the {which} combined")


def check_at_once(checks, buffer, shape, seed):
    """A dispatch in one piece beside one whose hook is yet to be called; events of calls that are
    not asynchronous, waited for by another stream.
    """
    size, rank = checks.comm.size, checks.comm.rank
    tokens = [tokens_of(shape, seed + i, rank, size) for i in range(2)]
    capacity = low_latency_capacity(shape, size)
    twins = [LowLatency(buffer, shape, each, 0, capacity) for each in tokens]
    side = torch.cuda.Stream()

    def copied(found, event, wanted, text):
        with torch.cuda.stream(side):
            event.current_stream_wait()
            copy = found.clone()
        side.synchronize()
        checks.same(copy, wanted, f"at once: {text}")

    first = LowLatency(buffer, shape, tokens[0].cuda(), 0, capacity, return_recv_hook=True)
    second = LowLatency(buffer, shape, tokens[1].cuda(), 0, capacity)
    checks.expect(second.hook is None, "a hook that nobody asked for")
    copied(second.count, second.event, twins[1].count, "count beside a hook")
    first.hook()
    for gpu, twin, which in ((second, twins[1], "second"), (first, twins[0], "first")):
        checks.same(gpu.count, twin.count, f"at once: count of the {which}")
        for a, b in zip(rows(gpu.got, twin.count), rows(twin.got, twin.count), strict=True):
            checks.same(a, b, f"at once: rows of the {which}")
        y = made_rows(twin.got, shape, seed)
        wanted = twin.back(y)[0]
        given = y.cuda()
        for _ in range(
            2
        ):  # of one handle, without a hook between: the next is behind the one before
            found, event, _ = gpu.back(given)
        copied(found, event, wanted, f"the {which} combined")


def check_normal(checks, buffer, shape, seed):
    size, rank = checks.comm.size, checks.comm.rank
    most = 700 if seed % 4 == 2 else M  # in some rounds
    here = tokens_of(shape, seed, rank, size, most)
    there = here.cuda()
    experts = shape.experts * size
    name = f"normal {shape} seed {seed}, {len(here.x)} tokens"
    is_pair = seed % 3 == 2
    scales = torch.arange(4 * len(here.x), dtype=torch.float32).view(-1, 4) + rank
    is_async = seed % 2 == 1
    results = []
    for tokens in (here, there):
        x = (tokens.x, scales.to(tokens.x.device)) if is_pair else tokens.x
        weights = None if seed % 4 == 3 else tokens.weights
        per_rank, _, per_expert, is_in, event = buffer.get_dispatch_layout(
            tokens.ids, experts, async_finish=is_async
        )
        asked = {"previous_event": event, "async_finish": is_async}
        got = buffer.dispatch(
            x, None, per_rank, None, is_in, per_expert, tokens.ids, weights, 8,
            allocate_on_comm_stream=is_async, **asked,
        )  # fmt: skip
        handle = got[4]
        got[5].current_stream_wait()
        again = buffer.dispatch(x, handle=handle)
        worst = buffer.dispatch(
            x, None, per_rank, None, is_in, per_expert, tokens.ids, weights,
            num_worst_tokens=most * size + 5,
        )  # fmt: skip
        y = made_rows(tokens.x.new_empty(handle[3].shape[0], shape.hidden), shape, seed)
        bias = made_rows(tokens.x, shape, seed + 1).to(tokens.x.device)
        biases = [None, bias, (bias, bias)][seed % 3]
        back = buffer.combine(y.to(tokens.x.device), handle, got[2], biases, async_finish=is_async)
        back[2].current_stream_wait()
        y_worst = made_rows(tokens.x.new_empty(most * size + 5, shape.hidden), shape, seed)
        back_worst = buffer.combine(y_worst.to(tokens.x.device), worst[4])
        results.append((per_rank, per_expert, is_in, got, again, worst, back, back_worst))
    twin, gpu = results
    for what, a, b in zip(("per rank", "per expert", "is_in"), gpu[:3], twin[:3], strict=True):
        checks.same(a, b, f"{name}: layout: {what}")
    n = len(twin[3][4][3])
    flat = lambda rows: rows if isinstance(rows, tuple) else (rows,)  # noqa: E731
    for which, a, b in (("", gpu[3], twin[3]), ("cached ", gpu[4], twin[4])):
        for part, (c, d) in enumerate(zip(flat(a[0]), flat(b[0]), strict=True)):
            checks.same(c, d, f"{name}: {which}rows, part {part}")
        for what in (1, 2, 3):
            checks.same(a[what], b[what], f"{name}: {which}result {what}")
    checks.same(gpu[3][4][0], twin[3][4][0], f"{name}: rank_prefix_matrix")
    checks.same(gpu[3][4][3], twin[3][4][3], f"{name}: recv_src_idx")
    for c, d in zip(flat(gpu[5][0]), flat(twin[5][0]), strict=True):
        checks.same(c[:n], d[:n], f"{name}: rows of the worst case")
    checks.same(gpu[5][1], twin[5][1], f"{name}: ids of the worst case")
    checks.same(gpu[5][3], twin[5][3], f"{name}: counts of the worst case")
    checks.same(gpu[6][0], twin[6][0], f"{name}: combined")
    checks.same(gpu[6][1], twin[6][1], f"{name}: combined weights")
    checks.same(gpu[7][0], twin[7][0], f"{name}: combined from the worst case")


def check_sizes_of_late(checks, buffer, shape, seed):
    """Sizes go up and down between calls, on each rank otherwise: some are finished before they
    are known; for some there was no room then, as on ranks that have few tokens themselves.
    """
    size, rank = checks.comm.size, checks.comm.rank
    experts, most = shape.experts * size, 700 if seed % 2 else M
    parts = (0.1, 1, 1, 0.9, 0.3, 0, 0.05, 1, 0.95)
    calls = 2 * len(parts)
    tried = 0
    for call in range(calls):
        made = torch.Generator().manual_seed(1000 * (seed + call) + rank)
        count = most if (call + rank) % 3 else 8
        here = so_many_tokens(shape, count, made, size)
        going = int(parts[(call + rank) % len(parts)] * count)
        here.ids[going:] = -1
        results = []
        for t in (here, here.cuda()):
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(t.ids, experts)
            got = buffer.dispatch(t.x, None, per_rank, None, is_in, per_expert, t.ids, t.weights)
            y = made_rows(t.x.new_empty(len(got[0]), shape.hidden), shape, seed)
            results.append((got, *buffer.combine(y.to(t.x.device), got[4], got[2])[:2]))
        (twin, *back), (gpu, *gpu_back) = results
        name = f"sizes of late {shape} seed {seed} call {call}"
        for what in range(4):
            checks.same(gpu[what], twin[what], f"{name}: result {what}")
        checks.same(gpu[4][3], twin[4][3], f"{name}: recv_src_idx")
        for what, found, wanted in zip(("rows", "weights"), gpu_back, back, strict=True):
            checks.same(found, wanted, f"{name}: combined {what}")
        tried += gpu[0].untyped_storage().nbytes() > gpu[0].nbytes
        checks.expect(not gpu[0]._is_view(), f"{name}: torch lets nobody write into a view")
    return tried, calls


def check_elastic(checks, buffer, shape, seed):
    """ElasticBuffer: compact, expanded and cached, by the GPU and in host memory."""
    size = checks.comm.size
    here = tokens_of(shape, seed, checks.comm.rank, size)
    name = f"elastic {shape}, seed {seed}"
    results = []
    for t in (here, here.cuda()):
        given = {
            "topk_idx": t.ids, "topk_weights": t.weights, "num_experts": shape.experts * size,
            "expert_alignment": (1, 8)[seed % 2], "async_with_compute_stream": seed % 3 == 0,
        }  # fmt: skip
        # What the caller's stream holds behind the event, an asynchronous call does not wait for.
        given["previous_event"] = buffer.capture()
        if t.x.is_cuda and seed % 3 == 0:
            torch.cuda._sleep(2_000_000)
        x, ids, weights, compact, event = buffer.dispatch(t.x, **given)
        event.current_stream_wait()
        wide, _, flat, expanded, event = buffer.dispatch(
            t.x, **given, do_expand=True, do_zero_padding=True
        )
        event.current_stream_wait()
        again = buffer.dispatch(t.x, handle=compact)[0]
        again_flat = buffer.dispatch(
            t.x, topk_weights=t.weights, handle=expanded, do_expand=True, do_zero_padding=True
        )[:3:2]
        worst = buffer.dispatch(t.x, **given, do_cpu_sync=False)
        made = made_rows(x.cpu(), shape, seed).to(x.device)
        bias = made_rows(t.x.cpu(), shape, seed + 1).to(x.device)
        back = buffer.combine(made, compact, weights, bias, previous_event=buffer.capture())
        made = made_rows(wide.cpu(), shape, seed + 2).to(x.device)
        folded = buffer.combine(made, expanded, flat, (bias, bias))
        numbers = [
            (h.psum_num_recv_tokens_per_scaleup_rank, h.psum_num_recv_tokens_per_expert,
             h.recv_src_metadata, h.num_unaligned_recv_tokens_per_expert)
            for h in (compact, expanded, worst[3])
        ]  # fmt: skip
        lists = [h.num_recv_tokens_per_expert_list for h in (compact, expanded, worst[3])]
        tensors = (
            x, ids, weights, wide, flat, again, *again_flat, worst[1], *back[:2], *folded[:2],
            *(each for of_handle in numbers for each in of_handle),
        )  # fmt: skip
        results.append((tensors, lists, worst[0][: len(x)]))
    (twin, twin_lists, twin_worst), (gpu, gpu_lists, gpu_worst) = results
    for i, (a, b) in enumerate(zip(gpu, twin, strict=True)):
        checks.same(a, b, f"{name}: result {i}")
    checks.same(gpu_worst, twin_worst, f"{name}: rows of the worst case")
    checks.same(gpu_lists, twin_lists, f"{name}: counts")


def check_elastic_graph(checks, buffer, shape, seed):
    """A cached dispatch, expanded, and its combine in a graph: nothing there waits for a size."""
    size = checks.comm.size
    t = tokens_of(shape, seed, checks.comm.rank, size).cuda()
    given = {"do_expand": True, "do_zero_padding": True}
    _, _, _, handle, _ = buffer.dispatch(
        t.x, topk_idx=t.ids, topk_weights=t.weights, num_experts=shape.experts * size, **given
    )

    def layer():
        rows, _, weights, _, _ = buffer.dispatch(
            t.x, topk_weights=t.weights, handle=handle, **given
        )
        return rows, weights, *buffer.combine(rows, handle, weights)[:2]

    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer()
    for replay in range(2):
        t.x.mul_(-1), t.weights.mul_(0.5)
        graph.replay()
        torch.cuda.synchronize()
        for i, (a, b) in enumerate(zip(found, layer(), strict=True)):
            checks.same(a, b.cpu(), f"elastic graph {shape}, replay {replay}: result {i}")


def check_graphs(checks, buffer, shape, seed):
    """Two layers of each mode in a graph, replayed with other numbers."""
    size, rank = checks.comm.size, checks.comm.rank
    capacity, experts = low_latency_capacity(shape, size), shape.experts * size
    count = 16
    most = count * size

    def fresh(i):
        made = tokens_of(shape, seed + 10 * i, rank, size)
        while len(made.x) < count:
            made = tokens_of(shape, int(torch.randint(1 << 20, ())), rank, size)
        return Tokens(made.x[:count], made.ids[:count], made.weights[:count])

    def layers(t):
        low = LowLatency(buffer, shape, t, 0, capacity)
        first, _, _ = low.back(low.got)
        asked = {"topk_weights": t.weights}
        low = LowLatency(buffer, shape, Tokens(first, t.ids, t.weights), 0, capacity, **asked)
        second, _, _ = low.back(low.got, partial="rank")
        per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(t.ids, experts)
        got, ids, _, _, handle, _ = buffer.dispatch(
            t.x, None, per_rank, None, is_in, per_expert, t.ids, t.weights, num_worst_tokens=most
        )
        third, _, _ = buffer.combine(got, handle)
        return low.count, first, second, ids, third

    static = fresh(0).cuda()
    layers(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layers(static)
    refused = lambda: buffer.dispatch(static.x)  # noqa: E731
    checks.refused(InvalidArgument, "is_token_in_rank", refused, "a dispatch without a layout")
    for replay in range(1, 4):
        here = fresh(replay)
        for to, of in ((static.x, here.x), (static.ids, here.ids), (static.weights, here.weights)):
            to.copy_(of)
        graph.replay()
        wanted = layers(here)
        torch.cuda.synchronize()
        names = ("count", "first layer", "second layer", "ids", "normal")
        for what, a, b in zip(names, found, wanted, strict=True):
            checks.same(a, b, f"graph {shape}, replay {replay}: {what}")
    layers(static)  # calls beside the graph go on where it has counted to


def check_no_memory(checks, buffer, shape, seed):
    """On rank 0 results find no memory: calls raise it, the others go on, so does the buffer."""
    size, rank = checks.comm.size, checks.comm.rank
    experts, plain = shape.experts * size, Torch.empty

    def none(_, asked, dtype):
        raise torch.OutOfMemoryError(f"planned: {asked} {dtype}")

    def without_memory(call, text):
        if rank == 0:
            Torch.empty = none
            try:
                checks.refused(torch.OutOfMemoryError, "planned", call, text)
            finally:
                Torch.empty = plain

    for most in (M, 700):  # in one round, and in some
        here = tokens_of(shape, seed, rank, size, most)
        there = here.cuda()
        results = []
        for tokens in (here, there):
            per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(tokens.ids, experts)
            dispatch = functools.partial(
                buffer.dispatch, tokens.x, None, per_rank, None, is_in, per_expert, tokens.ids,
                tokens.weights,
            )  # fmt: skip
            name = f"no memory: normal, {most} tokens at most"
            if tokens is there and rank == 0:
                without_memory(dispatch, name)
            else:
                results.append(dispatch())
        if rank != 0:
            for what in range(4):
                checks.same(results[1][what], results[0][what], f"{name}: result {what}")
        without_memory(
            functools.partial(dispatch, num_worst_tokens=most * size), f"{name}, worst case"
        )
        if rank != 0:
            dispatch(num_worst_tokens=most * size)
        check_normal(checks, buffer, shape, seed)
    capacity = low_latency_capacity(shape, size)
    for _ in range(3):
        without_memory(
            lambda: buffer.low_latency_dispatch(
                there.x[:capacity], there.ids[:capacity], capacity, experts
            ),
            "no memory: low latency",
        )
    check_low_latency(checks, buffer, shape, seed)
    t = tokens_of(shape, seed, rank, size).cuda()
    call = LowLatency(buffer, shape, t, 0, capacity)
    odd = torch.zeros(t.x.numel() + 1, dtype=t.x.dtype, device="cuda")[1:].view_as(t.x)
    if len(t.x):
        for _ in range(3):
            checks.refused(
                InvalidArgument,
                "argument out: expected an address",
                lambda: call.back(call.got, out=odd),
                "out where no row may begin",
            )
    call.back(call.got)
    check_low_latency(checks, buffer, shape, seed + 1)


def check_wrong(checks, buffer):
    """Answered before anything is sent; the buffer stays usable."""
    shape, size = SHAPES[0], checks.comm.size
    experts = shape.experts * size
    t = tokens_of(shape, 0, 0, size).cuda()
    send = buffer.low_latency_dispatch
    for words, call in {
        "argument topk_idx: expected memory of GPU": lambda: send(t.x, t.ids.cpu(), M, experts),
        "argument topk_idx: expected int64": lambda: send(t.x, t.ids.int(), M, experts),
        "argument x: expected a contiguous": lambda: send(
            t.x.repeat(1, 2)[:, : shape.hidden], t.ids, M, experts
        ),
        "argument x: expected rows of a multiple of 16": lambda: send(
            t.x[:, :4].contiguous(), t.ids, M, experts, use_fp8=False
        ),
        "argument x: expected a multiple of 128": lambda: send(
            t.x[:, :64].contiguous(), t.ids, M, experts
        ),
        "argument x: expected at most": lambda: send(t.x, t.ids, 1, experts),
        "argument num_experts": lambda: send(t.x, t.ids, M, 0),
        "too small": lambda: send(t.x, t.ids, 1 << 20, experts),
        "argument x: expected an address": lambda: send(
            torch.zeros(t.x.numel() + 1, dtype=t.x.dtype, device="cuda")[1:].view_as(t.x),
            t.ids, M, experts,
        ),
        "argument async_finish": lambda: send(
            t.x, t.ids, M, experts, async_finish=True, return_recv_hook=True
        ),
    }.items():  # fmt: skip
        checks.refused(InvalidArgument, words, call, words)
    plain = LowLatency(buffer, shape, t, 0, M)
    for words, partial in (("a dispatch with topk_weights", "rank"), ("None or 'rank'", "node")):
        checks.refused(
            InvalidArgument, words, lambda p=partial: plain.back(plain.got, partial=p), words
        )
    by_rank = LowLatency(buffer, shape, t, 0, M, topk_weights=t.weights)
    for given, partial in ((plain, None), (by_rank, "rank")):
        for narrow in (t.ids[:, 1:].contiguous(), t.ids[1:]):
            weights = torch.ones(narrow.shape, device="cuda")
            checks.refused(
                InvalidArgument, "as of the dispatch",
                lambda g=given, p=partial, n=narrow, w=weights: (
                    buffer.low_latency_combine(g.got, n, w, g.handle, partial=p)
                ),
                f"ids of another shape, partial {partial}",
            )  # fmt: skip
    checks.refused(
        InvalidArgument, "argument topk_weights: expected memory of GPU",
        lambda: send(t.x, t.ids, M, experts, topk_weights=t.weights.cpu()), "weights elsewhere",
    )  # fmt: skip
    other = Buffer(checks.comm, enable_shrink=True)
    checks.refused(
        Unsupported, "enable_shrink",
        lambda: other.get_dispatch_layout(t.ids, experts), "enable_shrink on a GPU",
    )  # fmt: skip
    other.destroy()
    check_masks(checks, buffer, shape, t)
    per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(t.ids, experts)
    exact = lambda: buffer.dispatch(  # noqa: E731
        t.x, None, per_rank, None, is_in, per_expert, t.ids, t.weights
    )
    with Buffer(checks.comm) as fresh:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            checks.refused(
                InvalidArgument, "in a capture",
                lambda: fresh.get_dispatch_layout(t.ids, experts), "a first call in a capture",
            )  # fmt: skip
            checks.refused(InvalidArgument, "num_worst_tokens", exact, "exact sizes in a capture")
            filler = torch.zeros(1, device="cuda")
        del filler


def check_masks(checks, buffer, shape, t):
    """The three calls of masks on CUDA tensors, as engines make them: on GPUs nobody is given up,
    so the mask is told, a call under one is refused, and calls work again without it.
    """
    size, experts = checks.comm.size, shape.experts * checks.comm.size
    status = torch.full((size,), 7, dtype=torch.int32, device="cuda")
    buffer.low_latency_query_mask_buffer(status)
    checks.expect(status.tolist() == [0] * size, f"masks: {status.tolist()} at first")
    checks.refused(
        InvalidArgument, "argument rank",
        lambda: buffer.low_latency_update_mask_buffer(checks.comm.rank, True), "a mask of oneself",
    )  # fmt: skip
    if size == 1:
        return
    other = (checks.comm.rank + 1) % size
    buffer.low_latency_update_mask_buffer(other, True)
    buffer.low_latency_query_mask_buffer(status)
    checks.expect(
        status.tolist() == [int(r == other) for r in range(size)], f"masks: {status.tolist()}"
    )
    for what, call in {
        "dispatch": lambda: buffer.low_latency_dispatch(t.x, t.ids, M, experts),
        "layout": lambda: buffer.get_dispatch_layout(t.ids, experts),
    }.items():
        checks.refused(Unsupported, "low_latency_update_mask_buffer", call, f"a masked {what}")
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    checks.expect(status.tolist() == [0] * size, f"masks: {status.tolist()} after cleaning")


def soil_memory():
    """What is not initialised next holds numbers that no address may be made of."""
    dirty = [torch.full((1 << n,), 0x5A5A5A5A, dtype=torch.int32, device="cuda")
             for n in range(3, 15) for _ in range(16)]  # fmt: skip
    del dirty


def last_rows(got, count):
    """As a grouped product reads them: where a count says, by the GPU alone."""
    experts, rows, _ = got.shape
    place = torch.arange(experts, device="cuda") * rows + (count - 1).clamp(min=0)
    return got.flatten(0, 1)[place]


def check_end(checks, buffer, end):
    """What only GPUs can see: an error on every rank within the deadline, and no hang. What was
    enqueued behind a dispatch before anybody heard that it failed finds no row there.
    """
    shape, rank, size = SHAPES[0], checks.comm.rank, checks.comm.size
    t = tokens_of(shape, 1, rank + 1, size).cuda()
    experts = shape.experts * size
    if end == "ids" and rank == 0:
        t = Tokens(t.x[:1], t.ids[:1].clone().fill_(experts), t.weights[:1])
    capacity = M + 1 if end == "shape" and rank == 0 else M
    begin = time.monotonic()
    try:
        for call in range(200):
            if end == "absent" and rank == size - 1 and call == 3:
                time.sleep(14)
            soil_memory()
            got, count, handle, _, hook = buffer.low_latency_dispatch(
                t.x, t.ids, capacity, experts, use_fp8=False, topk_weights=t.weights,
                return_recv_hook=True,
            )  # fmt: skip
            hook()
            last_rows(got, count)
            is_by_rank = rank == 0 if end == "partial" else call % 2 == 0
            *_, hook = buffer.low_latency_combine(
                got, t.ids, t.weights, handle, partial="rank" if is_by_rank else None,
                return_recv_hook=True,
            )  # fmt: skip
            hook()
            torch.cuda.synchronize()
            ranges, copies = handle[1].cpu() & 0xFFFFFFFF, handle.copies[0].tolist()
            checks.expect(
                ranges.sum(1).tolist() == count.tolist() and 0 <= min(copies) <= max(copies) <= M,
                f"{end}: {count.tolist()} rows in all, of {ranges.tolist()} and {copies} copies",
            )
            time.sleep(0.01)
        checks.expect(False, f"{end}: nobody heard of it")
    except Error as error:
        print(f"rank {rank}: {end}: {time.monotonic() - begin:.1f} s: {error}", flush=True)
        words = {
            "ids": "topk_idx",
            "shape": "num_max_dispatch_tokens_per_rank",
            "partial": "options",
            "absent": "in our window",
        }[end]
        checks.expect(words in str(error), f"{end}: said '{error}'")
    torch.cuda.synchronize()
    checks.expect(torch.ones(4, device="cuda").sum().item() == 4, f"{end}: the GPU is unusable")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--end", choices=("ids", "shape", "partial", "absent"))
    asked = parser.parse_args()
    torch.cuda.set_device(0 if asked.share else int(os.environ.get("LOCAL_RANK", "0")))
    begin = time.monotonic()
    if asked.end == "absent":
        os.environ["BRAID_TIMEOUT"] = "6s"
    with braid.init() as comm:
        checks = Checks(comm)
        torch.manual_seed(comm.rank)
        largest = SHAPES[3]
        capacity = low_latency_capacity(SHAPES[1], comm.size)
        room = Buffer.get_low_latency_rdma_size_hint(
            max(M, capacity), largest.hidden, comm.size, largest.experts * comm.size
        )
        with Buffer(comm, 2 << 20, room, low_latency_mode=True) as buffer:
            shapes = SHAPES[:2] if asked.end else SHAPES
            for i, shape in enumerate(shapes):
                for seed in range(3 if asked.end else 4 if asked.quick else 12):
                    check_low_latency(checks, buffer, shape, 20 * i + seed)
                    check_normal(checks, buffer, shape, 20 * i + seed)
                    check_by_rank(checks, buffer, shape, 20 * i + seed)
                check_two_alive(checks, buffer, shape, 20 * i)
                check_at_once(checks, buffer, shape, 20 * i)
            with ElasticBuffer(comm, 2 << 20, num_max_tokens_per_rank=M) as elastic:
                for i, shape in enumerate(shapes):
                    for seed in range(3):
                        check_elastic(checks, elastic, shape, 20 * i + seed)
                    check_elastic_graph(checks, elastic, shape, 20 * i)
            of_late = [
                check_sizes_of_late(checks, buffer, shape, 300 + seed)
                for seed, shape in enumerate((SHAPES[0], SHAPES[3], SHAPES[2]))
            ]
            tried, calls = map(sum, zip(*of_late, strict=True))
            checks.expect(0 < tried < calls, f"{tried} of {calls} dispatches fitted of late")
            check_graphs(checks, buffer, SHAPES[0], 5)
            check_graphs(checks, buffer, SHAPES[2], 6)
            check_wrong(checks, buffer)
            check_no_memory(checks, buffer, SHAPES[0], 4)
            check_no_memory(checks, buffer, SHAPES[2], 9)
            check_low_latency(checks, buffer, SHAPES[0], 1)
            torch.cuda.synchronize()
            if asked.end and comm.size > 1:
                check_end(checks, buffer, asked.end)
            print(
                f"moe: rank {comm.rank}: {checks.made} checks, {checks.failed} wrong,"
                f" {time.monotonic() - begin:.0f} s",
                flush=True,
            )
            if asked.end or checks.failed:  # a comm that has failed: ranks part without a word
                sys.stdout.flush()
                os._exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()

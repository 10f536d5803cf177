"""Arguments of a wrong type or kind, one at a time, in every public call: TypeError, ValueError or
an error of braid's own, and calls go on afterwards. In a child, so that a crash or a hang is a
failure of this test alone.
"""

import faulthandler
import inspect
import signal
import subprocess
import sys

import numpy as np
import pytest

import braid
from braid import engine, kv, moe, weights

LIMIT_S = 240


class Liar:
    """Has what arrays have, and other things in it."""

    shape, dtype = "x", "float32"

    def __dlpack_device__(self):
        return "a"


WRONG = [
    None, -1, 2**31, 2**64, 2**70, 1.5, float("nan"), float("inf"), "", "x", "\ud800", b"x", [],
    [1, "a"], (), {"a": 1}, object(), object, Liar(), np.zeros(4, np.float32), np.zeros((), "f4"),
    np.zeros((2, 3), np.int64), np.zeros(0, np.uint8), np.array(["a", "b"]),
    np.array([None], object), np.zeros(4, np.complex64), np.zeros((4, 4), np.float32)[:, ::2],
    np.int64(-5), range(3),
    iter([1]),
]  # fmt: skip


def spoiled(call, good, skip=()):
    """Every argument of the call in turn is everything that it should not be."""
    for name in inspect.signature(call).parameters:
        if name in skip or name in ("options", "timeout"):
            continue
        for wrong in WRONG:
            print(f"{call.__qualname__}: {name}={wrong!r:.60}", flush=True)  # the last line is read
            try:
                made = call(**{**good, name: wrong})
            except (TypeError, ValueError, MemoryError, braid.Error):
                continue
            if hasattr(made, "close") or hasattr(made, "destroy"):
                getattr(made, "close", getattr(made, "destroy", None))()


def of_comm():
    comm = braid.init(timeout=2)
    x = np.ones(8, np.float32)
    calls = ["all_reduce", "broadcast", "reduce"]
    for name in calls:
        spoiled(getattr(comm, name), {"buf": x})
    for name in ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"):
        spoiled(getattr(comm, name), {"send": x})
    spoiled(comm.explain, {"op": "all_reduce", "nbytes": 8})
    spoiled(comm.split, {"color": 0})
    spoiled(comm.register, {})
    spoiled(braid.init, {})
    assert comm.all_reduce(np.ones(8, np.float32)).sum() == 8


def of_moe():
    comm = braid.init(timeout=2)
    x = np.zeros((3, 256), np.float32)
    ids, top = np.array([[0, 2]] * 3), np.ones((3, 2), np.float32)
    spoiled(moe.Buffer, {"group": comm})
    spoiled(moe.ElasticBuffer, {"group": comm, "num_max_tokens_per_rank": 8, "hidden": 256})
    spoiled(moe.Buffer.set_num_sms, {})
    spoiled(moe.Buffer.get_dispatch_config, {})
    shape = {"num_max_dispatch_tokens_per_rank": 8, "hidden": 256, "num_experts": 4}
    spoiled(moe.Buffer.get_low_latency_rdma_size_hint, {**shape, "num_ranks": 1})
    hint = moe.Buffer.get_low_latency_rdma_size_hint(8, 512, 1, 4)
    buffer = moe.Buffer(comm, 1 << 16, hint, low_latency_mode=True)
    spoiled(buffer.get_dispatch_layout, {"topk_idx": ids, "num_experts": 4})
    per_rank, _, per_expert, is_in, _ = buffer.get_dispatch_layout(ids, 4)
    given = {
        "x": x, "num_tokens_per_rank": per_rank, "is_token_in_rank": is_in,
        "num_tokens_per_expert": per_expert, "topk_idx": ids, "topk_weights": top,
    }  # fmt: skip
    spoiled(buffer.dispatch, given)
    rows, _, _, _, handle, _ = buffer.dispatch(**given)
    spoiled(buffer.combine, {"x": rows, "handle": handle})
    small = {"x": x, "topk_idx": ids, "num_max_dispatch_tokens_per_rank": 8, "num_experts": 4}
    spoiled(buffer.low_latency_dispatch, {**small, "use_fp8": False}, skip=["return_recv_hook"])
    rows, _, handle, _, _ = buffer.low_latency_dispatch(**small, use_fp8=False)
    back = {"x": rows, "topk_idx": ids, "topk_weights": top, "handle": handle}
    spoiled(buffer.low_latency_combine, back, skip=["return_recv_hook"])
    spoiled(buffer.clean_low_latency_buffer, shape)
    spoiled(buffer.low_latency_update_mask_buffer, {"rank_to_mask": 0})
    spoiled(buffer.low_latency_query_mask_buffer, {})
    buffer.dispatch(**given)
    elastic = moe.ElasticBuffer(comm, num_max_tokens_per_rank=8, hidden=256)
    spoiled(elastic.dispatch, {"x": x, "topk_idx": ids, "num_experts": 4})
    rows, _, _, handle, _ = elastic.dispatch(x, ids, num_experts=4)
    spoiled(elastic.combine, {"x": rows, "handle": handle})


def of_engines():
    one = engine.Engine("one", timeout=1.0)
    region = one.register(np.zeros(4096, np.uint8))
    spoiled(engine.Engine, {})
    spoiled(one.register, {})
    given = {"src": region, "dst": region, "page_bytes": 8, "src_ids": [0], "dst_ids": [0]}
    for name in ("write_pages", "read_pages"):
        spoiled(getattr(one, name), given)
    for name in ("write", "read"):
        spoiled(getattr(one, name), {"src": region, "dst": region})
    spoiled(one.scatter, {"src": region, "parts": []})
    spoiled(one.signal, {"peers": [], "imm": 1})
    spoiled(one.expect, {"imm": 1, "count": 1})
    for name in ("cancel", "connect", "disconnect", "forget", "count", "peer_group", "check"):
        spoiled(getattr(one, name), {})
    layout = kv.Layout("m", "float16", 1, 1, 16, 8)
    spoiled(kv.PagedCache, {"engine": one, "layers": [], "layout": layout})
    for kind in (kv.Prefiller, kv.Decoder):
        spoiled(kind, {"engine": one, "cache": None})
    spoiled(weights.plan, {"trainers": [], "workers": []})
    for kind in (weights.Sender, weights.Receiver):
        spoiled(kind, {"engine": one, "rank": 0, "parameters": []}, skip=["rank"])


class Stream:
    """As torch has them."""

    def __init__(self, handle):
        self.cuda_stream = handle


def test_a_stream_that_is_no_handle(ranks):
    def body(comm):
        x = np.ones(2)
        for wrong in (-1, 2**64, 2**70, float("nan"), float("inf"), "x", Stream(-1), Stream("x")):
            for call in (
                comm.all_gather,
                comm.all_reduce,
                lambda x, **a: comm.isend(x, 1 - comm.rank, **a),
            ):
                with pytest.raises(braid.InvalidArgument, match="argument stream: asked for a han"):
                    call(x, stream=wrong)
        for fine in (0, 1, 2**64 - 1, Stream(7)):  # nobody looks at it: this is host memory
            comm.all_reduce(x, stream=fine)

    ranks(2, body)


def test_host_memory_is_never_registered(ranks):
    def body(comm):
        for call in (comm.register, comm.unregister):
            with pytest.raises(braid.InvalidArgument, match="asked for GPU memory"):
                call(np.ones(3))
        return comm.all_reduce(np.ones(1)).tolist()  # it goes on

    assert ranks(2, body, {"BRAID_TIMEOUT": "3s"}) == [[2.0], [2.0]]


def test_one_rank_refuses_what_many_would():
    for name, wrong in (
        ("nodes", "both"), ("depth", 0), ("slot", 1), ("gpu_rdma", "perhaps"), ("gpu_ring", "x")
    ):  # fmt: skip
        with pytest.raises(braid.InvalidArgument, match=f"BRAID_{name.upper()}"):
            braid.init(progress=False, **{name: wrong}).close()


@pytest.mark.parametrize("calls", [of_comm, of_moe, of_engines])
def test_nothing_but_an_error_comes_of_a_wrong_argument(calls):
    child = subprocess.run(
        [sys.executable, __file__, calls.__name__],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    last = child.stdout.splitlines()[-1:]
    assert child.returncode == 0, f"{last}: exit code {child.returncode}\n{child.stderr[-3000:]}"


if __name__ == "__main__":
    faulthandler.enable()
    signal.alarm(LIMIT_S)
    globals()[sys.argv[1]]()

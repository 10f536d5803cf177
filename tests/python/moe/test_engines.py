"""What vLLM 0.33.0, SGLang 0.5.23 and Megatron call of deep_ep, in their order and with their
arguments, on the package that stands in for it; the engines themselves are not here.
"""

import importlib
import os
import subprocess
import sys

import pytest
from moe_data import make, same

from braid.cli import deepep

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

H, M, SIZE = 512, 32, 2
EXPERTS = 4 * SIZE


def on_gloo(ranks, body):
    """Runs body(deep_ep, group, rank) on ranks with a gloo group, as vLLM passes one."""

    def rank():
        sys.path.insert(0, str(deepep.folder()))
        dist.init_process_group("gloo")
        try:
            return body(importlib.import_module("deep_ep"), dist.group.WORLD, dist.get_rank())
        finally:
            dist.destroy_process_group()

    ranks.collect(ranks.start(SIZE, rank))


def tokens_of(seed, rank):
    own = make(seed, rank, SIZE, H)
    x = torch.from_numpy(own.x).to(torch.bfloat16)
    return own, x, torch.from_numpy(own.ids), torch.from_numpy(own.weights)


def test_vllm_high_throughput(ranks):
    def body(deep_ep, group, rank):
        config = deep_ep.Buffer.get_dispatch_config(SIZE)
        hint = max(config.get_nvl_buffer_size_hint(H * 2, SIZE), 1 << 30)
        assert config.get_rdma_buffer_size_hint(H * 2, SIZE) == 0
        buffer = deep_ep.Buffer(
            group=group,
            num_nvl_bytes=hint,
            num_rdma_bytes=0,
            low_latency_mode=False,
            num_qps_per_rank=1,
            explicitly_destroy=True,
        )
        deep_ep.Buffer.set_num_sms(20)
        for seed in (0, 3, 1):
            _own, x, ids, weights = tokens_of(seed, rank)
            previous = buffer.capture()
            per_rank, rdma, per_expert, is_in, event = buffer.get_dispatch_layout(
                topk_idx=ids,
                num_experts=EXPERTS,
                previous_event=previous,
                async_finish=False,
                allocate_on_comm_stream=False,
            )
            got, got_ids, got_weights, counts, handle, event = buffer.dispatch(
                x=x,
                handle=None,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=rdma,
                is_token_in_rank=is_in,
                num_tokens_per_expert=per_expert,
                topk_idx=ids,
                topk_weights=weights,
                expert_alignment=1,
                config=config,
                previous_event=previous,
                async_finish=True,
                allocate_on_comm_stream=False,
            )
            if event.event is not None:
                event.current_stream_wait()
            assert sum(counts) == int((got_ids >= 0).sum())
            # An expert that changes nothing, weighted where it is, as weight_and_reduce_impl does.
            local = (got.float() * got_weights.sum(1, keepdim=True)).to(torch.bfloat16)
            out, _, event = buffer.combine(
                x=local,
                handle=handle,
                topk_weights=None,
                config=deep_ep.Buffer.get_combine_config(SIZE),
                previous_event=buffer.capture(),
                async_finish=True,
                allocate_on_comm_stream=False,
            )
            event.current_stream_wait()
            kept = torch.where(ids < 0, 0, weights).sum(1, keepdim=True)
            assert (out.float() - x.float() * kept).abs().max().item() < 0.2 if len(x) else True
        buffer.destroy()

    on_gloo(ranks, body)


def test_vllm_low_latency_with_two_batches(ranks):
    def body(deep_ep, group, rank):
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(M, H, SIZE, EXPERTS)
        buffer = deep_ep.Buffer(
            group=group,
            num_nvl_bytes=1 << 20,
            num_rdma_bytes=hint,
            low_latency_mode=True,
            num_qps_per_rank=EXPERTS // SIZE,
            allow_nvlink_for_low_latency_mode=True,
            allow_mnnvl=False,
            enable_shrink=False,
        )
        for round_scale, ue8m0 in ((False, False), (True, True)):
            batches = [tokens_of(seed, rank) for seed in (3, 4)]
            sent = [
                buffer.low_latency_dispatch(
                    x,
                    ids,
                    M,
                    EXPERTS,
                    use_fp8=True,
                    round_scale=round_scale,
                    use_ue8m0=ue8m0,
                    async_finish=False,
                    return_recv_hook=True,
                )
                for _, x, ids, _ in batches
            ]
            for *_, hook in sent:
                hook()
            combined = []
            for seed, (own, x, ids, weights), ((rows, _), count, handle, _, _) in zip(
                (3, 4), batches, sent, strict=True
            ):
                every = [make(seed, r, SIZE, H) for r in range(SIZE)]
                mine = sum(each.per_expert[4 * rank : 4 * rank + 4].sum() for each in every)
                assert int(count.sum()) == mine
                y = torch.ones(rows.shape, dtype=torch.bfloat16)
                out = torch.empty_like(x)
                _, _, hook = buffer.low_latency_combine(
                    y,
                    ids,
                    weights,
                    handle,
                    async_finish=False,
                    zero_copy=False,
                    return_recv_hook=True,
                    out=out,
                )
                combined.append((hook, out, own))
            for hook, out, own in combined:
                hook()
                same(out, own.weights.sum(1)[:, None].repeat(H, 1))
        status = torch.zeros(SIZE, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0]
        buffer.destroy()

    on_gloo(ranks, body)


def test_sglang_normal_then_low_latency_on_one_buffer(ranks):
    def body(deep_ep, group, rank):
        nvl = deep_ep.Buffer.get_dispatch_config(SIZE).get_nvl_buffer_size_hint(H * 2, SIZE)
        rdma = deep_ep.Buffer.get_low_latency_rdma_size_hint(M, H, SIZE, EXPERTS)
        buffer = deep_ep.Buffer(
            group, nvl, rdma, low_latency_mode=True, num_qps_per_rank=4, allow_mnnvl=True
        )
        assert buffer.group_size == SIZE
        assert buffer.low_latency_mode
        assert deep_ep.Buffer.num_sms >= 2
        own, x, ids, weights = tokens_of(3, rank)
        scales = torch.arange(len(x) * 4, dtype=torch.float32).reshape(len(x), 4)
        # dispatch_a, dispatch_b: fp8 rows that the caller cast, alignment of DeepGEMM.
        previous = deep_ep.Buffer.capture()
        per_rank, rdma_ranks, per_expert, is_in, previous = buffer.get_dispatch_layout(
            ids, EXPERTS, previous_event=previous, async_finish=True,
            allocate_on_comm_stream=previous is not None,
        )  # fmt: skip
        (got, got_scales), got_ids, _, counts, handle, event = buffer.dispatch(
            (x.to(torch.float8_e4m3fn), scales),
            topk_idx=ids,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=rdma_ranks,
            is_token_in_rank=is_in,
            num_tokens_per_expert=per_expert,
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=True,
            expert_alignment=128,
            config=deep_ep.Config(20),
        )
        event.current_stream_wait()
        assert all(n % 128 == 0 for n in counts)
        assert got.dtype == torch.float8_e4m3fn
        assert got_scales.shape == (len(got_ids), 4)
        out, _, event = buffer.combine(got.to(torch.bfloat16), handle, async_finish=True)
        same(out, own.x * own.is_in.sum(1)[:, None])
        buffer.clean_low_latency_buffer(M, H, EXPERTS)
        rows, masked_m, ll_handle, event, hook = buffer.low_latency_dispatch(
            x, ids, M, EXPERTS, use_fp8=False, async_finish=False, return_recv_hook=True
        )
        hook()
        assert masked_m.dtype == torch.int32
        combined, event, hook = buffer.low_latency_combine(
            x=rows, topk_idx=ids, topk_weights=weights, handle=ll_handle, return_recv_hook=True
        )
        hook()
        same(combined, own.x)
        buffer.destroy()

    on_gloo(ranks, body)


def test_megatron_takes_events_from_utils_and_a_cached_handle(ranks):
    def body(deep_ep, group, rank):
        utils = importlib.import_module("deep_ep.utils")
        assert utils.EventOverlap is deep_ep.EventOverlap
        buffer = deep_ep.Buffer(group, 1 << 20, 0)
        _own, x, ids, weights = tokens_of(3, rank)
        x.requires_grad_()
        event = utils.EventOverlap(utils.EventHandle())
        per_rank, rdma, per_expert, is_in, event = buffer.get_dispatch_layout(
            ids, EXPERTS, previous_event=event, async_finish=True, allocate_on_comm_stream=True
        )
        got, _, got_weights, _, handle, _ = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=rdma, is_token_in_rank=is_in, num_tokens_per_expert=per_expert,
            previous_event=event, async_finish=True, allocate_on_comm_stream=True,
        )  # fmt: skip
        # The backward pass of a dispatch is a combine with weights, that of a combine a dispatch.
        gradient, weight_gradient, _ = buffer.combine(
            got, handle, topk_weights=got_weights, previous_event=event, async_finish=True
        )
        same(weight_gradient, weights)
        again, *_ = buffer.dispatch(gradient, handle=handle, previous_event=event)
        assert again.shape == got.shape
        assert deep_ep.topk_idx_t == torch.int64
        buffer.destroy()

    on_gloo(ranks, body)


def test_the_line_puts_it_before_the_real_one(tmp_path):
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep/__init__.py").write_text("__version__ = 'the real one'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    line = subprocess.run(
        [sys.executable, "-m", "braid.cli", "deepep-env"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    name, _, value = line.partition("=")
    found = subprocess.run(
        [sys.executable, "-c", "import deep_ep; print(deep_ep.__version__)"],
        env={**environment, name: value}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert found == "1.2.1+braid\n"


def test_the_check_tries_it():
    said = subprocess.run(
        [sys.executable, "-m", "braid.cli", "deepep-check"],
        capture_output=True, text=True, check=True, timeout=100,
    ).stdout  # fmt: skip
    assert "low latency: equal" in said
    assert "passed on 2 ranks" in said

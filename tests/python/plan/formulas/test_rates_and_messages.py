"""Rates of links and sizes of messages: units, limits, and experts drawn by chance."""

import random
from itertools import product

import pytest

from braid.plan.formulas import messages, rates, training


@pytest.mark.parametrize(
    ("gt", "payload", "frame", "lanes", "gbps"),
    [
        (2.5, 8, 10, 1, 0.25),
        (5.0, 8, 10, 16, 8.0),
        (8.0, 128, 130, 8, 7.877),
        (16.0, 128, 130, 16, 31.508),
        (32.0, 128, 130, 16, 63.015),
        (64.0, 242, 256, 16, 121.0),
    ],
)
def test_pcie_in_bytes(gt, payload, frame, lanes, gbps):
    assert rates.pcie_gbps(gt, payload, frame, lanes) == pytest.approx(gbps, abs=5e-4)


@pytest.mark.parametrize(
    ("measured", "specified", "is_duplex"),
    [(235, 600, True), (235, 300, False), (360, 900, True), (360, 450, False), (25, 900, False)],
)
def test_a_figure_of_both_directions_shows(measured, specified, is_duplex):
    """A100 and H100: data sheets say 600 and 900, a direction has half."""
    assert rates.looks_duplex(measured, specified) is is_duplex


def test_rates_of_nodes_and_their_parts():
    assert rates.node_gbps(8, 400) == 400
    assert rates.gpu_gbps(8, 400, 8) == 50
    assert rates.gpu_gbps(4, 200, 8) == 12.5
    assert rates.bisection_gbps(8, 450) == 3600
    assert [rates.mesh_gbps(64, ranks) for ranks in (1, 2, 8)] == [0, 64, 448]
    assert rates.links_gbps(6.25, 4, 12) == 300
    assert rates.payload_gbps(26.5625) == 25  # nvidia-smi's line rate of NVLink 3
    assert rates.achievable_gbps(50) == 40


def test_bytes_rate_and_time_agree():
    rng = random.Random(3)
    for _ in range(50):
        nbytes, rate = rng.uniform(1, 1e12), rng.uniform(0.1, 1000)
        seconds = rates.seconds(nbytes, rate)
        assert rates.gbps(nbytes, seconds) == pytest.approx(rate)
        assert rates.part_of(rates.gbps(nbytes, seconds / 2), rate) == pytest.approx(2)


@pytest.mark.parametrize(("ranks", "top_k"), [(2, 1), (2, 3), (3, 2), (4, 3)])
def test_tokens_sent_once_per_rank_over_every_choice(ranks, top_k):
    """All choices of top_k independent ranks, each as likely: peers that get a copy, on average."""
    choices = list(product(range(ranks), repeat=top_k))
    peers = sum(len(set(choice) - {0}) for choice in choices) / len(choices)
    found = messages.once_per_rank_bytes(10, ranks, top_k, 100)
    assert found == pytest.approx(10 * peers * 100)
    copies = sum(rank != 0 for choice in choices for rank in choice) / len(choices)
    routed = messages.routed_bytes(10, top_k, 100)
    assert messages.leaving_bytes(routed, ranks) == pytest.approx(10 * copies * 100)
    assert found <= messages.leaving_bytes(routed, ranks)


@pytest.mark.parametrize(
    ("ranks", "experts", "top_k", "slots"), [(8, 256, 8, 8), (64, 256, 8, 4), (256, 256, 8, 1)]
)
def test_a_token_reaches_a_rank_no_oftener_than_it_has_experts(ranks, experts, top_k, slots):
    assert messages.receive_slots_per_token(ranks, experts, top_k) == slots


def test_sizes_of_published_models():
    """Llama 3 70B: 80 layers, 8 KV heads of 128, hidden 8192. DeepSeek-V3: 61, 512 + 64."""
    assert messages.activation_bytes(4096, 8192) == 64 << 20
    assert messages.activation_bytes(1, 8192, 1) == 8192
    assert messages.kv_bytes_per_token(80, 8, 128) == 327_680
    assert messages.latent_bytes_per_token(61, 512, 64) == 70_272
    assert messages.copies_per_peer(4096, 8, 8) == 4096


def test_many_small_messages():
    assert messages.buckets_us(8e9, 4e6, 50.0) == 100_000
    assert messages.speedup(9.0, 3.0) == 3


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_gradients_and_their_rule_of_thumb(ranks):
    exact, rough = training.ddp_bytes(2e9, ranks), training.ddp_rough_bytes(2e9)
    assert rough == 16e9
    assert rough - exact == pytest.approx(rough / ranks)
    assert training.ddp_s(2e9, ranks, 100) == pytest.approx(exact / 100e9)
    assert training.ddp_rough_s(2e9, 100) == pytest.approx(0.16)


def test_zero_stages_by_their_calls():
    """Bytes of a scatter or gather are one model; stage 3 gathers once more."""
    for stage, calls in ((0, 2), (1, 2), (2, 2), (3, 3)):
        assert training.zero_bytes(stage, 1e9, 2) == calls * 2e9
        assert training.zero_s(stage, 1e9, 2, 50) == pytest.approx(calls * 0.04)


def test_work_and_memory_of_a_step():
    """7e9 parameters, 4 x 2048 tokens: 6 N D operations, 8 N D with recomputation."""
    assert training.tflop_per_gpu(7e9, 2048, 4, 1) == pytest.approx(6 * 7e9 * 8192 / 1e12)
    again = training.tflop_per_gpu(7e9, 2048, 4, 8, training.FORWARD_BACKWARD_RECOMPUTE)
    assert again == pytest.approx(8 * 7e9 * 8192 / 8 / 1e12)
    assert training.compute_s(989.0, 989.0, 0.5) == 2
    assert training.mfu(400, 1000) == 0.4
    assert training.dense_tflops(1979) == 989.5
    assert training.memory_bytes(1e9) == 18e9
    assert training.transfer_s(80e9, 4, 25) == pytest.approx(12.8)

"""Expert and pipeline parallelism."""

from dataclasses import replace

import pytest

from braid.plan import hardware, models, network
from braid.plan.parallel import expert, pipeline
from braid.plan.parallel.machines import Machines, Work
from braid.plan.wrong import PlanError

NODE = hardware.find("h200-nvlink4")
HERE = Machines(NODE, NODE.path("auto"), 8)
DEEPSEEK, GPT3 = models.find("deepseek-v3"), models.find("gpt3-175b")
MIB = 1 << 20


def test_dispatch_and_combine_of_deepseek():
    answer = expert.report(HERE, DEEPSEEK, 4096)
    assert answer.value("dispatch_token_bytes") == 7392
    assert answer.value("dispatch_bytes") == pytest.approx(231 * MIB, rel=0.005)
    assert answer.value("dispatch_leaving_bytes") == pytest.approx(202 * MIB, rel=0.005)
    assert answer.value("dispatch_once_bytes") == pytest.approx(132.7 * MIB, rel=0.005)
    assert answer.value("combine_bytes") == 448 * MIB
    both = answer.value("dispatch_us") + answer.value("combine_us")
    assert answer.value("communication_s") == pytest.approx(58 * both / 1e6)


def test_one_rank_keeps_its_tokens():
    alone = expert.report(Machines(NODE, NODE.path("auto"), 1), DEEPSEEK, 4096)
    assert alone.value("communication_s") == 0
    assert alone.value("dispatch_leaving_bytes") == 0


def test_experts_refused():
    with pytest.raises(PlanError, match="llama3-8b has no experts"):
        expert.report(HERE, models.find("llama3-8b"), 128)
    with pytest.raises(PlanError, match="'fp4' is no format"):
        expert.report(HERE, DEEPSEEK, 128, "fp4")
    with pytest.raises(PlanError, match="--tokens: asked for 0"):
        expert.report(HERE, DEEPSEEK, 0)
    many = Machines(NODE, NODE.path("auto"), 8, 64, network.find("ib-ndr-8x400"))
    with pytest.raises(PlanError, match="has 256 experts"):
        expert.report(many, DEEPSEEK, 128)


def test_pipeline_sends_and_bubble():
    answer = pipeline.report(HERE, GPT3, 8, 32, 2048, Work(1, compute_s=1.0))
    assert answer.value("send_bytes") == 48 * MIB
    assert answer.value("sends_per_border") == 64
    assert answer.value("bubble_part") == pytest.approx(7 / 39)
    assert answer.value("step_s") == pytest.approx(39 / 32 + answer.value("exposed_s"))


def test_a_pipeline_s_computation_at_a_part_of_the_peak():
    work = Work(1e9, 4096, 8, mfu=0.4)
    answer = pipeline.report(HERE, GPT3, 4, 8, 4096, work)
    each = 6 * 1e9 * 4096 * 8 / 4 / (989e12 * 0.4)
    assert answer.value("compute_s") == pytest.approx(each)
    assert answer.value("step_s") == pytest.approx(each * 11 / 8 + answer.value("exposed_s"))
    blind = Machines(replace(NODE, peak_tflops=0.0), NODE.path("auto"), 8)
    answer = pipeline.report(blind, GPT3, 4, 8, 4096, work)
    assert answer.notes == ["say --peak-tflops, or --compute-ms, to see the step"]
    given = pipeline.report(blind, GPT3, 4, 8, 4096, Work(1, compute_s=2.0))
    assert given.value("compute_s") == 2


def test_one_stage_waits_for_nobody():
    answer = pipeline.report(HERE, GPT3, 1, 4, 2048, Work(1))
    assert answer.value("bubble_part") == answer.value("exposed_s") == 0
    assert answer.value("sends_per_border") == 0


def test_between_nodes_the_nic_decides():
    far = Machines(NODE, NODE.path("auto"), 8, 2, network.given(400, "gpu"))
    inside = pipeline.report(HERE, GPT3, 8, 32, 2048, Work(1)).value("send_us")
    assert pipeline.report(far, GPT3, 8, 32, 2048, Work(1)).value("send_us") > 5 * inside


def test_pipeline_refused():
    with pytest.raises(PlanError, match="has 96 layers"):
        pipeline.report(HERE, GPT3, 97, 32, 2048, Work(1))
    with pytest.raises(PlanError, match="--microbatches: asked for 0"):
        pipeline.report(HERE, GPT3, 8, 0, 2048, Work(1))

"""The published case: Llama-3 70B, TP 4, with NVLink and without."""

import pytest

from braid.plan import hardware, models
from braid.plan.basis import Basis
from braid.plan.parallel import tensor
from braid.plan.wrong import PlanError


def question(**changes):
    asked = {
        "model": models.find("llama3-70b"),
        "ranks": 4,
        "tokens": 4096,
        "hardware": hardware.find("a100-nvlink3"),
    }
    return tensor.Question(**{**asked, **changes})


@pytest.fixture(scope="module")
def answer():
    asked = question()
    return tensor.report(asked, list(asked.hardware.paths), tensor.published_steps(asked))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bytes_per_token", 16384),
        ("all_reduce_bytes", 64 << 20),
        ("all_reduces", 160),
        ("nvlink.communication_s", 0.09648),
        ("host_staged.communication_s", 1.81904),
        ("nvlink.busbw_gbps", 166.9),
        ("nvlink.part_of_rate", 0.556),
        ("host_staged.busbw_gbps", 8.85),
        ("compute_s", 0.7754),
        ("host_staged.prefill_s", 2.7201),
        ("host_staged.measured_prefill_s", 2.74017),
        ("host_staged.error", -0.0073),
        ("nvlink.communication_part", 0.117),
        ("nvlink.wire_bytes", 96 << 20),
    ],
)
def test_published_case(answer, name, expected):
    assert answer.value(name) == pytest.approx(expected, rel=0.005)


def test_every_number_says_what_it_rests_on(answer):
    basis = {line.name: line.quantity.basis for line in answer.lines}
    assert basis["all_reduce_bytes"] is Basis.EXACT
    assert basis["nvlink.all_reduce_us"] is Basis.MEASURED
    assert basis["host_staged.prefill_s"] is Basis.ASSUMED  # other tokens than were measured


def test_without_a_measured_step_the_work_is_assumed():
    asked = question(hardware=hardware.find("h200-nvlink4"), ranks=8)
    found = tensor.report(asked, [asked.hardware.path("nvlink")], [])
    assert found.value("nvlink.communication_s") == pytest.approx(0.0542, rel=0.005)
    work = 2 * asked.model.parameters * 4096 / 8 / 1e12
    assert found.value("compute_s") == pytest.approx(work / (989 * 0.5))


def test_one_gpu_talks_to_nobody():
    asked = question(ranks=1)
    found = tensor.report(asked, [asked.hardware.path("nvlink")], [])
    assert found.value("nvlink.communication_s") == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 0}, "--tp: asked for 0"),
        ({"tokens": -1}, "--tokens: asked for -1"),
        ({"ranks": 16}, "say --nodes 2"),
        ({"ranks": 6, "nodes": 4}, "does not divide"),
        ({"ranks": 16, "nodes": 2}, "NICs' rate"),
    ],
)
def test_refused(changes, message):
    asked = question(**changes)
    with pytest.raises(PlanError, match=message):
        tensor.report(asked, [asked.hardware.path("nvlink")], [])


@pytest.mark.parametrize(("ranks", "warned"), [(3, True), (4, False)])
def test_heads_that_do_not_divide_are_a_warning(ranks, warned):
    asked = question(ranks=ranks)
    found = tensor.report(asked, [asked.hardware.path("nvlink")], [])
    assert any("64 heads do not divide over 3" in line for line in found.warnings) is warned

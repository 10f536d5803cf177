"""The picture of a step agrees with its arithmetic."""

import pytest

from braid.plan import timeline
from braid.plan.formulas import overlap
from braid.plan.wrong import PlanError


@pytest.mark.parametrize("mode", overlap.MODES)
@pytest.mark.parametrize("layers", [1, 2, 32])
@pytest.mark.parametrize("communication_s", [0.053, 0.42, 0.64])
def test_the_last_span_ends_with_the_step(mode, layers, communication_s):
    ends = [strip.end_s for strip in timeline.strips(mode, 0.42, communication_s, layers)]
    assert max(ends) == pytest.approx(overlap.step_s(mode, 0.42, communication_s, layers))


@pytest.mark.parametrize("mode", overlap.MODES)
def test_nothing_is_sent_before_it_is_computed_or_twice_at_once(mode):
    compute, network = timeline.strips(mode, 0.42, 0.64, 8)
    for before, after in zip(network.spans, network.spans[1:], strict=False):
        assert after.start_s >= before.start_s + before.length_s - 1e-12
    if mode != "perfect":
        for work, sent in zip(compute.spans, network.spans, strict=False):
            assert sent.start_s >= work.start_s + work.length_s - 1e-12


def test_more_layers_come_nearer_to_perfect():
    steps = [overlap.step_s("per-layer", 0.42, 0.64, layers) for layers in (1, 2, 8, 1000)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == pytest.approx(1.06)
    assert steps[-1] == pytest.approx(0.64, rel=0.001)


def test_refused():
    with pytest.raises(PlanError, match="'some' is no overlap"):
        timeline.report("some", 1, 1, 1)
    with pytest.raises(PlanError, match="--layers"):
        timeline.report("serial", 1, 1, 0)
    with pytest.raises(PlanError, match="--compute-ms"):
        timeline.report("serial", -1, 1, 1)


def test_what_sends_nothing_waits_for_nothing():
    answer = timeline.report("per-layer", 0.0013682994731914707, 0.0, 414)
    assert str(answer.value("exposed_s")) == "0.0"
    assert answer.value("step_per_layer_s") == answer.value("compute_s")

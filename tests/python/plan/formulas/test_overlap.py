"""Overlap against a schedule played layer by layer, and pipelines against their slots."""

import random

import pytest

from braid.plan.formulas import overlap


def played(compute_s, communication_s, layers):
    """Two machines, one that computes and one that sends; a layer is sent when it is computed."""
    computed = sent = 0.0
    for _ in range(layers):
        computed += compute_s / layers
        sent = max(sent, computed) + communication_s / layers
    return sent


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 80])
def test_per_layer_as_it_is_played(layers):
    rng = random.Random(layers)
    for _ in range(30):
        compute, wire = rng.uniform(0.001, 2), rng.uniform(0, 2)
        found = overlap.step_s("per-layer", compute, wire, layers)
        assert found == pytest.approx(played(compute, wire, layers))


def test_the_three_ways_are_in_order():
    rng = random.Random(5)
    for _ in range(100):
        compute, wire, layers = rng.uniform(0.01, 3), rng.uniform(0.0, 3), rng.randrange(1, 100)
        serial, layered, perfect = (
            overlap.step_s(mode, compute, wire, layers) for mode in overlap.MODES
        )
        assert perfect <= layered <= serial
        assert serial == compute + wire
        for mode, step in zip(overlap.MODES, (serial, layered, perfect), strict=True):
            exposed = overlap.exposed_s(mode, compute, wire, layers)
            assert exposed == pytest.approx(step - compute, abs=1e-12)
            assert 0 <= exposed <= wire


def test_nobody_waits_less_than_nothing():
    """Nor longer than communication takes, nor is a way the worse for hiding more: exactly so."""
    rng = random.Random(7)
    for _ in range(3000):
        compute, layers = 10 ** rng.uniform(-9, 3), rng.randrange(1, 1001)
        wire = rng.choice([0.0, compute, 10 ** rng.uniform(-12, 3)])
        times = compute, wire, layers
        steps = [overlap.step_s(mode, *times) for mode in overlap.MODES]
        waits = [overlap.exposed_s(mode, *times) for mode in overlap.MODES]
        assert wire == waits[0] >= waits[1] >= waits[2] >= 0, times
        assert compute + wire == steps[0] >= steps[1] >= steps[2] == max(compute, wire), times
        if not wire:
            assert [str(each) for each in waits] == ["0.0"] * 3  # -0.0 is 0, and printed otherwise
            assert steps == [compute] * 3


def test_one_layer_hides_nothing():
    assert overlap.step_s("per-layer", 0.42, 0.64, 1) == pytest.approx(1.06)


def test_the_rate_that_hides_it_all_hides_it_just():
    rate = overlap.rate_to_hide_gbps(7e9, 0.35)
    assert rate == pytest.approx(20.0)
    for factor, is_exposed in ((0.9, True), (1.1, False)):
        wire_s = 7e9 / (rate * factor * 1e9)
        assert (overlap.exposed_s("perfect", 0.35, wire_s) > 1e-9) is is_exposed
        assert overlap.is_bottleneck(wire_s, 0.35) is is_exposed


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 8, 100])
def test_a_pipeline_s_idle_slots_counted(stages, microbatches):
    """Microbatch m is in stage s at slot m + s; what is left of the step is idle."""
    busy = {(m + s, s) for m in range(microbatches) for s in range(stages)}
    slots = 1 + max(slot for slot, _ in busy)
    idle = slots * stages - len(busy)
    assert overlap.bubble_part(stages, microbatches) == pytest.approx(idle / (slots * stages))

"""Figures of the one-GPU stand; what must run is tests/gpu's."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


def _series(group, times, chosen):
    from braid.bench.overlap.jobs import CHOICE
    from braid.record.probe import Series, times_of

    return [
        Series(group, name, 1, times_of([us] * 3), None, note="error" + CHOICE * (name == chosen))
        for name, us in times.items()
    ]


TIMES = {
    "GEMM alone": 100.0,
    "cuBLAS, then copy": 200.0,
    "chunked cuBLAS": 130.0,
    "braid, flags preset": 105.0,
    "braid 256 below, bands 4": 120.0,
    "braid 256 below, bands 8": 110.0,
}


def test_what_tuning_chose_is_judged_by_the_best_it_had():
    from braid.bench.overlap.jobs import figures_of

    found = figures_of(_series("stand: x", TIMES, "braid 256 below, bands 4"))
    assert found["stand: x: tuning's choice by the best"] == pytest.approx(120 / 110)
    assert found["stand: x: tuning's choice by in turn"] == pytest.approx(0.6)
    assert found["stand: x: E_overlap of braid"] == pytest.approx(0.9)
    in_turn = figures_of(_series("stand: x", TIMES, "cuBLAS, then copy"))
    assert in_turn["stand: x: tuning's choice by the best"] == pytest.approx(200 / 110)
    assert in_turn["stand: x: tuning's choice by in turn"] == 1.0


def test_tuning_chooses_among_what_a_call_could_do(monkeypatch):
    from braid.bench.overlap import jobs

    monkeypatch.setattr(jobs, "_time_us", lambda call: call())
    ways = {name: (lambda us=us: us) for name, us in TIMES.items()}
    assert jobs._chosen(ways) == "braid 256 below, bands 8", "neither alone, preset nor chunked"
    assert jobs._chosen({**ways, "cuBLAS, then copy": lambda: 111.0}) == "cuBLAS, then copy"
    assert jobs._chosen({"GEMM alone": lambda: 1.0}) == ""

"""Layers between GPUs: their shapes and figures; what must run is tests/gpu's."""

import importlib.util

import pytest
from typer.testing import CliRunner

from braid.cli import app

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)


def test_layers_of_a_model_are_cut_among_the_ranks():
    from braid.bench.overlap.between import layers

    found = layers(["gpt-3"], [8192], 4)
    assert [(each.m, each.n, each.k, each.rows) for each in found] == [
        (8192, 12288, 12288, 2048),
        (8192, 12288, 12288, 2048),
        (8192, 12288, 12288, 2048),
    ]
    first, second, third = (str(each) for each in layers(["llama-70b"], [64], 2))
    assert first == "TP2, AG+GEMM, llama-70b, m 64, 64x14336x8192"
    assert second == "TP2, GEMM+RS, llama-70b, m 64, 64x8192x14336"
    assert third.startswith("TP2, GEMM+AR")


def _series(case, us):
    from braid.record.probe import Series, times_of

    return Series("a layer", case, 1, times_of([us] * 3), None)


def test_the_faster_way_in_turn_is_what_overlap_is_judged_by():
    from braid.bench.overlap.between import ALONE, BRAID
    from braid.bench.overlap.between_jobs import figures_of

    series = [
        _series(ALONE, 100.0),
        _series("NCCL and cuBLAS in turn", 200.0),
        _series("braid and cuBLAS in turn", 150.0),
        _series(BRAID, 110.0),
        _series("torch, fused", 160.0),
    ]
    assert figures_of(series) == {
        "a layer: communication by GEMM": 0.5,
        "a layer: E_overlap of braid": 0.8,
        "a layer: E_overlap of torch, fused": -0.2,
        "a layer: best other by braid": round(150 / 110, 4),
    }
    assert figures_of(series[:1]) == {}


def test_the_order_of_a_round_is_every_ranks(monkeypatch):
    """Contestants are collectives: ranks that took them in another order would wait for ever."""
    from braid.bench.overlap import between_jobs
    from braid.probe.effort import Effort

    class Comm:
        def all_reduce(self, mine, op):
            assert op == "max"
            return mine

    def orders(first_us):
        calls = []
        ways = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
        timed = lambda _comm, call, _count: call() or first_us  # noqa: E731
        monkeypatch.setattr(between_jobs, "_time_us", timed)
        between_jobs._race(Comm(), ways, Effort(6, 60.0, 1), lambda _: None)
        return calls

    fast, slow = orders(10.0), orders(9000.0)
    assert fast == slow
    rounds = [fast[i : i + 4] for i in range(16, len(fast), 4)]
    assert len(rounds) == 6
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_without_gpus_it_says_what_it_needs():
    app.load_groups([])
    done = CliRunner().invoke(app.app, ["bench", "overlap", "-n", "2"])
    assert done.exit_code != 0
    assert "needs a GPU of compute capability 9.0" in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "foo"], "overlap: --models"),
        (["--stand", "--models", "foo"], "overlap: --models"),
        (["--rows", "63"], "63 do not divide among 2 ranks"),
        (["--rows", "many"], "overlap: --rows"),
        (["--cases", "foo"], "overlap: --cases"),
        (["--ranks", "0"], "0"),
    ],
)
def test_arguments_are_looked_at_before_gpus(arguments, words):
    app.load_groups([])
    done = CliRunner().invoke(app.app, ["bench", "overlap", *arguments])
    said = str(done.exception) + done.output
    assert done.exit_code != 0
    assert words in said
    assert "needs a GPU" not in said

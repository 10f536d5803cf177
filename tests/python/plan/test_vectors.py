"""Every published figure, and the claims about them as a whole."""

import pytest

from braid.plan import vectors

EVERY = list(vectors.load())


@pytest.mark.parametrize("figure", EVERY, ids=lambda f: f"{f.id}-{f.call}-{f.words()}")
def test_published_figure(figure):
    assert figure.holds(), f"published {figure.expected}, computed {figure.found()}"


def test_all_formulas_have_figures():
    ids = {figure.id for figure in EVERY}
    assert {f"F{i}" for i in range(1, 22)} <= ids


def test_a100_table_has_all_20_rows_and_the_tight_tolerance():
    rows = [f for f in EVERY if f.id == "F6" and f.call == "collectives.busbw_gbps"]
    assert len(rows) == 20
    assert {f.tolerance for f in rows} == {0.0013}


def test_no_tolerance_is_generous():
    assert max(figure.tolerance for figure in EVERY) <= 0.05


def test_a_wrong_figure_would_show():
    figure = EVERY[0]
    wrong = vectors.Vector(**{**vars(figure), "expected": figure.expected * 1.01})
    assert not wrong.holds()

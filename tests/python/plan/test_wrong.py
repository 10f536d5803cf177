"""Numbers that no machine has, and names that are nearly right."""

import math

import pytest

from braid.errors import InvalidArgument
from braid.plan.wrong import PlanError, a_count, a_part, above_zero, at_least, nearest, unknown


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (above_zero, [1e-23, 1, 1e24], [0, -1, 1e-24, 5e-324, 1.1e24, math.inf, math.nan]),
        (a_part, [1e-20, 0.5, 1], [0, -0.1, 1.0001, 1e-308, math.inf, math.nan]),
        (a_count, [1, 100_000], [0, -1, 100_001]),
    ],
)
def test_borders(check, good, bad):
    for value in good:
        check("--x", value)
    for value in bad:
        with pytest.raises(PlanError, match=r"^--x: asked for "):
            check("--x", value)


def test_at_least():
    for value in (0, 1e-20, 1e24):
        at_least("--x", value, 0)
    for value in (-1e-9, 1e-24, 1e-311, 1e25, math.inf, math.nan, -math.inf):
        with pytest.raises(PlanError, match=r"^--x: asked for "):
            at_least("--x", value, 0)
    with pytest.raises(PlanError, match="asked for 1, at least 2 is needed"):
        at_least("--ranks", 1, 2)


def test_a_count_says_its_own_limit():
    with pytest.raises(PlanError, match="asked for 5000, it must be from 1 to 4,096"):
        a_count("--nodes", 5000, most=4096)


def test_it_is_the_user_s_mistake():
    assert issubclass(PlanError, InvalidArgument)


def test_the_nearest_name_whatever_its_case():
    known = ["A100-NVLink3", "h200-nvlink4", "mi300x-xgmi"]
    assert nearest("a100-nvlink", known) == "A100-NVLink3"
    assert nearest("H200-NVLINK4", known) == "h200-nvlink4"
    assert nearest("a100", known) == "A100-NVLink3"
    assert nearest("zzzz", known) is None
    assert nearest("mixtral-8x22b", ["kimi-k2", "llama3-70b", "deepseek-v3"]) is None
    assert nearest("x", []) is None


def test_unknown_names_are_listed_in_order():
    assert str(unknown("fruit", "aple", ["pear", "apple"])) == (
        "'aple' is no fruit; did you mean apple? braid has apple, pear"
    )
    assert str(unknown("fruit", "qqq", ["pear", "apple"])) == (
        "'qqq' is no fruit; braid has apple, pear"
    )
    assert str(unknown("fruit", "qqq", ["pear"], "or a nut")).endswith("braid has pear, or a nut")

"""What the bench of overlap calls wrong."""

import math

import pytest

from braid.bench.overlap.checked import MOST_ERROR, most_error_of_a_ring, series_of


def test_an_error_beyond_the_contract_is_wrong_data():
    assert series_of("g", "braid", 8, 1.0, 3.9e-3, [1.0]).verdict == "ok"
    assert series_of("g", "braid", 8, 1.0, 4.1e-3, [1.0]).verdict == "wrong data"
    assert series_of("g", "braid", 8, 1.0, math.nan, [1.0]).verdict == "wrong data"


def test_of_a_ring_of_eight_is_expected_what_its_roundings_make():
    """Seen on 8 H200: 4.03e-3 to 4.07e-3, and 3.14e-3 to 3.18e-3 on 4."""
    most = most_error_of_a_ring(8)
    assert series_of("g", "NCCL", 8, 1.0, 4.07e-3, [1.0], "", most).verdict == "ok"
    assert series_of("g", "NCCL", 8, 1.0, 6e-3, [1.0], "", most).verdict == "wrong data"


@pytest.mark.parametrize("ranks", [2, 4])
def test_few_ranks_keep_the_contract(ranks):
    assert most_error_of_a_ring(ranks) == MOST_ERROR

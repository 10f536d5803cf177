"""Who holds the others up: what is counted, what chance explains, what the table shows."""

import io
import random

import numpy as np
import pytest
from rich.console import Console

from braid.probe.block_kind import _scaled
from braid.probe.job import with_ranks
from braid.record.parts import RankTimes
from braid.record.probe import Series, times_of
from braid.record.ranks import chance_of, divided, late, named, of_samples
from braid.terminal import ranks as shown


def test_who_was_slowest_and_by_how_much():
    found = of_samples([[10, 12, 30, 10], [11, 11, 10, 10], [14, 10, 10, 10]])
    assert [one.slowest for one in found] == [2, 0, 1]
    assert [one.behind_us for one in found] == [(1 + 20) / 2, 0, 3]
    assert [one.p50_us for one in found] == [11, 10.5, 10]


def test_percentiles_are_those_of_other_tables():
    rng = random.Random(423)
    rows = [[rng.uniform(1, 100) for _ in range(37)] for _ in range(3)]
    for row, one in zip(rows, of_samples(rows), strict=True):
        assert one.p50_us == pytest.approx(np.percentile(row, 50), abs=1e-3)
        assert one.p95_us == pytest.approx(np.percentile(row, 95), abs=1e-3)


def test_alone_or_together_nobody_is_slowest():
    assert of_samples([[1.0, 2.0]])[0] == RankTimes(1.5, 1.95, 0, 0.0)
    assert [one.slowest for one in of_samples([[5.0] * 9, [5.0] * 9])] == [0, 0]
    assert of_samples([[3.0], [4.0]])[1] == RankTimes(4.0, 4.0, 1, 1.0)
    assert of_samples([]) == of_samples([[], []]) == []


def test_chance_is_a_binomial_s():
    assert chance_of(0, 7, 3) == pytest.approx(1)
    assert chance_of(1, 1, 4) == pytest.approx(0.25)
    assert chance_of(20, 20, 2) == pytest.approx(2**-20)
    assert chance_of(2, 3, 2) == pytest.approx(0.5)


def test_chance_of_many_samples():
    """Of 1,030 the ways to have half of them are more than a float has."""
    assert chance_of(515, 1030, 2) == pytest.approx(0.5, abs=0.02)
    assert chance_of(50_000, 100_000, 2) == pytest.approx(0.5, abs=0.002)
    assert chance_of(100_000, 100_000, 8) == 0
    assert late(*ranks_of((1100, 0), samples=1100)) == ["rank 0"]


def ranks_of(slowest, samples=20, behind=5.0, p50=100.0):
    return {f"rank {i}": RankTimes(p50, p50, n, behind if n else 0.0)
            for i, n in enumerate(slowest)}, samples  # fmt: skip


@pytest.mark.parametrize(
    ("slowest", "found"),
    [
        ((10, 10), []),
        ((16, 4), []),  # 1.2 % in a fair game
        ((17, 3), ["rank 0"]),
        ((5, 5, 5, 5), []),
        ((2, 12, 3, 3), ["rank 1"]),
        ((10, 10, 0, 0, 0, 0, 0, 0), ["rank 0", "rank 1"]),
        ((20,), []),
    ],
)
def test_more_often_than_chance(slowest, found):
    assert late(*ranks_of(slowest)) == found


def test_what_costs_nothing_is_not_late():
    """Somebody is last in every broadcast; by a thousandth it is nobody's trouble."""
    assert late(*ranks_of((20, 0), behind=0.9)) == []
    assert late(*ranks_of((20, 0), behind=1.0)) == ["rank 0"]


def test_few_samples_prove_nothing():
    assert late(*ranks_of((3, 0, 0, 0), samples=3)) == []
    assert late({}, 5) == late(*ranks_of((0, 0), samples=0)) == []


def test_ranks_that_are_alike_are_seldom_called_late():
    rng = random.Random(424)
    alarms = 0
    for _ in range(500):
        rows = [[rng.gauss(100, 5) for _ in range(20)] for _ in range(8)]
        alarms += bool(late(named(of_samples(rows)), 20))
    assert alarms <= 10


def test_of_one_thing_of_several_in_a_row():
    made = divided({"rank 0": RankTimes(10.0, 25.0, 7, 5.0)}, 10)
    assert made == {"rank 0": RankTimes(1.0, 2.5, 7, 0.5)}
    series = Series("block", "braid", 8, times_of([40.0, 60.0]), None)
    both = with_ranks(series, named(of_samples([[40.0, 20.0], [30.0, 60.0]])))
    one = _scaled(both, 10, 3)
    assert one.times.samples_us == [4.0, 6.0]
    assert one.by_rank_us == {"rank 0": 3.0, "rank 1": 4.5}
    assert one.by_rank["rank 1"].behind_us == 4.0


def table(rows, *, everybody=False, width=100):
    out = io.StringIO()
    by_rank = named(of_samples(rows))
    one = shown.Timed("all_reduce 64 MiB, braid", by_rank, len(rows[0]))
    shown.show([one], Console(file=out, width=width), everybody=everybody)
    return out.getvalue()


FAIR = [[10.0, 12.0] * 10, [11.0, 11.0] * 10]
LATE = [[1000.0] * 20, [1234.5] * 20, [1000.0] * 20]


def test_the_view_by_rank_is_a_table():
    lines = table(LATE).splitlines()
    rows = [line.split() for line in lines if line.startswith("  rank")]
    assert rows == [
        ["rank", "0", "1,000.0", "1,000.0", "0", "of", "20", "-"],
        ["rank", "1", "1,234.5", "1,234.5", "20", "of", "20", "234.5"],
        ["rank", "2", "1,000.0", "1,000.0", "0", "of", "20", "-"],
    ]
    assert any(line.startswith("all_reduce 64 MiB, braid") for line in lines)
    assert max(map(len, lines)) <= 100


def test_it_is_printed_where_a_rank_is_late_or_where_asked_for():
    assert table(FAIR) == ""
    assert table(FAIR, everybody=True).count("of 20") == 2

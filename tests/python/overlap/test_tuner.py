"""What the tuner may choose among: no GPU is needed to say so."""

import importlib.util
from functools import partial

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

CLUSTERS = 66


def _shape(op, rows, size=8):
    import torch

    from braid.overlap.shapes import Shape

    return Shape(op, rows, 6144, 12288, False, torch.bfloat16, size)


def test_the_sequential_way_is_always_there_and_first():
    from braid.overlap.shapes import Op
    from braid.overlap.tuner import SEQUENTIAL, candidates

    for op in Op:
        for rows in (8, 64, 1024, 8192):
            ways = list(candidates(_shape(op, rows), CLUSTERS))
            assert ways[0] == SEQUENTIAL
            assert len(set(map(str, ways))) == len({*ways}), ways


def test_no_band_of_an_all_gather_begins_before_its_shard_ends():
    from braid.overlap.shapes import Op
    from braid.overlap.tuner import candidates

    for way in candidates(_shape(Op.AG_GEMM, 1024), CLUSTERS):
        if way.form:
            assert way.head % way.band == 0


def test_batches_are_through_one_by_one():
    """Where bands divide shards or have whole ones, and a part is long enough to be cut."""
    from braid.overlap.shapes import Op
    from braid.overlap.tuner import _unit_rows, candidates

    for rows in (1024, 2048, 8192):
        batched = [way for way in candidates(_shape(Op.GEMM_RS, rows), CLUSTERS) if way.batches > 1]
        assert batched
        for way in batched:
            of_shard = -(-rows // 8 // _unit_rows(way.form))
            assert of_shard % way.band == 0 or way.band % of_shard == 0
            assert way.by_engines
    assert not [way for way in candidates(_shape(Op.GEMM_RS, 64), CLUSTERS) if way.batches > 1]


def test_tiles_lie_across_two_shards_where_one_row_of_tiles_is_a_shard():
    from braid.overlap.shapes import Op
    from braid.overlap.tuner import ACROSS, candidates

    def across(shape, clusters=CLUSTERS):
        return [way for way in candidates(shape, clusters) if way.form == ACROSS]

    for op in (Op.GEMM_RS, Op.GEMM_AR):
        assert across(_shape(op, 1024))
        assert not across(_shape(op, 1032)), "a shard of 129 rows"
        assert not across(_shape(op, 896, size=7)), "a shard without another"
        assert not across(_shape(op, 1024), clusters=23), "24 columns: a cluster would wait twice"
        assert all(way.band < 4 for way in across(_shape(op, 1024)))
    assert across(_shape(Op.AG_GEMM, 128), clusters=1)
    assert not across(_shape(Op.AG_GEMM, 129))


def test_whole_parts_are_exchanged_for_few_rows_alone():
    from braid.overlap.shapes import Op
    from braid.overlap.tuner import candidates

    assert any(way.exchanges for way in candidates(_shape(Op.GEMM_AR, 64), CLUSTERS))
    assert not any(way.exchanges for way in candidates(_shape(Op.GEMM_AR, 4096), CLUSTERS))


def _chosen(monkeypatch, mine, other=lambda times: times):
    """What the tuner takes: `mine` are this rank's times of each way in each round, by its number,
    `other` makes the other rank's of them.
    """
    import numpy as np

    from braid.overlap import tuner
    from braid.overlap.shapes import Op

    class Comm:
        def all_reduce(self, times, op):
            assert op == "max"
            return np.maximum(times, other(times.copy()))

    shape = _shape(Op.AG_GEMM, 1024)
    ways = list(tuner.candidates(shape, CLUSTERS))
    clock = {"way": None, "round": 0}

    def time_us(_comm, call):
        call()
        number = ways.index(clock["way"])
        us = mine(number, clock["round"] // len(ways))
        clock["round"] += 1
        return us

    monkeypatch.setattr(tuner, "_time_us", time_us)
    way, found = tuner.choose(Comm(), ways, [partial(clock.update, way=way) for way in ways])
    return ways.index(way), list(found.values())


def test_every_rank_takes_what_is_fastest_for_the_slowest(monkeypatch):
    def other(times):
        times[:] = 100.0
        if times.shape[1] > 2:  # not the last race, of two alone
            times[:, 1] = 900.0  # what is fastest here is slow there
        return times

    us = {1: 1.0, 2: 300.0}
    way, found = _chosen(monkeypatch, lambda number, _: us.get(number, 500.0), other)
    assert way == 2
    assert found[1] == 900.0


def test_in_turn_is_taken_where_it_is_fastest_and_where_nothing_is_clearly_faster(monkeypatch):
    assert _chosen(monkeypatch, lambda number, _: 90.0 if number == 0 else 100.0)[0] == 0
    assert _chosen(monkeypatch, lambda number, _: 99.0 if number == 1 else 100.0)[0] == 0
    assert _chosen(monkeypatch, lambda number, _: 97.0 if number == 1 else 100.0)[0] == 1


def test_one_lucky_round_decides_nothing(monkeypatch):
    def lucky(number, turn):
        return 1.0 if number == 1 and turn == 0 else 100.0 + number

    assert _chosen(monkeypatch, lucky)[0] == 0


def test_of_many_that_are_alike_chance_chooses_none(monkeypatch):
    """One race of three rounds takes another way than the sequential one in most runs of this."""
    import numpy as np

    def chosen(seed):
        noise = np.random.default_rng(seed)
        return _chosen(monkeypatch, lambda *_: 100.0 * noise.normal(1.0, 0.04))[0]

    assert sum(chosen(seed) != 0 for seed in range(100)) <= 20


def test_what_won_the_last_race_is_what_is_told(monkeypatch):
    def lucky_at_first(number, turn):
        return 50.0 if number == 1 and turn < 3 else 100.0

    way, found = _chosen(monkeypatch, lucky_at_first)
    assert (way, found[0], found[1]) == (0, 100.0, 100.0)

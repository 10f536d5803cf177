"""Calls of a stream: never more under way than asked for, each waited for once and in order."""

import numpy as np
import pytest

from braid.bench.engine import pattern, window
from braid.bench.engine.contestants import Case
from braid.bench.engine.window import Window


@pytest.fixture
def clock(monkeypatch):
    now = [0]
    monkeypatch.setattr(window, "perf_counter_ns", lambda: now[0])
    return now


def test_a_stream_of_three_at_a_time(clock):
    waited = []

    def wait(call):
        waited.append(call)
        clock[0] += 1000 * (call + 1)

    calls = Window(3, wait)
    for number in range(6):
        calls.make_room()
        assert number - len(waited) < 3
        calls.add(number)
    assert calls.end() == [(1 + 2 + 3) / 3, (4 + 5 + 6) / 3]
    assert waited == list(range(6))


def test_what_a_sample_is_the_mean_of():
    assert [Case("write", 8, 5).calls(), Case("pages", 8, 5).calls()] == [5, 1]
    assert Case("several", 8, 5, 4).calls() == 4


def test_each_request_of_a_stream_has_its_own_pages_of_every_layer():
    shares = pattern.shares(12, pattern.SOURCE, layers=4, at_once=5)
    assert [len(share) for share in shares] == [12] * 5
    assert sorted(np.concatenate(shares)) == list(range(60))
    for share in shares:
        assert [int(page) // 15 for page in share] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    whole = pattern.shares(60, pattern.SOURCE)
    assert [list(share) for share in whole] == [list(pattern.shuffled(60, pattern.SOURCE))]

"""Calls of a store that may never answer."""

import threading
import time

import pytest

from braid.torch.store_calls import NoAnswerError, StoreCalls


def nothing() -> None:
    pass


def soon() -> float:
    return time.monotonic() + 0.2


def late() -> float:
    return time.monotonic() + 20


@pytest.fixture
def stuck():
    """Calls of which one has had no answer in time, and what makes it come."""
    calls, answers = StoreCalls("a store"), threading.Event()
    with pytest.raises(NoAnswerError):
        calls.run(answers.wait, nothing, soon())
    yield calls, answers
    answers.set()


def test_a_call_returns_or_raises_what_the_store_does():
    calls = StoreCalls("a store")
    assert calls.run(lambda: 7, nothing, late()) == 7
    with pytest.raises(KeyError, match="no such word"):
        calls.run(lambda: {}["no such word"], nothing, late())
    assert not calls.is_stuck


def test_a_call_within_a_call_is_part_of_it():
    calls = StoreCalls("a store")
    assert calls.run(lambda: calls.run(lambda: 7, nothing, late()), nothing, late()) == 7


def test_a_call_without_an_answer_ends_in_time_and_so_do_those_behind_it(stuck):
    calls, answers = stuck
    began, made = time.monotonic(), []
    with pytest.raises(NoAnswerError):
        calls.run(lambda: made.append("late"), nothing, soon())
    assert time.monotonic() - began < 5
    assert calls.is_stuck
    answers.set()
    calls.run(lambda: made.append("then"), nothing, late())
    assert made == ["then"]  # what nobody waits for any more is not begun
    assert not calls.is_stuck


def test_who_waits_can_be_interrupted(stuck):
    calls, _ = stuck

    def aborted() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        calls.run(nothing, aborted, late())


def test_its_thread_ends_when_nobody_calls(monkeypatch):
    monkeypatch.setattr("braid.torch.store_calls._IDLE_S", 0.01)
    calls = StoreCalls("a store")
    for _ in range(3):
        made_by = calls.run(threading.current_thread, nothing, late())
        made_by.join(20)
        assert not made_by.is_alive()
    for _ in range(1000):  # also as it ends
        calls.run(lambda: time.sleep(0), nothing, late())


def test_all_groups_of_a_store_know_that_it_is_stuck(stuck):
    _, answers = stuck
    assert StoreCalls("a store").is_stuck
    assert not StoreCalls("another store").is_stuck
    answers.set()
    until = time.monotonic() + 20
    while StoreCalls("a store").is_stuck and time.monotonic() < until:
        time.sleep(0.01)
    assert not StoreCalls("a store").is_stuck

"""A rank that crashes, says nothing or does not end fails the test that started it."""

import faulthandler
import os
import signal
import time
from multiprocessing import util

import pytest


def rank() -> int:
    return int(os.environ["RANK"])


def fails(ranks, body, **more) -> str:
    """What collect() says of two ranks that run the body."""
    with pytest.raises(AssertionError) as caught:
        ranks.collect(ranks.start(2, body), **more)
    return str(caught.value)


def test_results_come_in_rank_order(ranks):
    assert ranks.collect(ranks.start(3, lambda: rank() * 10)) == [0, 10, 20]


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_rank_that_a_signal_kills(ranks, how):
    def body():
        faulthandler.disable()  # pytest's, which would write here where it died
        if rank() == 1:
            os.kill(os.getpid(), how)

    assert fails(ranks, body) == f"rank 1: was killed by {how.name} and returned nothing"


def test_a_rank_that_crashes_after_its_result(ranks):
    def body():
        faulthandler.disable()
        util.Finalize(None, os.kill, (os.getpid(), signal.SIGSEGV), exitpriority=1)
        return 7

    said = [f"rank {r}: was killed by SIGSEGV after it had returned" for r in range(2)]
    assert fails(ranks, body) == "\n".join(said)


def test_a_rank_that_leaves_without_a_word(ranks):
    def body():
        if rank() == 0:
            os._exit(0)

    assert fails(ranks, body) == "rank 0: ended with exit code 0 and returned nothing"


def test_a_rank_that_raises(ranks):
    def body():
        if rank() == 1:
            assert rank() == 0, "the words of the rank"

    assert "the words of the rank" in fails(ranks, body)


def test_a_rank_that_does_not_end(ranks):
    def body():
        if rank() == 0:
            time.sleep(60)

    began = time.monotonic()
    assert "rank 0: \nno result within 0.3 s" in fails(ranks, body, timeout_s=0.3)
    assert time.monotonic() - began < 10


def test_a_rank_that_is_to_be_killed(ranks):
    def body():
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 5

    killed = {1: signal.SIGKILL}
    assert ranks.collect(ranks.start(2, body), killed=killed) == [5, None]
    said = fails(ranks, body, killed={0: signal.SIGKILL, **killed})
    assert said == "rank 0: was to be killed by SIGKILL, but ended with exit code 0 and said 5"
    said = fails(ranks, body, killed={1: signal.SIGSEGV})
    assert said.startswith("rank 1: was to be killed by SIGSEGV, but was killed by SIGKILL")

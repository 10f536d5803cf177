"""Two hosts of two ranks over one cable, small: the full measurement is tests/nodes/measure.py.

What the kernel counted on the cable is what the plan says; a cable that is late only takes longer,
one that is pulled and put back in time loses nothing, and one that stays away ends every rank with
an error by its deadline.
"""

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "two_hosts"))
import rails as two_hosts

HERE = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    two_hosts.why_not() is not None, reason=f"skipped: {two_hosts.why_not()}"
)
PER_HOST = 2
SIZE = 2 << 20
DEADLINE_S = 8.0


@pytest.fixture(scope="module")
def rails() -> Iterator[two_hosts.Rails]:
    with two_hosts.Rails([800]) as made:
        yield made


def _load() -> Any:
    """tests/nodes/measure.py; tests/two_hosts has another one of that name."""
    spec = importlib.util.spec_from_file_location("measure_nodes", HERE / "nodes" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


measure_nodes = _load()


@pytest.fixture
def job(rails: two_hosts.Rails) -> Iterator[Any]:
    """Ranks of both comms, without Gloo; none is left for the next test."""
    made = measure_nodes.Job(rails, PER_HOST, tune="off", timeout=f"{DEADLINE_S:g}s")
    yield made
    made.kill()


def test_what_the_cable_carries_is_the_plans(job: Any) -> None:
    """Headers, acknowledgements and the calls' first pieces are beside it: a few percent here."""
    for op in measure_nodes.OPS:
        for way, model in measure_nodes.MODELS.items():
            row = measure_nodes.calls(job, way, op, SIZE, 3)
            least = model(op, 2, PER_HOST, SIZE)
            assert row["wrong"] == 0
            for sent in row["cable_bytes"]:
                # The kernel counts packets of the next call's first pieces and of the last one's
                # acknowledgements on either side of a call's end.
                assert 0.99 * least <= sent < 1.15 * least + 100_000, (op, way)
    job.quit()


def test_a_late_cable_only_takes_longer(rails: two_hosts.Rails, job: Any) -> None:
    for op in measure_nodes.OPS:
        assert measure_nodes.calls(job, "staged", op, SIZE, 1)["wrong"] == 0
    try:
        rails.delay(0, 10)
    except RuntimeError as why:
        pytest.skip(f"skipped: this kernel delays no packets: {why}")
    for op in measure_nodes.OPS:
        row = measure_nodes.calls(job, "staged", op, SIZE, 2)
        assert row["wrong"] == 0
        assert min(row["seconds"]) > 0.01
    rails.delay(0, 0)
    job.quit()


def test_a_cable_that_comes_back_loses_nothing(rails: two_hosts.Rails, job: Any) -> None:
    size = 16 << 20  # 80 ms on the cable
    assert measure_nodes.calls(job, "staged", "all_reduce", size, 1)["wrong"] == 0

    def pull() -> None:
        time.sleep(0.05)
        rails.cut(0)
        time.sleep(0.6)
        rails.mend(0)

    puller = threading.Thread(target=pull)
    puller.start()
    row = measure_nodes.calls(job, "staged", "all_reduce", size, 6)
    puller.join()
    assert row["wrong"] == 0
    assert measure_nodes.calls(job, "staged", "reduce_scatter", SIZE, 2)["wrong"] == 0
    job.quit()


def test_a_cable_that_stays_away_ends_every_rank(rails: two_hosts.Rails, job: Any) -> None:
    assert measure_nodes.calls(job, "staged", "all_gather", SIZE, 1)["wrong"] == 0
    rails.cut(0)
    began = time.monotonic()
    try:
        with pytest.raises(RuntimeError, match="a rank ended with code"):
            measure_nodes.calls(job, "staged", "all_gather", SIZE, 1)
        codes = [rank.wait(timeout=4 * DEADLINE_S) for rank in job.ranks]
    finally:
        rails.mend(0)
    assert all(codes), codes
    assert time.monotonic() - began < 4 * DEADLINE_S

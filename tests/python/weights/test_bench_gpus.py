"""`braid bench weights --device gpu`, as far as it goes without one: what its ranks make and
compare on torch's memory of the host, who has which GPU, and what is refused.
"""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from braid.bench.weights import jobs, peer  # noqa: E402
from braid.bench.weights.gpu_peer import GpuPeer  # noqa: E402
from braid.record.probe import Series, times_of  # noqa: E402

SHAPE = jobs.Shape(2, 2, 4)
NBYTES = 4 << 20


@pytest.mark.parametrize("side", ["trainer", "worker"])
def test_a_tensor_gets_the_same_numbers_as_an_array(monkeypatch, side):
    monkeypatch.setattr("braid.bench.weights.gpu_peer._PART_ELEMENTS", 3000)
    word = {"nbytes": NBYTES, "tensors": 4, "side": side, "rank": 1, "count": 2, "number": 3}
    plain, ours = peer.Peer(), GpuPeer("cpu")
    for each in (plain, ours):
        each._arrays, _, each._boxes = peer.parameters_of(word, each.zeros)
        each.fill(word)
    for name, array in plain._arrays.items():
        assert np.array_equal(ours._arrays[name].numpy().view(np.uint16), array.view(np.uint16))


def test_a_step_between_tensors_and_a_wrong_byte_of_it(monkeypatch):
    monkeypatch.setattr(jobs.Shape, "place", lambda *_: "cpu")
    ranks = jobs.Ranks(SHAPE, "local", NBYTES, checks=False)
    try:
        assert ranks.check() == 0
        assert ranks.plain_us() > 0
        assert ranks.update_us() > 0
        # Nobody has filled anything for this version: what lies there is an older one's.
        wrong = ranks._workers[0].ask("check", 60, number=ranks._version)
        assert wrong["wrong_bytes"] > NBYTES // 4
    finally:
        ranks.close()


def test_who_has_which_gpu():
    assert [jobs.Shape(4, 4, 16, gpus=8).place("worker", n) for n in (0, 3)] == ["cuda:4", "cuda:7"]
    few = jobs.Shape(4, 4, 16, gpus=3)
    assert [few.place("trainer", 3), few.place("worker", 1)] == ["cuda:0", "cuda:2"]
    assert jobs.Shape(4, 4, 16).place("worker", 0) is None


def test_the_figures_are_by_the_drivers_copies():
    times = {jobs.COPIES: 90.0, jobs.PLAIN: 100.0, jobs.UNCHECKED: 120.0}
    series = [
        Series("g", name, NBYTES, times_of([us]), 8.0, verdict="ok") for name, us in times.items()
    ]
    figures = jobs.gpu_ratios_of(SHAPE, series)
    assert figures["g, update, no checksums against plain copies"] == 0.75
    assert figures["g, plain writes against plain copies"] == 0.9
    assert figures["g, update, no checksums, GB/s into each worker"] == 4.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpus_that_are_not_there():
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "bench", "weights", "--device", "gpu"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "GPUs were asked for" in done.stderr

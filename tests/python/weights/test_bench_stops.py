"""`braid bench weights` that is stopped before anything was timed."""

import pytest

from braid.bench.weights import jobs
from braid.probe.effort import Effort

SHAPE = jobs.Shape(1, 1, 1)


class Still:
    """Ranks that do nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def check(self) -> int:
        return 0

    def plain_us(self) -> float:
        return 1.0

    def close(self) -> None: ...


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_a_stop_before_the_first_sample_is_no_series(monkeypatch, kind):
    monkeypatch.setattr(jobs, "Ranks", Still)
    if kind == "gpu":
        pytest.importorskip("torch")
        from braid.bench.weights import copies

        monkeypatch.setattr(
            copies, "Copies", lambda *_: type("Copies", (), {"us": lambda _: 1.0})()
        )
    job = jobs.gpu_job(SHAPE, 4096) if kind == "gpu" else jobs.job(SHAPE, "local", 4096)
    assert job.run(Effort(5, 10.0, 1, stop=lambda: True), lambda _: None) == []
    assert jobs.ratios_of([]) == jobs.gpu_ratios_of(SHAPE, []) == {}

"""The engine's examples run, and say what they promise."""

from example_runs import said_by


def test_pages_are_handed_over():
    assert said_by("engine/01_kv_handover.py") == (
        "100 pages, 6553600 bytes, in the decoder's cache: the same is True\n"
    )


def test_parameters_are_pulled():
    lines = said_by("engine/02_pull_parameters.py").splitlines()
    assert sorted(lines) == [
        f"worker {worker} has version {version}: True"
        for worker in range(2)
        for version in range(1, 4)
    ]

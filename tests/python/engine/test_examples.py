"""The engine's examples run, and say what they promise."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples/engine"


def said_by(name):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_pages_are_handed_over():
    assert said_by("01_kv_handover.py") == (
        "100 pages, 6553600 bytes, in the decoder's cache: the same is True\n"
    )


def test_parameters_are_pulled():
    lines = said_by("02_pull_parameters.py").splitlines()
    assert sorted(lines) == [
        f"worker {worker} has version {version}: True"
        for worker in range(2)
        for version in range(1, 4)
    ]

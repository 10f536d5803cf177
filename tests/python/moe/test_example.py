"""The example's tokens are those of one process, for experts on any number of ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples/moe/transformer.py"


@pytest.mark.parametrize("size", [5])
def test_tokens_are_those_of_one_process(size):
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", str(size), str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens equal to those of one process: yes" in done.stdout

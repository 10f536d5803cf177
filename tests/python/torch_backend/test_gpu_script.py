"""tests/gpu/torch_backend.py itself, between CPU tensors and Gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "gpu" / "torch_backend.py"


def test_the_script_for_gpus_runs_on_cpus():
    arguments = ["--cpu", "--layers", "1", "--width", "64", "--steps", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "BRAID_TUNE": "off"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"torch backend: \d+ cases, 0 wrong", done.stdout)
    assert len(re.findall(r"largest gap 0\.00e\+00", done.stdout)) == 2  # DDP and FSDP2

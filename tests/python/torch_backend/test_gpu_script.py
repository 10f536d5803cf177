"""The scripts for GPUs themselves, between CPU tensors and Gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "gpu"


def run(name, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(SCRIPTS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "BRAID_TUNE": "off"},
    )


def test_the_script_for_gpus_runs_on_cpus():
    done = run("torch_backend.py", "--cpu", "--layers", "1", "--width", "64", "--steps", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"torch backend: \d+ cases, 0 wrong", done.stdout)
    assert len(re.findall(r"largest gap 0\.00e\+00", done.stdout)) == 2  # DDP and FSDP2


def test_the_host_s_time_is_measured_and_judged():
    quick = ["--cpu", "--async", "--calls", "3", "--rounds", "2"]
    done = run("torch_host_time.py", *quick, "--limit", "1e6", "--profile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"(?m)^\w+ (4 KiB|1 MiB)(, async)? +[\d.]+ +[\d.]+", done.stdout)) == 20
    assert "0 cases above" in done.stdout
    assert "Ordered by: internal time" in done.stdout  # the profile
    slow = run("torch_host_time.py", *quick, "--limit", "0")
    assert slow.returncode == 1, slow.stdout + slow.stderr
    assert "host time: 20 cases above 0.0 times gloo's" in slow.stdout
    assert slow.stdout.count("SLOW") == 20

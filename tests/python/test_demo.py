"""`braid demo` and scripts/demo: GPUs where there are two, else a line that says why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braid.bench import gpus
from braid.cli import demo

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def launches(monkeypatch):
    """What demo would start: (arguments behind the interpreter, ranks)."""
    started = []
    monkeypatch.setattr(demo, "launch", lambda command, n: started.append((command[1:], n)) or 0)
    monkeypatch.setattr(demo, "TRAINING", Path("/nowhere/train.py"))
    return started


def test_gpus_are_used_when_there_are_two(monkeypatch, launches, tmp_path, capsys):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(4))
    assert demo.run(tmp_path, 0, "", 20, "auto") == 0
    (twin, bench) = launches
    assert twin == (["-m", "braid.bench.twin"], 4)
    assert bench[1] == 4
    assert {"--device", "gpu", "64KiB,256MiB", str(tmp_path / "demo.json")} <= set(bench[0])
    assert capsys.readouterr().out.startswith("4 GPUs; ")


def test_a_wrong_byte_ends_the_demo(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(16))
    started = []
    monkeypatch.setattr(demo, "launch", lambda _command, n: started.append(n) or 1)
    assert demo.run(tmp_path, 0, "", 20, "auto") == 1
    assert started == [gpus.MOST]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (gpus.Gpus(0, "torch is not here"), "between CPUs: torch is not here"),
        (gpus.Gpus(1), "between CPUs: this machine has one GPU"),
    ],
)
def test_without_gpus_it_says_why(found, words, monkeypatch, launches, tmp_path, capsys):
    monkeypatch.setattr(gpus, "find", lambda: found)
    assert demo.run(tmp_path, 0, "", 20, "auto") == 0
    assert capsys.readouterr().out.startswith(words)
    assert "--pace" in launches[0][0]
    assert launches[0][1] == 4


def test_without_scikit_learn_the_training_is_skipped_in_a_line(
    monkeypatch, launches, tmp_path, capsys
):
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(demo, "TRAINING", script)
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: None)
    assert demo.run(tmp_path, 0, "", 20, "cpu") == 0
    assert len(launches) == 1  # the bench alone
    assert "needs scikit-learn, which is not installed here; pip install" in capsys.readouterr().out


def test_script_falls_back_with_a_line(tmp_path):
    """A copy whose scripts/setup and .venv only say that they ran."""
    scripts, programs = tmp_path / "scripts", tmp_path / ".venv/bin"
    scripts.mkdir()
    programs.mkdir(parents=True)
    (scripts / "demo").write_text((REPOSITORY / "scripts/demo").read_text())
    for path, words in ((scripts / "setup", "setup ran"), (programs / "braid", 'braid "$@"')):
        path.write_text(f"#!/bin/sh\necho {words}\n")
        path.chmod(0o755)
    (scripts / "demo").chmod(0o755)
    done = subprocess.run(
        [str(scripts / "demo"), "--size", "1MiB"],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith("demo: not on GPUs: ")
    assert (second, third) == ("setup ran", "braid demo --device cpu --size 1MiB")

"""tests/gpu/nccl_tests/mpi.c: what nccl-tests' processes tell each other, on four ranks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "gpu/nccl_tests"
RANKS = 4


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("mpi") / "mpi_test"
    strict = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    sources = [str(FOLDER / name) for name in ("mpi.c", "mpi_test.c")]
    subprocess.run([compiler, *strict, *sources, "-o", str(made)], check=True)
    return str(made)


def on_ranks(program, *how):
    return subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", str(RANKS), program, *how],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_every_call_gives_what_mpi_says(program):
    done = on_ranks(program)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == [f"rank {rank} of {RANKS}: all right" for rank in range(RANKS)]


def test_a_process_that_nobody_started_is_alone(program, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=20)
    assert done.stdout == "rank 0 of 1: all right\n"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("leave", "a rank has ended"),
        ("stray", "split: a rank makes another call"),
        ("split", "ranks have several colours"),
    ],
)
def test_ranks_that_do_not_agree_end(program, how, words):
    done = on_ranks(program, how)
    assert done.returncode != 0
    assert words in done.stderr
    assert "all right" not in done.stdout

"""What launchers tell a process, and who is a rank."""

import json
import os
import subprocess
import sys

import pytest

from braid import launched
from braid.errors import InvalidArgument

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
STEP = "SLURM_STEP_NUM_TASKS"
MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK")
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", STEP: "8"}
SHELL = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", STEP: "1"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "0"
}  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    """An environment with these variables of launchers and no others."""

    def tell(known):
        for name in (*NAMES, *MPI, STEP):
            monkeypatch.delenv(name, raising=False)
        for name, text in known.items():
            monkeypatch.setenv(name, text)

    return tell


@pytest.mark.parametrize(
    ("known", "is_rank", "numbers"),
    [
        ({}, False, (0, 1, 0)),
        (TORCHRUN, True, (3, 4, 1)),
        (SLURM, True, (5, 8, 1)),
        (MPIRUN, True, (2, 6, 0)),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "2"}, True, (1, 2, 1)),
        # From the inside out: torchrun in a task, mpirun in a batch script, which has a rank.
        (SLURM | TORCHRUN, True, (3, 4, 1)),
        (SHELL | MPIRUN, True, (2, 6, 0)),
        # A shell that is the one task of its step; one rank of braid run in it.
        (SHELL, False, (0, 1, 0)),
        (BATCH, False, (0, 4, 0)),
        (SHELL | {"RANK": "0", "WORLD_SIZE": "1"}, True, (0, 1, 0)),
    ],
)
def test_who_is_a_rank_and_which(told, known, is_rank, numbers):
    told(known)
    assert launched.is_rank() is is_rank
    assert launched.has_launcher() is bool(known)
    assert (launched.rank(), launched.size(), launched.local_rank()) == numbers
    assert launched.words() == (f"rank {numbers[0]}" if is_rank else "")


def test_what_is_no_number_is_named(told):
    told({"SLURM_PROCID": "1", STEP: "2"})
    assert launched.is_rank()
    with pytest.raises(InvalidArgument, match=r"SLURM_NTASKS: .* found ''"):
        launched.size()


@pytest.mark.parametrize(
    "words",
    [
        "explain all_reduce 1MiB --json",
        "bench --device cpu --ops all_reduce --sizes 4KiB --iters 2 --against none --json -",
        "bench latency --device cpu --total 64KiB --messages 4 --samples 2 --against none --json -",
    ],
)
def test_ranks_are_started_in_an_interactive_shell_of_slurm(words):
    known = {**os.environ, **SHELL, "SLURM_JOB_ID": "5", "BRAID_TUNE": "off"}
    line = [sys.executable, "-m", "braid.cli", *words.split(), "-n", "3"]
    done = subprocess.run(line, env=known, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.get("ranks", found.get("num_ranks")) == 3


def test_tasks_of_slurm_report_once_and_have_a_gpu_each(told, monkeypatch):
    torch = pytest.importorskip("torch")
    from braid.bench import own_gpu
    from braid.terminal.reporter import Reporter

    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    told(SLURM)
    for visible, place in ((8, 1), (1, 0)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda visible=visible: visible)
        assert own_gpu.take() == chosen.pop() == torch.device("cuda", place)
    assert type(Reporter.for_this_rank()) is Reporter


@pytest.mark.parametrize(
    "words",
    [
        "explain all_reduce 1MiB",
        "bench --device cpu --ops all_reduce --sizes 4KiB",
        "bench latency --device cpu",
        "bench moe",
        "bench overlap",
    ],
)
def test_another_number_of_ranks_than_the_launch_has_is_refused(words):
    known = {**os.environ, **TORCHRUN}
    line = [sys.executable, "-m", "braid.cli", *words.split(), "-n", "8"]
    done = subprocess.run(line, env=known, capture_output=True, text=True, timeout=100)
    said = "--ranks: asked for 8, but the launch around this has 4: leave it out there"
    assert (done.returncode, done.stderr.strip()) == (2, f"braid: {said}")

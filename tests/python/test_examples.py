"""The examples run, and say what they promise."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch(ranks, name, **options):
    """Runs an example under `braid run`."""
    command = [sys.executable, "-m", "braid.cli", "run", "-n", str(ranks), str(EXAMPLES / name)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **options},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hello():
    said = launch(3, "02_hello.py")
    assert "3 ranks are here: [0, 1, 2], their sum is 3" in said


@pytest.mark.parametrize(
    ("recipe", "said"),
    [("torchrun.sh", "NODE: the number of this node"), ("mpirun.sh", "HOSTS: as mpirun has it")],
)
def test_a_recipe_says_what_it_wants_to_be_told(recipe, said):
    told = {"NODES": "1", "RANKS": "2", "HEAD": "127.0.0.1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", EXAMPLES / "launch" / recipe, "train.py"],
        capture_output=True, text=True, timeout=60, check=False, env=told,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="skipped: needs scikit-learn"
)
def test_training_does_not_depend_on_shares():
    said = launch(3, "01_train_digits.py", BRAID_TUNE="off")  # test_hello tunes
    assert "losses equal to the last bit: yes" in said
    assert "within 0.1 % of its loss: yes" in said
    last = re.findall(r"^(.*?) +last loss .* bits ([0-9a-f]{8})", said, re.MULTILINE)
    assert len(last) == 4
    assert len({bits for name, bits in last if name != "one process, no braid"}) == 1
    assert all(float(percent) > 90 for percent in re.findall(r"accuracy ([\d.]+)%", said))


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None or importlib.util.find_spec("torch") is None,
    reason="skipped: needs scikit-learn and torch",
)
def test_ddp_has_gloos_losses():
    said = launch(2, "03_ddp_torch.py", BRAID_TUNE="off")
    assert "largest gap to Gloo's loss in any step: 0\n" in said
    assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > 90

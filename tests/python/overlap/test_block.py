"""The parallel layers as parts of models (tests/gpu/overlap_block.py), on the CPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "tests/gpu/overlap_block.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("overlap_block", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_block_and_a_gpt_on_two_ranks(script, tmp_path):
    path = tmp_path / "block.json"
    command = [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(SCRIPT)]
    done = subprocess.run(
        [*command, "--cpu", "--steps", "20", "--json", str(path)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["schema"] == "braid.overlap_block/1"
    assert record["faults"] == []
    (block,) = record["blocks"]
    assert max(block["by_layer"].values()) < 1e-6
    assert max(block["end_to_end"].values()) < 1e-5
    assert len(block["by_layer"]) == 12
    # What a record says is what faults() finds, and each of it can be wrong.
    assert list(script.faults(record, is_cpu=True)) == []
    for change, words in (
        (lambda r: r["blocks"][0]["by_layer"].update({"up dw": 5e-3}), "up dw is off"),
        (lambda r: r["blocks"][0]["by_layer"].update({"up dw": float("nan")}), "up dw is off"),
        (lambda r: r["blocks"][0]["end_to_end"].update({"x, braid": 1.0}), "x, braid is off"),
        (lambda r: r["gpt"].update({"gap_of_the_last_fifth": 0.1}), "losses are"),
        (lambda r: r["gpt"]["losses"]["braid"].append(9.0), "losses did not fall"),
    ):
        changed = json.loads(json.dumps(record))
        change(changed)
        assert any(words in text for text in script.faults(changed, is_cpu=True)), words

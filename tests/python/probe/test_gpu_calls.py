"""Whole runs of latency, overlap and replay as on GPUs, on stand-ins; and Gloo as a baseline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from braid.record.probe import from_json

pytest.importorskip("torch")

STAND_IN = Path(__file__).with_name("calls_stand_in.py")


def run(*arguments):
    command = [sys.executable, "-m", "braid.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_braid_beside_nccl(tmp_path):
    done = run("run", "-n", "2", STAND_IN, tmp_path)
    assert done.returncode == 0, done.stderr
    for kind, cases in (("latency", 4), ("overlap", 6), ("replay", 10), ("tp-block", 19)):
        record = from_json(json.loads((tmp_path / f"{kind}.json").read_text()))
        assert record.device == "stand-in"
        assert {one.case for one in record.series} - {"compute"} == {"braid", "nccl"}
        assert len(record.series) == cases
        assert record.figures
        assert not record.is_bad
    assert {"braid: error", "nccl: error"} <= record.figures.keys()


def test_braid_beside_gloo(tmp_path):
    path = tmp_path / "r.json"
    more = ("--device", "cpu", "-n", "2", "--samples", "3", "--against", "gloo", "--json", path)
    done = run("bench", "latency", "--total", "64KiB", "--messages", "4", *more)
    assert done.returncode == 0, done.stderr
    record = from_json(json.loads(path.read_text()))
    assert [one.case for one in record.series] == ["braid", "braid", "gloo", "gloo"]
    assert record.figures.keys() == {"braid: one call by many", "gloo: one call by many"}

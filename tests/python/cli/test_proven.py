"""The sentence that a demo ends with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from braid.bench import gpus
from braid.cli import demo, proven
from braid.record import bench, gpu

ROOT = Path(__file__).parents[3]


def saved(name):
    return json.loads((ROOT / "records" / name).read_text(encoding="utf-8"))


@pytest.fixture
def record():
    return bench.from_json(saved("paced_421.json"))


def test_between_cpus(record):
    said = proven.between_cpus(record, 1.75, is_trained=True)
    checked = sum(one.checked_bytes for one in record.results)
    assert said.startswith(f"\nproven: 0 wrong bytes of {checked:,} in 5 operations; ")
    assert "1.68x to 1.74x as fast as the fastest alone, where their rates allow 1.75x" in said
    assert "losses equal to the last bit" in said
    assert said.count("\n") == 1
    assert "losses" not in proven.between_cpus(record, 1.75, is_trained=None)


def test_more_than_the_rates_allow_is_explained(record):
    assert "fell behind" not in proven.between_cpus(record, 1.75, is_trained=None)
    assert "allow 1.70x (above that the fastest alone fell behind its own rate)" in (
        proven.between_cpus(record, 1.70, is_trained=None)
    )


@pytest.mark.parametrize("whose", ["ours", "the baseline's"])
def test_one_wrong_byte_proves_nothing(record, whose):
    first, *others = record.results
    if whose == "ours":
        first = replace(first, wrong_bytes=3)
    else:
        first = replace(first, baseline=replace(first.baseline, wrong_bytes=3))
    said = proven.between_cpus(replace(record, results=[first, *others]), 1.75, is_trained=True)
    assert said.startswith("\nNOT proven: 3 wrong bytes of ")


def test_nor_does_a_training_that_failed(record):
    said = proven.between_cpus(record, 1.75, is_trained=False)
    assert said.startswith("\nNOT proven: 0 wrong bytes of ")
    assert "the training FAILED" in said


def test_without_a_baseline_there_is_no_ratio(record):
    alone = [replace(one, baseline=None, ratio=None) for one in record.results]
    said = proven.between_cpus(replace(record, results=alone), 1.75, is_trained=None)
    assert "fastest" not in said


def test_on_gpus():
    said = proven.on_gpus(gpu.from_json(saved("flexlink_8.json")))
    assert said.startswith("\nproven: random sums had the CPU's bits; 0 wrong bytes in 65 cases; ")
    assert "as fast as NCCL 2.28.9 by medians, with 95 % confidence " in said
    assert " faster" in said
    assert " slower" in said


def test_the_demo_ends_with_it(monkeypatch, tmp_path, capsys):
    """The record is of this run: one of an earlier run is gone before ranks start."""

    def run(command, _ranks):
        path = tmp_path / "demo.json"
        if "bench" in command:
            assert not path.exists()
            path.write_text(json.dumps(saved("paced_421.json")))
        return 0

    (tmp_path / "demo.json").write_text("an old one")
    monkeypatch.setattr(demo, "launch", run)
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))
    monkeypatch.setattr(demo, "TRAINING", ROOT / "README.md")
    assert demo.run(tmp_path, 4, "", 20, "auto") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("proven: 0 wrong bytes of ")


def test_a_demo_whose_ranks_died_says_nothing_is_proven(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "launch", lambda *_: 3)
    assert demo.run(tmp_path, 4, "", 20, "cpu") == 3
    assert "proven" not in capsys.readouterr().out

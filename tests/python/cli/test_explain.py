"""`braid explain`: what the rates are that decide, and where and when they were measured."""

import json
import os
import time
from types import SimpleNamespace

import pytest

import braid
from braid.cli import explain

TEXT = "all_reduce of 64 MiB on 2 ranks: cells of 64 KiB, predicted 11.9 ms\n  because it is so\n"
PLAN = {
    "op": "all_reduce", "bytes": 64 << 20, "num_ranks": 2,
    "links": [{"name": "shm", "alone_ns": 11.9e6}, {"name": "staged", "alone_ns": 0}],
}  # fmt: skip
TABLE = {"fabric_hash": "abc-2", "links": ["shm", "staged"], "rates": []}


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The words for a comm whose cache is in tmp_path."""
    monkeypatch.setattr(explain, "cache_folder", lambda: tmp_path)

    def of(plan=PLAN):
        made = braid.Explanation(TEXT, plan)
        comm = SimpleNamespace(explain=lambda *_: made, fabric_hash="abc")
        return explain.told(comm, "all_reduce", 64 << 20)

    return of


def keep(path, age_s=0.0, text=""):
    path.write_text(text or json.dumps(TABLE))
    os.utime(path, (time.time() - age_s,) * 2)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (2, "just now"), (61, "1 minute ago"), (150, "2 minutes ago"), (7300, "2 hours ago"),
        (90000, "1 day ago"), (4e6, "46 days ago"),
    ],
)  # fmt: skip
def test_file_and_age_are_told(told, tmp_path, age_s, words):
    file = tmp_path / "tuning-abc-2.json"
    keep(file, age_s)
    found = told()
    assert str(found) == f"{TEXT}  tuned {words}, {file}; BRAID_TUNE=force measures again\n"
    assert found.json["tuning_file"] == str(file)
    assert found.json["tuning_age_s"] == pytest.approx(age_s, abs=5)
    assert [each.pop("alone_source") for each in found.json["links"]] == ["measured", None]
    assert found.json["links"] == PLAN["links"]


def test_the_newest_that_can_be_read_is_it(told, tmp_path):
    keep(tmp_path / "tuning-abc-1.json", 500)
    keep(tmp_path / "tuning-abc-2.json", 100)
    keep(tmp_path / "tuning-abc-3.json", 10, "{")
    keep(tmp_path / "tuning-abd-3.json", 5)
    assert told().json["tuning_file"] == str(tmp_path / "tuning-abc-2.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps(TABLE | {"fabric_hash": "abd-2"})])
def test_a_file_that_is_none_is_none(told, tmp_path, text):
    keep(tmp_path / "tuning-abc-2.json", text=text)
    found = told()
    assert str(found) == TEXT
    assert found.json["tuning_file"] is None


def test_a_plan_by_facts_names_no_file(told, tmp_path):
    keep(tmp_path / "tuning-abc-2.json")
    facts = PLAN | {"links": [{"name": "shm", "alone_ns": 0}]}
    assert str(told(facts)) == TEXT
    assert told(facts).json["tuning_file"] is None


def test_the_folder_is_tunings(monkeypatch, tmp_path):
    monkeypatch.delenv("BRAID_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert explain.cache_folder() == tmp_path / "braid"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert explain.cache_folder() == tmp_path / ".cache/braid"

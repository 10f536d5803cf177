"""`braid explain`: what tuning measured stands where a rate is assumed."""

import json
from types import SimpleNamespace

import pytest

import braid
from braid.cli import explain

TEXT = """all_reduce of 64 MiB on 2 ranks: cells of 64 KiB, predicted 11.9 ms
  shm                0.0 %         0 B  at 5 GB/s, 1.00 us (assumed, shares core)
  staged           100.0 %      64 MiB  at 0.2 GB/s, 2.00 us (paced)
  because it is so
"""
PLAN = {
    "op": "all_reduce", "bytes": 64 << 20, "num_ranks": 2,
    "links": [{"name": "shm", "source": "assumed"}, {"name": "staged", "source": "paced"}],
}  # fmt: skip
TABLE = {
    "fabric_hash": "abc-2",
    "links": ["shm", "staged"],
    "rates": [
        {"op": "all_reduce", "num_ranks": 2, "link": 0, "points": [[1 << 18, 66967.0]]},
        {"op": "all_reduce", "num_ranks": 2, "link": 1, "points": [[4 << 20, 746272.0]]},
        {"op": "all_reduce", "num_ranks": 4, "link": 0, "points": [[4 << 20, 1.0]]},
        {"op": "broadcast", "num_ranks": 2, "link": 0, "points": [[4 << 20, 1.0]]},
    ],
}
TABLE["rates"][0]["points"].append([4 << 20, 844041.0])


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAID_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("BRAID_TUNE", raising=False)
    comm = SimpleNamespace(
        fabric_hash="abc", explain=lambda _op, _nbytes: braid.Explanation(TEXT, PLAN)
    )
    return lambda: explain.told(comm, "all_reduce", 64 << 20)


def test_without_a_file_the_rate_is_assumed(told):
    found = told()
    assert str(found) == TEXT
    assert [link["measured_ns"] for link in found.json["links"]] == [None, None]


def test_what_was_measured_is_told(told, tmp_path):
    (tmp_path / "tuning-abc-2.json").write_text(json.dumps(TABLE))
    found = told()
    lines = str(found).splitlines()
    assert lines[1] == (
        "  shm                0.0 %         0 B  at 4.97 GB/s"
        " (measured: 4 MiB over it alone in 844.0 us, shares core)"
    )
    assert [lines[0], *lines[2:]] == [TEXT.splitlines()[0], *TEXT.splitlines()[2:]]
    measured = [(link["measured_bytes"], link["measured_ns"]) for link in found.json["links"]]
    assert measured == [(4 << 20, 844041.0), (None, None)]
    assert found.json["links"][0]["source"] == "assumed"  # rate_gbps is


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps(TABLE | {"rates": [3]}), json.dumps(TABLE | {"links": []})]
)
def test_a_file_that_is_none_is_none(told, tmp_path, text):
    (tmp_path / "tuning-abc-2.json").write_text(text)
    assert str(told()) == TEXT


def test_tuning_that_is_off_is_not_asked(told, tmp_path, monkeypatch):
    (tmp_path / "tuning-abc-2.json").write_text(json.dumps(TABLE))
    monkeypatch.setenv("BRAID_TUNE", "off")
    assert str(told()) == TEXT


def test_the_folder_is_tunings(monkeypatch, tmp_path):
    monkeypatch.delenv("BRAID_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert explain.cache_folder() == tmp_path / "braid"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert explain.cache_folder() == tmp_path / ".cache/braid"

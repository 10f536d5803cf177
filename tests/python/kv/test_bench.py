"""`braid bench kv` and `weights`: every byte is compared, and a record says what was found."""

import json
import subprocess
import sys

import pytest

from braid.bench.engine.contestants import Case
from braid.bench.kv.contestants import Requests, Servers


@pytest.mark.parametrize(
    ("line", "kind", "figures"),
    [
        (["kv", "--ways", "local", "--sizes", "64KiB", "--total", "1MiB", "--layer-ms", "1"],
         "kv-pages", {"16 pages of 64 KiB local, push against the engine alone",
                      "layers of 1 ms, 16 pages of 64 KiB local, exposed"}),
        (["weights", "--ways", "local", "--trainers", "2", "--workers", "2", "--total", "4MiB",
          "--tensors", "4"],
         "weights", {"4 MiB, 4 tensors, 2 to 2, local, update"}),
    ],
)  # fmt: skip
def test_records_of_a_run(tmp_path, line, kind, figures):
    path = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "bench", *line, "--samples", "2", "--json", path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    assert record["kind"] == kind
    assert figures <= record["figures"].keys()
    assert all(not series.get("wrong_bytes") for series in record["series"])


@pytest.mark.parametrize(("also", "words"), [([], ""), (["--apart"], ", layers apart")])
def test_the_bench_of_one_gpu_tried_without_one(tmp_path, also, words):
    pytest.importorskip("torch")
    path = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, "-m", "braid.bench.kv.gpu", "--device", "cpu", "--layers", "4", "--tokens",
         "33", "--several", "17x3", "--seconds", "2", "--json", path, *also],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    groups = {
        f"33 tokens, keys and values together, 12 pages of 64 KiB{words}",
        f"33 tokens, keys and values apart, 24 pages of 32 KiB{words}",
        f"17 tokens, 3 at once, keys and values together, 8 pages of 64 KiB{words}",
    }
    steps = {f"33 tokens, braid.kv, {way}, step by step" for way in ("push", "pull")}
    assert {series["group"] for series in record["series"]} == groups | steps
    assert len([series for series in record["series"] if series["group"] in groups]) == 9
    assert len(record["figures"]) == 6
    assert all(not series.get("wrong_bytes") for series in record["series"])


def test_what_one_gpu_has_no_room_for_is_left_out(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, "-m", "braid.bench.kv.gpu", "--device", "cpu", "--layers", "4", "--tokens",
         "17,900000000", "--several", "17x90000000", "--seconds", "1", "--json", path],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    assert {series["group"].partition(",")[0] for series in record["series"]} == {"17 tokens"}
    for left_out in ("900000000 tokens: ", "17 tokens, 90000000 at once: "):
        assert left_out in record["settings"]["left_out"]
        assert left_out in done.stderr


def test_bytes_of_a_request_that_never_came_are_wrong(monkeypatch):
    pytest.importorskip("torch")
    case = Case("several", 4096, 8, 3)
    servers = Servers("local", 3 * 8 * 4096, module="gpu_peer", also=("4", "cpu", "0"))
    try:
        requests = Requests(servers, is_push=True)
        assert requests.check(case, 1) == 0
        get = servers.get
        monkeypatch.setattr(
            servers, "get", lambda case, number, **how: get(case, number - 1, **how)
        )
        assert requests.check(case, 2) == 8 * 4096
    finally:
        servers.close()

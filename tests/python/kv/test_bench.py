"""`braid bench kv` and `weights`: every byte is compared, and a record says what was found."""

import json
import subprocess
import sys

import pytest


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
         "33", "--seconds", "2", "--json", path, *also],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    groups = {f"33 tokens, keys and values together, 12 pages of 64 KiB{words}",
              f"33 tokens, keys and values apart, 24 pages of 32 KiB{words}"}  # fmt: skip
    assert {series["group"] for series in record["series"]} == groups
    assert len(record["series"]) == 6
    assert all(not series.get("wrong_bytes") for series in record["series"])

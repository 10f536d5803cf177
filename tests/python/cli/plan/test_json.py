"""JSON of `braid plan`: fields and values that programs rely on, computed by hand."""

import json
import shlex
import sys

import pytest

from braid.cli import main

LINE_KEYS = ["name", "label", "value", "unit", "basis", "origin"]


@pytest.fixture
def asked(monkeypatch, capsys):
    """The document of a command line."""

    def run(line):
        monkeypatch.setattr(sys, "argv", ["braid", "plan", *shlex.split(line), "--json"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code in (0, None)
        return json.loads(capsys.readouterr().out)

    return run


def values(document):
    assert all(list(line) == LINE_KEYS for line in document["results"])
    return {line["name"]: line["value"] for line in document["results"]}


def test_transfer(asked):
    document = asked("transfer --params 80B --element-bytes 4 --gbit 200")
    assert document["command"] == "transfer"
    assert document["inputs"] == {"bytes": 320e9, "gbit": 200, "count": 1, "hardware": None}
    assert values(document) == {
        "bytes": 320e9, "gbit": 2560, "rate_gbps": 25, "least_s": 12.8, "likely_s": 16,
    }  # fmt: skip
    bases = {line["name"]: line["basis"] for line in document["results"]}
    assert bases == {
        "bytes": "exact", "gbit": "exact", "rate_gbps": "specified", "least_s": "specified",
        "likely_s": "assumed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "nbytes"),
    [
        ("--size 64MiB", 64 << 20),
        ("--size 64MB", 64e6),
        ("--params 1.5B", 3e9),
        ("--params 2e9 --element-bytes 0.5", 1e9),
    ],
)
def test_what_is_sent(asked, line, nbytes):
    assert values(asked(f"transfer {line} --gbit 8"))["bytes"] == nbytes
    assert values(asked(f"transfer {line} --gbit 4 --count 2"))["least_s"] == nbytes / 1e9


def test_a_model_s_weights_over_a_path(asked):
    document = asked("transfer --model llama3-8b --hw h200-nvlink4")
    found = values(document)
    assert found["bytes"] == pytest.approx(2 * 8.03e9, rel=0.001)
    assert found["rate_gbps"] == 450
    assert document["inputs"]["hardware"] == "h200-nvlink4"


def test_memory(asked):
    found = values(asked("memory --params 10B --hw h200-nvlink4"))
    assert found["memory_bytes"] == 180e9
    assert found["gpu_bytes"] == 141e9
    assert found["least_gpus"] == 2


def test_mfu(asked):
    line = "mfu --hw h100-nvlink4 --gpus 8 --params 8B --seq 8192 --batch 8 --step-ms 1000"
    found = values(asked(line))
    tflop = 6 * 8e9 * 8192 * 8 / 8 / 1e12
    assert found["tflop_per_gpu"] == pytest.approx(tflop)
    assert found["achieved_tflops"] == pytest.approx(tflop)
    assert found["mfu"] == pytest.approx(tflop / found["peak_tflops"])
    again = values(asked(f"{line} --recompute"))
    assert again["tflop_per_gpu"] == pytest.approx(tflop * 4 / 3)
    fast = asked(line.replace("--step-ms 1000", "--step-ms 1"))
    assert fast["warnings"] == ["more than the peak: check the peak, the time and the batch"]


@pytest.mark.parametrize(
    ("mode", "step_s"), [("serial", 1.06), ("perfect", 0.64), ("per-layer", 0.42 / 8 + 0.64)]
)
def test_timeline(asked, mode, step_s):
    document = asked(f"timeline --compute-ms 420 --comm-ms 640 --mode {mode} --layers 8")
    assert document["command"] == "timeline"
    assert step_s in [pytest.approx(value) for value in values(document).values()]


def test_explain(asked):
    document = asked("explain busbw")
    assert document["schema"] == "braid.plan.explain/1"
    (term,) = document["terms"]
    assert list(term) == ["word", "meaning", "section"]
    every = asked("explain")["terms"]
    assert term in every
    assert len({each["word"] for each in every}) == len(every) > 20


@pytest.mark.parametrize("option", ["", "--links", "--networks"])
def test_tables_have_rows_with_sources(asked, option):
    rows = asked(f"hw {option}")["rows"]
    assert len({row["name"] for row in rows}) == len(rows) > 2
    for row in rows:
        for cell in row["cells"].values():
            assert list(cell) == ["value", "unit", "basis", "origin"]


def test_several_nodes(asked):
    line = "ddp --params 2B --gpus 8 --nodes 4 --hw h200-nvlink4 --nic-gbit 400"
    found = values(asked(f"{line} --nic-per gpu"))
    assert found["wire_bytes"] == pytest.approx(2 * 31 / 32 * 8e9)
    # Outside, an eighth of 8 GB at 50 GB/s: 0.03 s. Inside, 14 GB at 450 GB/s: a little longer.
    assert found["least_s"] == pytest.approx(14 / 450)
    # One NIC for eight GPUs leaves each 6.25 GB/s.
    shared = values(asked(f"{line} --nic-per node"))
    assert shared["least_s"] == pytest.approx(2 * 3 / 4 * 1 / 6.25)

"""docs/recipes.md says what the recipes' records say."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from braid.record.parts import Host
from braid.record.probe import SCHEMA, ProbeRecord, Series, times_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "make_recipe_docs", ROOT / "scripts/make_recipe_docs.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "scripts"))  # it imports others that lie there
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "scripts"))
    return module


def record(kind, device, figures, *series):
    return ProbeRecord(
        SCHEMA, kind, "braid run", "2026-01-01", "abcdef0123", False, device, 2,
        Host("cpu", 2, 8.0, "6.1"), {}, {}, {}, list(series), figures,
    )  # fmt: skip


STEP = [
    Series("step", who, 0, times_of([us]), None) for who, us in (("braid", 20e3), ("nccl", 30e3))
]
FSDP2 = record(
    "fsdp2-step",
    "2 x NVIDIA H200",
    {
        "parameters": 1.21e9,
        "first loss": 5.6,
        "braid: last loss": 2.5,
        "largest gap of a loss": 0.001,
        "steps": 21.0,
        "steps with losses equal to the bit on all ranks": 4.0,
    },
    *STEP,
)


def test_the_page_is_current(script):
    text = script.PAGE.read_text()
    assert script.page(text, ROOT / "records") == text, "run scripts/make_recipe_docs.py"


def test_times_ratios_and_checks_are_told(script, tmp_path):
    FSDP2.save(tmp_path / "fsdp2_2.json")
    claims = {"prefill: both agree": 1.0, "decode: both agree": 0.0, "x: largest gap": 0.5}
    record("tp-inference", "2 x NVIDIA H200", {**claims, "step: nccl / braid": 1.5}, *STEP).save(
        tmp_path / "tp_2.json"
    )
    page = script.page(
        "# Recipes\n" + script.BEGIN + "yesterday\n" + script.END + "rest\n", tmp_path
    )
    assert page.startswith("# Recipes\n")
    assert page.endswith("rest\n")
    assert "yesterday" not in page
    line = "| FSDP2, 2 x NVIDIA H200: step | 20.00 | 30.00 (nccl) | 1.50x, faster | n=1 | [fsdp2_2"
    assert line in page
    assert "equal to the bit in 4 of 21 steps" in page
    assert "of commit abcdef0: 0 wrong bytes of collectives, 1.21e9 parameters" in page
    assert "1 of 2 claims about equal bits hold" in page


def test_programs_of_others_are_told_with_what_was_taken_over(script, tmp_path):
    zero, server = "DeepSpeed, ZeRO 2", "vLLM's NCCL layer"
    times = [replace(one, group=f"{zero}: step") for one in STEP]
    ended = Series(server, "braid", 0, None, None, verdict="hang", note="did not end")
    apps = record("apps", "2 x NVIDIA H200", {}, *times, ended)
    figures = {
        f"{zero}: wrong": 0.0,
        f"{zero}: steps": 12.0,
        f"{zero}: steps with losses equal to the bit on all ranks": 12.0,
        f"{server}: wrong": 1.0,
        f"{server}: results": 70.0,
        f"{server}: wrong results": 3.0,
    }
    settings = {
        zero: "DeepSpeed 0.19.8, ZeRO 2",
        f"{zero}: taken over": "all_reduce 40",
        f"{zero}: handed on": "send 1",
        f"{server}: wrong": "braid: 3 wrong results",
    }
    replace(apps, figures=figures, settings=settings).save(tmp_path / "apps_2.json")
    page = script.page(script.BEGIN + script.END, tmp_path)
    assert (
        "ZeRO 2: step | 20.00 | 30.00 (nccl) | 1.50x, faster | n=1, one after the other, NCCL"
        in page
    )
    assert (
        "DeepSpeed 0.19.8, ZeRO 2: nothing wrong; losses equal to the bit in 12 of 12 steps; "
        "taken over by rank 0: all_reduce 40; handed on: send 1.\n"
    ) in page
    assert "layer: braid: 3 wrong results; 3 of 70 results wrong; taken over by rank 0: not" in page


def test_records_between_cpus_and_of_other_kinds_are_no_figures(script, tmp_path):
    replace(FSDP2, device="").save(tmp_path / "a.json")
    replace(FSDP2, kind="host").save(tmp_path / "b.json")
    assert script.table(list(script.found(tmp_path))) == script.NONE


def test_noise_changes_and_how_it_was_measured_are_told(script, tmp_path):
    noisy = [
        Series("step", who, 0, times_of(us), None)
        for who, us in (("braid", [20e3, 30e3, 20e3]), ("nccl", [19.95e3, 19.9e3, 20e3]))
    ]
    replace(FSDP2, dirty=True, series=noisy).save(tmp_path / "fsdp2_2.json")
    page = script.page(script.BEGIN + script.END, tmp_path)
    assert "| 20.00~ | 19.95 (nccl) | 0.997x~ [0.66, 1.00], unclear | n=3 | [fsdp2_2.json]" in page
    assert "(../records/fsdp2_2.json) (+changes) |" in page
    assert "of commit abcdef0, with changes: 0 wrong" in page


def test_psum_says_where_it_is_slower(script, tmp_path):
    sizes = (("64 KiB", 120, 100), ("256 MiB", 100, 125))
    series = [
        Series(f"JAX: psum {size}", who, 0, times_of([us]), None)
        for size, ours, theirs in sizes
        for who, us in (("nccl", theirs), ("braid", ours))
    ]
    record("apps", "2 x NVIDIA H200", {}, *series).save(tmp_path / script.JAX)
    page = script.page(script.JAX_BEGIN + "old\n" + script.JAX_END, tmp_path)
    assert "**slower** at 64 KiB (20 % longer, 0.83x); **faster** at 256 MiB (20 % shorter" in page
    assert "one after the other" in page

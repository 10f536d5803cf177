"""The page: what is on it, and that it needs nothing from outside."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from braid.cli import app
from braid.errors import InvalidArgument
from braid.report.page import page
from braid.report.plan import Asked, plans
from braid.report.runs import load
from braid.topo.document import document
from braid.topo.read import load as load_machine

REPOSITORY = Path(__file__).parents[3]
RECORDS = REPOSITORY / "records"
FIXTURES = REPOSITORY / "tests/python/fixtures/topo"


@pytest.fixture(scope="module")
def text():
    """Two H200 with two records of theirs."""
    whole = document(load_machine(FIXTURES / "version_1.json"))
    return page(whole, [load(RECORDS / f"gpu_{size}_2.json") for size in ("large", "small")])


def test_parts(text):
    for part in ("all-gather: bus bandwidth", "NVLink 4, specified: 450", "Provenance", "Matrix"):
        assert part in text
    assert text.count('class="chart"') == 10
    assert "gpu_large_2.json" in text
    assert "braid, in a graph" in text


def test_nothing_from_outside(text):
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|<img|@import|url\(|src=", text)
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">']


def test_every_anchor_leads_somewhere(text):
    targets = re.findall(r'href="#([^"]*)"', text)
    assert targets
    assert all(f'id="{target}"' in text for target in targets)


def test_shares_and_bars():
    whole = document(load_machine(FIXTURES / "laptop.xml"))
    paced = page(whole, [load(RECORDS / "paced_421.json")])
    assert "staged 29%" in paced
    assert "links paced" in paced
    assert 'class="chart"' not in paced  # one size has no curve


def test_machine_alone():
    text = page(document(load_machine(FIXTURES / "h100_x8.xml")), [])
    assert "NVSwitch" in text
    assert "Provenance" not in text


def test_plan_for_a_model():
    """From each library's measured all-reduces; beside what the links are specified to carry."""
    whole = document(load_machine(FIXTURES / "version_1.json"))
    found = plans(Asked("llama3-70b"), whole, [RECORDS / "gpu_large_2.json"])
    assert [each.title.split("'")[0] for each in found] == ["with braid", "with nccl"]
    ours, theirs = (each.answer.value("nvlink.communication_s") for each in found)
    assert ours < theirs == pytest.approx(0.0394, rel=0.01)
    assert found[0].answer.value("nvlink.part_of_rate") == pytest.approx(0.684, rel=0.01)
    text = page(whole, [], found)
    assert 'id="plan"' in text
    assert "160 x 218.0 us" in text


def test_plan_from_the_links_alone():
    whole = document(load_machine(FIXTURES / "h100_x8.xml"))
    (only,) = plans(Asked("llama3-8b", ranks=4, peak_tflops=989.0), whole, [])
    assert only.title == "from the links"
    assert only.answer.inputs["tp"] == 4
    nameless = [replace(gpu, model="") for gpu in whole.machine.gpus]
    unknown = document(replace(whole.machine, gpus=nameless))
    with pytest.raises(InvalidArgument, match="peak is not known"):
        plans(Asked("llama3-8b"), unknown, [])


def run(monkeypatch, *arguments):
    """`braid report` in this process: the exit code."""
    monkeypatch.setattr(sys, "argv", ["braid", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        app.main()
    return caught.value.code or 0


def test_command(monkeypatch, tmp_path, capsys):
    out = tmp_path / "report.html"
    machine = ("--from", FIXTURES / "version_1.json")
    model = ("--model", "llama3-70b")
    assert run(monkeypatch, RECORDS / "gpu_large_2.json", *machine, *model, "--out", out) == 0
    assert "llama3-70b, TP 2" in out.read_text()
    assert "62%" in out.read_text()  # measured by specified, in the table of rates
    assert str(out) in capsys.readouterr().out


def test_a_record_of_gpus_is_read_where_there_are_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("braid.topo.read.live.read", lambda: load_machine(FIXTURES / "laptop.xml"))
    out = tmp_path / "report.html"
    assert run(monkeypatch, RECORDS / "gpu_large_2.json", "--out", out) == 0
    assert "all-gather: bus bandwidth" in out.read_text()
    err = capsys.readouterr().err
    assert "a record of NVIDIA H200, and this machine has no GPU: it marks no link" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((RECORDS / "tuning.json",), "cannot be drawn"),
        (
            (RECORDS / "gpu_large_2.json", "--from", FIXTURES / "h800_x8.txt"),
            "a record of NVIDIA H200",
        ),
        (
            (RECORDS / "gpu_large_2.json", "--from", FIXTURES / "laptop.xml"),
            "the machine has no GPU",
        ),
        (("--from", "/nowhere"), "No such file"),
        (("--from", FIXTURES / "version_1.json", "--model", "llama9"), "mean llama3-8b?"),
        (("--from", FIXTURES / "laptop.xml", "--model", "llama3-8b"), "without GPUs"),
        (("--from", FIXTURES / "laptop.xml", "--out", "/proc/x/report.html"), "/proc/x"),
    ],
)
def test_refused(monkeypatch, capsys, arguments, said):
    assert run(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1

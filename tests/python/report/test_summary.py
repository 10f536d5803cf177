"""What a report says in words before it shows anything."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from braid.report import summary, table
from braid.report.figures import figures, groups
from braid.report.page import page
from braid.report.plan import Asked, plans, section
from braid.report.runs import Curve, Point, Run, Share, load
from braid.topo.document import document
from braid.topo.read import load as load_machine

REPOSITORY = Path(__file__).parents[3]
RECORDS = REPOSITORY / "records"
FIXTURES = REPOSITORY / "tests/python/fixtures/topo"
STEADY = tuple(1 + 0.001 * i for i in range(9))


def curve(who, op="all_reduce", mode="", samples=STEADY, **times_us):
    """times_us: by size, as b1024=3.0."""
    points = [
        Point(int(name[1:]), 1.0, us, samples_us=tuple(us * each for each in samples))
        for name, us in times_us.items()
    ]
    return Curve(op, who, mode, points)


def run(*curves, title="2 x NVIDIA H200"):
    return Run("r.json", title, "NVIDIA H200", list(curves), [], {})


def told(*runs, whole=None, probed=(), found=()):
    whole = whole or document(load_machine(FIXTURES / "version_1.json"))
    text = "\n".join(summary.section(whole, groups(runs), probed, found))
    return re.findall(r"<li[^>]*>(.*?)</li>", text)


def test_who_was_faster_in_how_many_cases_and_where():
    ours = [curve("braid", b1024=10.0, b4096=100.0), curve("braid", mode="graph", b1024=5.0)]
    theirs = [curve("nccl", b1024=10.1, b4096=90.0), curve("nccl", mode="graph", b1024=15.0)]
    (said,) = [one for one in told(run(*ours, *theirs)) if "against" in one]
    assert said == (
        "2 x NVIDIA H200: braid against nccl in 3 cases: 1 faster, 1 equal, 1 slower; from 0.90x"
        " (all-reduce 4 KiB) to 3.00x (all-reduce 1 KiB in a graph). The largest: all-reduce 4 KiB"
        " 0.90x [0.90, 0.90]"
    )


def test_noise_is_neither():
    noisy = (0.5, 1.0, 1.9, 0.6, 1.5)
    ours, theirs = curve("braid", b64=10.0, samples=noisy), curve("gloo", b64=12.0, samples=noisy)
    (said,) = [one for one in told(run(ours, theirs)) if "against" in one]
    assert "against gloo in 1 cases: 1 unclear. The largest: all-reduce 64 B 1.20x [" in said


def test_only_what_one_record_has_of_both_is_compared():
    """Times of different runs are never held against each other."""
    apart = told(run(curve("braid", b64=1.0)), run(curve("nccl", b64=2.0)))
    assert "2 x NVIDIA H200: braid and nccl have no case in common" in apart
    assert summary.cases([run(curve("braid", b64=1.0), curve("nccl", b128=2.0))], "nccl") == []


def test_without_nccl_another_stands_beside_braid():
    """But none of braid's own variants."""
    paced = run(
        curve("braid", b64=1.0), curve("braid nvlink", b64=2.0), curve("shm alone", b64=3.0)
    )
    assert any("braid against shm alone in 1 cases" in one for one in told(paced))


def test_the_machine_and_its_first_warning():
    first, second, *_ = told()
    assert first == "2 x NVIDIA H200: NVLink 4, 450 GB/s specified from each GPU in one direction"
    assert second == "no warnings"
    warned = document(load_machine(RECORDS / "topo_h200_2.json"))
    assert told(whole=warned)[1].startswith("<b>warning</b> a collective between machines")
    bare = told(whole=document(load_machine(FIXTURES / "laptop.xml")))
    assert bare[0] == "no GPU: CPUs alone"


def test_cases_that_failed_are_counted():
    probed = [load(RECORDS / f"{name}.json") for name in ("p2p_2", "host_2")]
    assert told(probed=probed)[-1].endswith("cases: none was wrong")
    first = replace(probed[0].record.series[0], wrong_bytes=3)
    worse = replace(probed[0].record, series=[first, *probed[0].record.series[1:]])
    said = told(probed=[replace(probed[0], record=worse), probed[1]])[-1]
    assert said.startswith("2 records of pairs, links and sequences of calls, ")
    assert said.endswith(": 1 WRONG OR FAILED")


def test_a_plan_is_one_table_with_a_column_for_each_library():
    whole = document(load_machine(FIXTURES / "version_1.json"))
    found = plans(Asked("llama3-70b"), whole, [RECORDS / "gpu_large_2.json"])
    text = "\n".join(section(found))
    assert text.count("<table") == 1
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", text)
    assert heads[1:3] == ["with braid&#x27;s measured times", "with nccl&#x27;s measured times"]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in text.split("<tr>")[2:]]
    assert all(len(row) == 5 for row in rows)
    (every,) = [row for row in rows if row[0] == "nvlink: all of them"]
    assert every[1] != every[2]
    assert any("communication takes " in one and "nccl" in one for one in told(found=found))


def test_a_single_size_beside_curves_is_no_dot():
    """It stays in the table."""
    drawn = run(
        curve("braid", b64=1.0, b128=2.0), curve("nccl", b64=2.0, b128=3.0),
        curve("braid host", b128=9.0),
    )  # fmt: skip
    text = "\n".join(figures(groups([drawn])[0], document(load_machine(FIXTURES / "laptop.xml"))))
    pictures, _, numbers = text.partition("<details>")
    assert "braid host" not in pictures
    assert "braid host" in numbers


@pytest.mark.parametrize(("host", "is_below"), [(0.05, True), (0.4, False)])
def test_a_part_too_small_for_its_words_has_them_below(host, is_below):
    share = Share("all_gather", 64 << 20, {"nvlink": 1 - host, "host": host})
    shown = replace(run(curve("braid", b64=1.0, b128=2.0)), shares=[share])
    text = "\n".join(figures(groups([shown])[0], document(load_machine(FIXTURES / "laptop.xml"))))
    below = f'<div class="fix">nvlink {1 - host:.1%}, host {host:.1%}</div>'
    assert (below in text) == is_below
    assert (f">host {host:.0%}</span>" in text) != is_below


def test_cells_of_a_stacked_table_know_their_heads():
    lines = "".join(table.stacked(["what", "GB/s", ""], [["a<b", "4", "x"]], range(1, 2)))
    assert "<td>a&lt;b</td>" in lines
    assert '<td class="n" data-h="GB/s">4</td>' in lines
    assert "<td>x</td>" in lines


def test_a_machine_whose_source_tells_no_model_takes_the_records(tmp_path, monkeypatch):
    from braid.cli import app

    machine = tmp_path / "m.txt"
    machine.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")
    out = tmp_path / "r.html"
    line = ["braid", "report", str(RECORDS / "flexlink_2.json"), "--from", str(machine)]
    monkeypatch.setattr("sys.argv", [*line, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert not ended.value.code
    assert re.search(r"<h1>[^<]*2 x NVIDIA H200", out.read_text())


def test_the_page_has_it_first():
    text = page(document(load_machine(FIXTURES / "version_1.json")), [])
    assert text.index('id="summary"') < text.index("<nav>") < text.index('id="machine"')

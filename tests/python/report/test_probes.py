"""Records of braid bench KIND on the page: matrices, bars, remarks, numbers."""

import re
from pathlib import Path

import pytest

from braid.record.parts import Host
from braid.record.probe import SCHEMA, ProbeRecord, Series, times_of
from braid.report import probes
from braid.report.page import page
from braid.report.plan import Asked, plans
from braid.report.runs import load
from braid.topo.document import document
from braid.topo.read import load as load_machine

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "tests/python/fixtures/topo"


def record(kind, *series, device="2 x NVIDIA H200", **more):
    host = Host("AMD EPYC", 2, 23.5, "6.1")
    return ProbeRecord(
        SCHEMA, kind, f"braid bench {kind}", "2026-11-21", "abc", False, device, 0, host,
        {"python": "3.11"}, {"bytes": "1024"}, {}, list(series), **more,
    )  # fmt: skip


def case(group, name, us, gbps=None, **more):
    """p5, p50 and p95 are about 90, 100 and 110 % of us."""
    return Series(group, name, 1024, times_of([us * part for part in (0.9, 1, 1.1)]), gbps, **more)


def pair(a, b, gbps, group="one way", **more):
    return case(group, f"gpu{a}>gpu{b}", 10.0, gbps, start=f"gpu{a}", end=f"gpu{b}", **more)


def text(kind, *series, **more):
    return "\n".join(probes.section(probes.of("x.json", record(kind, *series, **more))))


def test_pairs_are_a_matrix_from_row_to_column():
    drawn = text("p2p", pair(0, 1, 390.0), pair(1, 0, 195.0), pair(0, 10, 40.0))
    rows = re.findall(r"<tr>(.*?)</tr>", drawn.partition("<details>")[0])
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in rows]
    assert cells == [
        ["", "gpu0", "gpu1", "gpu10"],
        ["gpu0", "", "390", "40"],
        ["gpu1", "195", "", ""],
        ["gpu10", "", "", ""],
    ]
    assert re.findall(r'class="(h\d)"[^>]*>([\d.]+)', drawn) == [
        ("h4", "390"), ("h0", "40"), ("h2", "195"),
    ]  # fmt: skip


def test_a_matrix_for_each_way():
    series = [pair(0, 1, 390.0), pair(0, 1, 700.0, "both ways")]
    latency = case("latency", "gpu0>gpu1", 2.5, start="gpu0", end="gpu1")
    drawn = text("p2p", *series, latency)
    found = re.findall("<figcaption>([^<]*)<", drawn)
    assert found == ["one way, 1 KiB, GB/s", "both ways, 1 KiB, GB/s", "latency, 1 KiB, us"]
    assert ">2.5<" in drawn


def test_pairs_that_failed_say_so():
    hung = Series("one way", "gpu0>gpu1", 1024, None, None, verdict="hang", note="30 s",
                  start="gpu0", end="gpu1")  # fmt: skip
    drawn = text("p2p", hung, pair(1, 0, 300.0, verdict="slow"))
    assert '<td class="bad" title="30 s">hang</td>' in drawn
    assert ">300-<" in drawn
    assert "one way gpu0&gt;gpu1: hang: 30 s" in drawn


def test_bars_are_as_long_as_bandwidths_with_their_spread():
    drawn = text("host", case("d2h 1 MiB", "gpu0", 100.0, 50.0), case("h2d", "gpu0", 50.0, 25.0))
    assert "GB/s; lines from p5 to p95" in drawn
    widths = [float(x) for x in re.findall(r'class="b" style="width:([\d.]+)%', drawn)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)
    lines = re.findall(r'class="w" style="left:([\d.]+)%;width:([\d.]+)%', drawn)
    for (left, width), bar in zip(lines, widths, strict=True):
        assert float(left) < bar < float(left) + float(width) <= 100.05


def test_bars_of_times_where_something_moves_nothing():
    series = [case("call alone", "braid", 30.0, 9.0), case("work alone", "braid", 60.0)]
    drawn = text("overlap", *series, figures={"braid: part hidden": 0.75})
    assert "Time, us; lines from p5 to p95" in drawn
    widths = [float(x) for x in re.findall(r'class="b" style="width:([\d.]+)%', drawn)]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.1)
    assert "<li>braid: part hidden: 0.75</li>" in drawn


def test_figures_say_what_they_count():
    drawn = text("engine", case("one piece", "d2h", 9.0, 5.0), figures={"pages of 4 KiB": 2.5})
    assert "pages of 4 KiB: 2.5 times as long as in one piece" in drawn


def test_errors_are_percents_and_long_times_are_written_out():
    figures = {"braid: block measured, us": 88265.7, "braid: error": -0.0186}
    drawn = text("tp-block", case("block", "braid", 88265.7), figures=figures)
    assert "<li>braid: block measured, us: 88,266</li>" in drawn
    assert "<li>braid: error: -1.9%</li>" in drawn


def test_every_number_is_in_the_table():
    drawn = text("latency", case("1 x 64 MiB", "nccl", 100.0, 157.1, wire_gbps=120.25))
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", drawn.partition("<details>")[2])
    assert cells == [
        "1 x 64 MiB",
        "nccl",
        "1 KiB",
        "100.0~",
        "109.0",
        "109.8",
        "157.1",
        "120.2",
        "",
    ]
    assert "<li>~ noisy: the samples vary by more than 5%" in drawn


def test_quiet_samples_have_no_mark():
    quiet = Series("one way", "d2h", 1024, times_of([100.0, 101.0, 99.0]), 50.0)
    assert "~" not in text("host", quiet)


def test_names_from_a_record_cannot_break_the_page():
    drawn = text("host", case("<script>", '"><script>', 10.0, 1.0))
    assert "<script" not in drawn


def test_page_with_every_kind():
    whole = document(load_machine(FIXTURES / "version_1.json"))
    kinds = ("p2p", "host", "interference", "engine", "latency", "overlap", "replay")
    shown = [probes.of(f"{kind}.json", record(kind, pair(0, 1, 9.0))) for kind in kinds]
    drawn = page(whole, shown)
    for i in range(len(kinds)):
        assert f'id="probe{i}"' in drawn
        assert f'href="#probe{i}"' in drawn
    assert "<h2>Pairs: 2 x NVIDIA H200</h2>" in drawn
    assert "<caption>replay.json</caption>" in drawn
    assert "braid bench overlap" in drawn.partition("Provenance")[2]


def test_saved_record_and_a_plan_beside_it():
    """A record of copies plans nothing, and must not stop a plan."""
    path = REPOSITORY / "records/bench_host.json"
    shown = load(path)
    assert isinstance(shown, probes.Probed)
    assert shown.title == "To and from the host: AMD EPYC"
    whole = document(load_machine(FIXTURES / "version_1.json"))
    (plan,) = plans(Asked("llama3-70b"), whole, [path])
    assert plan.title == "from the links"

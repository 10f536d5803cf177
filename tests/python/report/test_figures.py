"""Figures of a report: who gets which look, what theory is drawn, bars, shares, numbers."""

import itertools
import re
from dataclasses import replace

import pytest

from braid.report import chart
from braid.report.figures import figures, groups
from braid.report.runs import Curve, Point, Run, Share
from braid.topo.document import document
from braid.topo.facts import SWITCH, Gpu, GpuLink, Machine, Source


def machine(model="NVIDIA H200", count=18):
    return document(
        Machine(
            Source("live"),
            gpus=[Gpu("GPU0", model), Gpu("GPU1", model)],
            gpu_links=[GpuLink(f"GPU{i}", SWITCH, "nvlink", count) for i in range(2)],
        )
    )


def nothing():
    return document(Machine(Source("sysfs")))


def curve(who, *points, op="all_gather", mode=""):
    """Points are (bytes, GB/s, us)."""
    return Curve(op, who, mode, [Point(*point) for point in points])


KEY = r'class="curve (c\d)" d="M0 6H32"/><[^>]*>(?:</\w+>)?</svg>(\w+)<'
LINE = ((1024, 100.0, 2.0), (4096, 300.0, 3.0))


def run(*curves, shares=(), title="2 x NVIDIA H200", gpu="NVIDIA H200"):
    return Run("r.json", title, gpu, list(curves), list(shares), {})


def text(*runs, whole=None):
    (group,) = groups(runs)
    return "\n".join(figures(group, whole or nothing()))


def test_noisy_times_are_counted_and_marked():
    drawn = text(
        run(
            Curve(
                "all_gather", "nccl", "", [Point(1024, 1.0, 2.0, noisy="~"), Point(2048, 2.0, 3.0)]
            )
        )
    )
    assert "1 of 2 times are noisy: the samples vary by more than 5%" in drawn
    assert ">2.0~<" in drawn
    assert ">3.0<" in drawn
    assert "noisy" not in text(run(curve("nccl", *LINE)))


def test_runs_of_one_title_are_one_group():
    runs = [run(curve("a"), title="x"), run(curve("b"), title="y"), run(curve("c"), title="x")]
    found = groups(runs)
    assert [(group.title, [c.who for c in group.curves]) for group in found] == [
        ("x", ["a", "c"]),
        ("y", ["b"]),
    ]


def test_braid_and_its_rivals_keep_their_colours():
    """Whatever order records have them in; others follow as they come."""
    for order in (("nccl", "symm", "braid"), ("symm", "braid", "nccl")):
        key = text(run(*(curve(who, *LINE) for who in order)))
        found = re.findall(KEY, key)
        assert found == [("c0", "braid"), ("c1", "nccl"), ("c2", "symm")]


def test_captured_calls_are_dashed_in_the_same_colour():
    key = text(run(curve("nccl", *LINE), curve("nccl", *LINE, mode="graph")))
    assert re.findall(r'class="(curve c0[^"]*)" d="M0 6H32"/>.*?</svg>([^<]*)<', key) == [
        ("curve c0", "nccl"),
        ("curve c0 graph", "nccl, in a graph"),
    ]


def test_no_two_contestants_look_alike():
    """Twelve lines of one record had six colours."""
    names = [f"x{i}" for i in range(30)]
    key = text(run(*(curve(n, *LINE) for n in names)))
    lines = re.findall(r'<li>.*?class="curve c(\d+)" d="M0 6H32"/>(<.*?)</svg>(\w+)<', key)
    assert [int(colour) for colour, _, _ in lines] == [i % 12 for i in range(30)]
    shapes = [re.sub(r"c\d+", "", shape) for _, shape, _ in lines]
    assert len(set(shapes)) == 4
    looks = list(zip([colour for colour, _, _ in lines], shapes, strict=True))
    assert len(set(looks)) == 30
    assert all(a[1] != b[1] for a, b in itertools.pairwise(looks))


def test_lines_of_several_records_name_theirs():
    one, two = (replace(run(curve("nccl", *LINE)), path=f"{name}.json") for name in "ab")
    both = text(one, two)
    assert both.count("(a.json)") == both.count("(b.json)") == 4
    assert "a.json" not in text(one)


@pytest.mark.parametrize(
    ("whole", "gpu", "level"),
    [
        (machine(), "NVIDIA H200", "NVLink 4, specified: 450"),
        (machine(count=10), "NVIDIA H200", "NVLink 4, specified: 250"),
        (nothing(), "NVIDIA H200", "NVLink 4, specified: 450"),
        (nothing(), "NVIDIA A100-SXM4-80GB", "NVLink 3, specified: 300"),
        (nothing(), "AMD Instinct MI300X", "xGMI, specified: 448"),
        (nothing(), "NVIDIA L40S", None),
        (machine(), "", None),
    ],
)
def test_what_the_links_carry_in_theory(whole, gpu, level):
    drawn = text(run(curve("braid", *LINE), gpu=gpu), whole=whole)
    found = re.findall(r"<text [^>]*>([^<]*specified[^<]*)</text>", drawn)
    assert found == ([level] if level else [])


def test_a_chart_of_bandwidths_and_one_of_times_for_every_operation():
    drawn = text(run(curve("braid", *LINE), curve("braid", *LINE, op="all_reduce")))
    captions = re.findall(r"<figcaption>([^<]*)<", drawn)
    assert captions == [
        "all-gather: bus bandwidth, GB/s", "all-gather: time, us",
        "all-reduce: bus bandwidth, GB/s", "all-reduce: time, us",
    ]  # fmt: skip


def test_one_size_is_bars_as_long_as_their_bandwidth():
    drawn = text(run(curve("braid", (1 << 20, 40.0, 9.0)), curve("gloo", (1 << 20, 10.0, 36.0))))
    assert "<svg viewBox" in drawn  # the key
    assert 'class="chart"' not in drawn
    widths = re.findall(r'class="(c\d)" style="width:([\d.]+)%">([^<]*)<', drawn)
    assert widths == [("c0", "100.0", "40"), ("c1", "25.0", "10")]


def test_shares_add_up_and_links_that_carry_nothing_are_left_out():
    share = Share("all_gather", 64 << 20, {"shm": 0.7, "staged": 0.3, "rdma": 0.0})
    drawn = text(run(curve("braid", *LINE), shares=[share]))
    found = re.findall(r'style="width:([\d.]+)%" title="(\w+) ', drawn)
    assert found == [("70.0", "shm"), ("30.0", "staged")]
    assert "64 MiB" in drawn
    assert "Share of each message" not in text(run(curve("braid", *LINE)))


def test_messages_that_one_link_carried_alone_are_a_sentence():
    """A record of 60 messages over NVLink alone drew 60 full bars."""
    alone = [Share("all_gather", 1 << i, {"nvlink": 1.0, "host": 0.0}) for i in range(10, 20)]
    drawn = text(run(curve("braid", *LINE), shares=alone))
    assert "All 10 messages went over one link alone: nvlink." in drawn
    assert 'class="share"' not in drawn
    parted = [Share("broadcast", n << 20, {"nvlink": 0.9, "host": 0.1}) for n in (64, 2)]
    drawn = text(run(curve("braid", *LINE), shares=[*alone, *parted]))
    assert "10 of 12 messages" in drawn
    assert re.findall(r"<td>broadcast</td><td>([^<]*)</td>", drawn) == ["2 MiB", "64 MiB"]


def test_every_point_is_a_number_too():
    drawn = text(run(curve("braid", *LINE), curve("nccl", (1 << 30, 1234.5678, 98765.43))))
    cells = [
        re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", drawn)
    ]
    assert [row for row in cells if row] == [
        ["all_gather", "braid", "1 KiB", "2.0", "100"],
        ["all_gather", "braid", "4 KiB", "3.0", "300"],
        ["all_gather", "nccl", "1 GiB", "98,765.4", "1235"],
    ]


def multicast(*, sizes=(1 << 20, 1 << 24)):
    """480 GB/s of bus bandwidth over links of 450: 308.6 on the wire (F17)."""
    points = [Point(n, 480.0, 2.0, 308.57, True) for n in sizes]
    return Curve("all_reduce", "nccl", "", points)


def test_nothing_is_drawn_as_faster_than_the_wire_without_the_wire_beside_it():
    drawn = text(run(curve("braid", *LINE, op="all_reduce"), multicast()))
    assert "Where NVSwitch adds (NVLS)" in drawn
    dotted = re.findall(r'class="curve c1 onwire" d="M([^"]*)"', drawn)
    plain = re.findall(r'class="curve c1" d="M([\d. L]*)"', drawn)
    heights = [float(path.split()[1].split("L")[0]) for path in (dotted[0], plain[0])]
    assert len(dotted) == 1  # with the bandwidths; times are times
    assert heights[0] > heights[1]  # pixels from the top: below
    assert drawn.count("nccl, on the wire at the least, 1 MiB: 309") == 1


def test_a_bar_of_multicast_says_what_was_on_the_wire():
    drawn = text(run(multicast(sizes=(1 << 20,))))
    assert ">480, on the wire &gt;=308.6<" in drawn


def test_the_wire_is_a_number_where_it_is_known():
    known = Curve("broadcast", "braid", "", [Point(1 << 20, 40.0, 2.0, 39.5)])
    drawn = text(run(known, multicast(), curve("gloo", (1 << 20, 10.0, 36.0))))
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", drawn)]
    assert [row[-1] for row in rows if len(row) == 6] == ["-", "&gt;=308.6", "&gt;=308.6", "39.5"]
    assert '<th class="n">wire</th>' in drawn
    assert "NVSwitch" not in text(run(known))


def test_names_from_a_record_cannot_break_the_page():
    bad = "<script>&\"'"
    share = Share(bad, 1, {bad: 0.5, "x": 0.5})
    drawn = text(run(curve(bad, *LINE, op=bad), shares=[share]))
    assert "<script" not in drawn
    assert "&lt;script&gt;&amp;" in drawn


@pytest.mark.parametrize(
    ("value", "short"), [(0.001234, "0.00123"), (9.876, "9.88"), (99.96, "100"), (1234.5, "1,234")]
)
def test_numbers_of_axes(value, short):
    assert chart._short(value) == short


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(1, "1 B"), (1000, "1000 B"), (1024, "1 KiB"), (1.5 * (1 << 20), "1.5 MiB"), (2**33, "8 GiB")],
)
def test_sizes_of_axes(nbytes, words):
    assert chart._size(nbytes) == words


@pytest.mark.parametrize(("first", "last"), [(1, 1 << 40), (1 << 10, 1 << 12), (3, 5), (100, 100)])
@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_within_the_axes_and_not_too_many(first, last, log):
    lines = [chart.Line("a", "c0", [(first, 0.5), (last, 460.0)])]
    drawn = chart._Chart("t", lines, [], log)
    assert len(drawn._sizes()) <= 7
    assert all(drawn.first <= size <= drawn.last for size in drawn._sizes())
    values = drawn._values()
    assert 2 <= len(values) <= 11
    assert all(drawn.low <= value <= drawn.high for value in values)
    assert values == sorted(set(values))

"""What must hold of any prediction: over machines, operations, ranks, sizes and nodes."""

import itertools
import json
import math
import random

import pytest

from braid.plan import collective, hardware, network, protocols, transfer
from braid.plan.basis import Basis, Quantity
from braid.plan.chart import Span, Strip, as_svg, as_text, stacked, time_text
from braid.plan.curve import Curve
from braid.plan.formulas import collectives
from braid.plan.predict import Request, predict
from braid.plan.protocols import LL, LL128, MULTICAST, SIMPLE, call_us
from braid.plan.wrong import PlanError

SIZES = [1 << shift for shift in range(0, 36, 3)]


def nbytes(value):
    return Quantity(value, "B", Basis.EXACT, "")


NICS = [network.given(400, "gpu"), network.given(400, "node"), network.find("ib-ndr-8x400")]


@pytest.mark.parametrize("name", hardware.names())
@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct"])
def test_times_rise_with_bytes_and_keep_to_the_wire(name, algorithm):
    node = hardware.find(name)
    for path, op in itertools.product(node.paths, ("all_reduce", "all_gather")):
        times = []
        for nbytes in SIZES:
            found = predict(Request(op, nbytes, node.gpus_per_node), path, algorithm=algorithm)
            rate = path.specified(node.gpus_per_node).value
            wire = collectives.wire_bytes(op, algorithm, node.gpus_per_node, nbytes)
            assert wire / found.time_us.value / 1e3 <= rate
            assert found.time_us.value >= found.least_us.value
            times.append(found.time_us.value)
        assert all(a <= b for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("op", [op for op in collectives.OPS if op != "send"])
@pytest.mark.parametrize("nics", NICS, ids=lambda nics: nics.origin.split(",")[0])
def test_over_nodes_no_nic_and_no_link_is_beaten(op, nics):
    path = hardware.find("h200-nvlink4").paths[0]
    for gpus, nodes, nbytes in itertools.product((1, 4, 8), (2, 16), (4096, 1 << 30)):
        found = predict(Request(op, nbytes, gpus, nodes), path, nics)
        outside = collectives.outside_bytes(op, gpus, nodes, nbytes)
        assert outside / found.time_us.value / 1e3 <= nics.per_gpu(gpus).value
        assert found.least_us.value <= found.time_us.value <= found.most_us.value
        assert nics.per_gpu(gpus).value * gpus == pytest.approx(nics.per_node(gpus).value)


def test_more_of_anything_slow_is_slower():
    path = hardware.find("h200-nvlink4").paths[0]
    fast, slow = network.given(400, "gpu"), network.given(100, "gpu")
    request = Request("all_reduce", 1 << 30, 8, 4)
    assert predict(request, path, fast).time_us.value < predict(request, path, slow).time_us.value


@pytest.mark.parametrize("steps", [0, 1, 14])
@pytest.mark.parametrize("net_steps", [0, 2, 30])
def test_the_best_protocol_is_the_least_of_three(steps, net_steps):
    for wire_us in (0.0, 1.0, 30.0, 1e5):
        ways = [
            6.6 + 0.6 * steps + 2.7 * net_steps + wire_us * 2,
            14.0 + 1.9 * steps + 4.0 * net_steps + wire_us * 128 / 120,
            8.4 + 3.4 * steps + 14.0 * net_steps + wire_us,
        ]
        assert call_us(wire_us, steps, net_steps) == pytest.approx(min(ways))


def test_each_protocol_has_sizes_where_it_is_best():
    def best(wire_us):
        whole = call_us(wire_us, 14)
        return [
            way
            for way in (LL, LL128, SIMPLE)
            if math.isclose(whole, way.base_us + 14 * way.step_us + wire_us / way.data)
        ]

    assert best(1.0) == [LL]
    assert best(100.0) == [LL128]
    assert best(1e5) == [SIMPLE]
    assert call_us(50.0, 2, is_multicast=True) == pytest.approx(8.4 + 25 + 50)
    assert protocols.MULTICAST is MULTICAST


def test_any_curve_is_continuous_and_rises():
    rng = random.Random(9)
    for _ in range(40):
        sizes = sorted(rng.sample(range(8, 34), rng.randrange(2, 9)))
        times = itertools.accumulate(rng.uniform(0.5, 900) for _ in sizes)
        points = [(1 << size, us) for size, us in zip(sizes, times, strict=True)]
        made = Curve.of("all_reduce", 8, rng.sample(points, len(points)), "nvlink", "t")
        for nbytes, us in points:
            assert made.time_us(nbytes) == us
            assert made.time_us(nbytes - 1) == pytest.approx(us, rel=0.2)
            assert made.gap(nbytes) == 1
        inside = [made.time_us(n) for n in range(points[0][0], points[-1][0], points[-1][0] // 97)]
        assert inside == sorted(inside)
        assert made.time_us(points[-1][0] * 4) >= points[-1][1]


def test_gaps_between_points():
    made = Curve.of("all_reduce", 8, [(1024, 5.0), (4096, 6.0), (1 << 20, 50.0)], "nvlink", "t")
    assert [made.gap(n) for n in (512, 1024, 2048, 5000, 1 << 20, 1 << 21)] == [0, 1, 4, 256, 1, 0]


@pytest.mark.parametrize(
    ("size", "basis", "words"),
    [
        (1024, Basis.MEASURED, "measured at this size"),
        (2048, Basis.MEASURED, "between measured sizes"),
        (5000, Basis.ASSUMED, "between measured sizes 256 times apart"),
        (1 << 21, Basis.ASSUMED, "beyond the measured sizes"),
        (512, Basis.ASSUMED, "beyond the measured sizes"),
    ],
)
def test_what_a_time_rests_on(size, basis, words):
    points = [(1024, 5.0), (4096, 6.0), (1 << 20, 50.0)]
    made = Curve.of("all_gather", 4, points, "nvlink", "a record")
    node = hardware.find("h100-nvlink4").with_curves([made])
    found = predict(Request("all_gather", size, 4), node.paths[0]).time_us
    assert found.basis is basis
    assert found.origin == f"{words}; a record"


def test_algorithms_of_operations():
    h200, a100 = (hardware.find(n).paths[0] for n in ("h200-nvlink4", "a100-nvlink3"))
    ways = [
        collective.algorithms_for(Request(op, 1, 8, nodes), path)
        for op, nodes, path in (
            ("all_reduce", 1, h200),
            ("all_reduce", 1, a100),
            ("all_gather", 1, h200),
            ("all_to_all", 1, h200),
            ("all_reduce", 2, h200),
        )
    ]
    assert ways == [
        ["auto", "ring", "tree", "direct", "nvls"],
        ["auto", "ring", "tree", "direct"],
        ["auto", "ring", "tree", "direct"],
        ["auto", "direct"],
        ["auto", "ring", "tree", "direct", "nvls"],
    ]


def test_a_collective_s_document():
    path = hardware.find("h100-nvlink4").paths[0]
    request = Request("all_gather", 8 << 20, 8)
    document = collective.report(request, path, None, ["ring"]).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["inputs"] == {
        "op": "all_gather", "bytes": 8 << 20, "ranks": 8, "nodes": 1, "path": "nvlink",
    }  # fmt: skip
    lines = {line["name"]: line["value"] for line in document["results"]}
    assert lines == {"bus_factor": 0.875, "rate_gbps": 450}
    (row,) = document["rows"]
    cells = {name: cell["value"] for name, cell in row["cells"].items()}
    assert list(cells) == ["wire", "steps", "least", "likely", "algbw", "busbw"]
    assert (cells["wire"], cells["steps"]) == (7 << 20, 7)
    assert cells["least"] == pytest.approx((7 << 20) / 450e3)
    assert cells["busbw"] == pytest.approx(cells["algbw"] * 7 / 8)
    assert cells["algbw"] == pytest.approx((8 << 20) / cells["likely"] / 1e3)


def test_buckets_of_any_size_carry_the_same_bytes():
    path = hardware.find("a100-nvlink3").paths[0]
    answer = collective.buckets(8e9, [1 << 20, 32 << 20, 1 << 30], 8, path)
    together = []
    for row in answer.rows:
        cells = {name: cell.value for name, cell in row.cells.items()}
        assert cells["bucket"] * cells["messages"] == pytest.approx(8e9)
        assert cells["together"] == pytest.approx(cells["messages"] * cells["each"] / 1e6)
        assert cells["algbw"] == pytest.approx(8 / cells["together"])
        together.append(cells["together"])
    assert answer.value("spread") == pytest.approx(max(together) / min(together))
    with pytest.raises(KeyError):
        answer.value("nothing")


def test_a_transfer_over_nics_and_over_a_path():
    answer = transfer.report(nbytes(320e9), transfer.over_nics(200, 4), {})
    assert answer.value("gbit") == 2560
    assert answer.value("rate_gbps") == 100
    assert answer.value("least_s") == pytest.approx(3.2)
    assert answer.value("likely_s") == pytest.approx(4.0)
    mesh = transfer.over_path(hardware.find("mi300x-xgmi").paths[0])
    assert mesh.rate.value == 64  # one link of seven
    assert transfer.report(nbytes(64e9), mesh, {}).value("least_s") == pytest.approx(1.0)
    for bad in (0, -1, float("nan")):
        with pytest.raises(PlanError, match="bytes: asked for"):
            transfer.report(nbytes(bad), mesh, {})


def test_parts_follow_each_other():
    strip = stacked("step", [("computation", 2.0), ("waiting", 0.5), ("communication", 1.5)])
    assert [(span.start_s, span.length_s) for span in strip.spans] == [(0, 2), (2, 0.5), (2.5, 1.5)]
    assert strip.end_s == 4
    assert stacked("nothing", []).end_s == 0


def test_a_bar_of_text_has_a_cell_for_its_time():
    strips = [
        stacked("long", [("computation", 3.0), ("communication", 1.0)]),
        stacked("b", [("waiting", 2.0)]),
    ]
    long, short, legend = as_text(strips, width=40).splitlines()
    assert long == f"long  {'#' * 30}{'=' * 10} 4 s"
    assert short == f"b     {'.' * 20} 2 s"
    assert legend.strip() == "# computation   = communication   . waiting"


def test_text_of_others_cannot_break_a_picture():
    strip = Strip('<b>&"', (Span("waiting", 0.0, 1.0),))
    drawn = as_svg([strip], "<script>")
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert "&lt;b&gt;&amp;" in drawn


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"), (1e-9, "0.001 us"), (12.3456e-6, "12.3 us"),
        (9.994e-4, "999 us"), (9.996e-4, "1 ms"),
        (0.9996, "1 s"), (999.7, "1000 s"),
        (0.001, "1 ms"), (0.42, "420 ms"), (1.0, "1 s"), (999.4, "999 s"), (86400.0, "86400 s"),
    ],
)  # fmt: skip
def test_times_in_three_digits(seconds, text):
    assert time_text(seconds) == text

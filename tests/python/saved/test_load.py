"""One loader for all tools: records, nccl-tests' tables as text and JSON, and what is neither."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from saved_tables import half, of_2026, us_of

from braid import saved
from braid.cli.plan import options
from braid.plan import collective, hardware, network, records
from braid.plan.basis import Basis
from braid.plan.predict import Request, predict
from braid.plan.wrong import PlanError
from braid.probe import compare
from braid.record import gpu as gpu_record
from braid.report import runs
from braid.topo import measured

FIXTURE = Path(__file__).parents[1] / "fixtures/nccl_tests/all_reduce_a100.txt"
SIZES = [1 << 20, 1 << 26]


def as_json(op="all_gather", ranks=4, wrong=0):
    """What nccl-tests -J writes."""

    def place(nbytes, *, in_place=False):
        us, alg, bus = map(float, half(nbytes, ranks, op, (), in_place=in_place))
        return {"time": us, "alg_bw": alg, "bus_bw": bus, "nwrong": wrong}

    return {
        "version": 1,
        "args": [f"./build/{op}_perf", "-g", str(ranks)],
        "env": ["HOME=/root", "NCCL_ALGO=Ring"],
        "nccl_version": 22809,
        "config": {"graph": 0, "warmup_iters": 1, "iterations": 20},
        "devices": [{"hostname": "a", "device_info": "NVIDIA H200"}] * ranks,
        "results": [
            {
                "size": n, "count": n // 4, "type": "float", "redop": "none", "root": "    -1",
                "out_of_place": place(n), "in_place": place(n, in_place=True),
            }
            for n in SIZES
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 40.0, "okay": "unchecked"},
    }  # fmt: skip


def written(tmp_path, content, name="x.txt"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_json_of_nccl_tests(tmp_path):
    found = saved.load(written(tmp_path, as_json()))
    record = gpu_record.from_json(found)
    assert (record.gpu, record.nccl, record.ranks) == ("NVIDIA H200", "2.28.9", 4)
    assert record.options == {"NCCL_ALGO": "Ring"}
    assert [(r.op, r.total_bytes, r.runs[0].median_us) for r in record.results] == [
        ("all_gather", n, us_of(n)) for n in SIZES
    ]
    assert [run.who for run in record.results[0].runs] == ["nccl", "nccl in place"]


@pytest.mark.parametrize("field", ["config", "devices", "args", "env"])
def test_json_with_missing_fields_is_one_line(tmp_path, field):
    document = as_json()
    del document[field]
    with pytest.raises(ValueError, match=f"not a whole record of nccl-tests: .*{field}"):
        saved.load(written(tmp_path, document))


def test_a_table_is_a_whole_record():
    record = gpu_record.from_json(saved.load(FIXTURE))
    assert (record.ranks, record.gpu) == (8, "NVIDIA A100-SXM4-80GB")
    assert len(record.results) == 20
    assert record.stopped == ""


def test_the_published_table_within_013_percent():
    """C31, F6: bus bandwidth from size and time, 20 rows."""
    printed = [float(x.split()[7]) for x in FIXTURE.read_text().splitlines() if x[:1] == " "]
    found = [r.runs[0].busbw_gbps for r in gpu_record.from_json(saved.load(FIXTURE)).results]
    for ours, theirs in zip(found, printed, strict=True):
        assert ours == pytest.approx(theirs, rel=0.0013, abs=0.005)


def test_plan_takes_it_as_hardware():
    machine = options.machine(str(FIXTURE), None, "nccl")
    curve = next(c for c in machine.paths[0].curves if FIXTURE.name in c.origin)
    assert (curve.op, curve.ranks, len(curve.points)) == ("all_reduce", 8, 20)
    assert curve.time_us(48 << 20) == pytest.approx(561, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gpus"), [("h800_x8.txt", 8), ("h100_x8.xml", 8), ("a100_pcie_x2.txt", 2)]
)
def test_plan_takes_what_topo_reads(name, gpus):
    machine = options.machine(str(FIXTURE.parents[1] / "topo" / name), None, "nccl")
    assert machine.gpus_per_node == gpus
    assert machine.paths[0].rate_gbps > 30


def test_plan_says_why_a_topology_is_none(tmp_path):
    with pytest.raises(PlanError, match="XML is cut off") as error:
        options.machine(str(written(tmp_path, "<system><cpu", "cut.xml")), None, "nccl")
    assert "\n" not in str(error.value)
    with pytest.raises(PlanError, match="no table of nccl-tests"):
        options.machine(str(written(tmp_path, "hello", "x.txt")), None, "nccl")


def test_times_over_several_hosts_are_of_as_many_nodes_alone(tmp_path):
    path = written(tmp_path, of_2026("all_reduce", SIZES, hosts=2))
    (curve,) = records.curves(records.load(path), "nccl", "x")
    assert (curve.ranks, curve.nodes) == (2, 2)
    way = hardware.find("h800-nvlink4").with_curves([curve]).paths[0]
    nics = network.find("ib-ndr-8x400")

    def found(ranks, nodes, algorithm="auto"):
        return predict(Request("all_reduce", SIZES[-1], ranks, nodes), way, nics, algorithm)

    over = found(2, 2)
    assert (over.algorithm, over.time_us.basis) == ("measured", Basis.MEASURED)
    assert over.time_us.value == pytest.approx(curve.time_us(SIZES[-1]))
    assert "2 nodes" in over.time_us.origin
    plain = replace(way, curves=())
    asked = Request("all_reduce", SIZES[-1], 2, 2)
    assert over.least_us == predict(asked, plain, nics).least_us
    for other in (found(2, 1), found(4, 1), found(4, 2), found(2, 4), found(2, 2, "ring")):
        assert other.time_us.basis is Basis.ASSUMED
        assert "carried over" not in other.time_us.origin
    words = [collective.report(Request("all_reduce", SIZES[-1], 2, n), way, nics, ["auto"]).notes
             for n in (1, 2)]  # fmt: skip
    said = "not used: times of 2 nodes with 2 ranks each"
    assert [said in notes for notes in words] == [True, False]
    document = records.load(path)
    document["host"]["num_hosts"] = 3
    with pytest.raises(PlanError, match="4 on 3 hosts; every host must have as many"):
        records.curves(document, "nccl", "x")


def test_compare_sees_what_became_slower(tmp_path):
    text = of_2026("all_reduce", SIZES)
    slow = text.replace(f"{us_of(1 << 26):.2f}", f"{us_of(1 << 26) * 1.01:.2f}")
    old, new = (compare.load(written(tmp_path, t, f"{t is text}.txt")) for t in (text, slow))
    found = {row.case: row.finding for row in compare.rows(old, new, 0.005)}
    assert sorted(found.values()) == ["same", "same", "same", "slower"]
    assert found[f"all_reduce {1 << 26} B bfloat16 eager, nccl"] == "slower"


def test_report_and_topo_take_it(tmp_path):
    run = runs.load(FIXTURE)
    assert run.title == "8 x NVIDIA A100-SXM4-80GB"
    assert {curve.who for curve in run.curves} == {"nccl", "nccl in place"}
    gathered = written(tmp_path, as_json())
    (rate,) = measured.load(gathered).rates
    assert rate.gbps == pytest.approx((1 << 26) / us_of(1 << 26) / 1e3 * 0.75, abs=0.1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no table of nccl-tests"),
        ("hello\n", "no table of nccl-tests"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_neither(tmp_path, content, complaint):
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=complaint):
        saved.load(path)
    for load in (records.load, compare.load, runs.load, measured.load):
        with pytest.raises(ValueError, match=complaint) as error:
            load(path)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)


def test_no_file():
    with pytest.raises(OSError, match="No such file"):
        saved.load(Path("nowhere.txt"))


def test_a_file_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(saved, "MOST_BYTES", 1 << 10)
    with pytest.raises(ValueError, match="no record"):
        saved.load(Path("/dev/zero"))

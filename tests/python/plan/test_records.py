"""Saved measurements as curves, and as machines."""

import json
from pathlib import Path

import pytest

from braid.plan import collective, network, records
from braid.plan.basis import Basis
from braid.plan.predict import Request, predict
from braid.plan.wrong import PlanError

RECORDS = Path(__file__).parents[3] / "records"
GPU = {
    "schema": "braid.gpu/1",
    "gpu": "NVIDIA H200",
    "ranks": 4,
    "results": [
        {"op": "all_gather", "bytes": 1024, "who": "nccl", "samples_us": [3.0, 9.0, 4.0]},
        {"op": "all_gather", "bytes": 1024, "who": "braid", "samples_us": [2.0]},
        {"op": "all_reduce", "bytes": 1024, "who": "nccl", "samples_us": [5.0]},
    ],
}


def test_a_rank_s_part_becomes_the_sum_over_ranks():
    found = {curve.op: curve for curve in records.curves(GPU, "nccl", "test")}
    assert found["all_gather"].points == ((4096, 4.0),)  # median, 4 ranks
    assert found["all_reduce"].points == ((1024, 5.0),)


def test_today_s_gpu_record():
    run = {"median_us": 7.0, "wrong": 0}
    row = {"op": "all_gather", "bytes": 1024, "total_bytes": 4096}
    document = {
        "schema": "braid.gpu/2",
        "gpu": "NVIDIA H200",
        "ranks": 4,
        "results": [
            {**row, "mode": "eager", "runs": [{**run, "who": "nccl"}, {**run, "who": "braid"}]},
            {**row, "mode": "eager", "runs": [{"who": "broken", "median_us": 1.0, "wrong": 3}]},
            {**row, "mode": "graph", "runs": [{**run, "who": "nccl", "median_us": 3.0}]},
        ],
    }
    assert records.contestants(document) == ["braid", "nccl"]
    eager, graph = records.curves(document, "nccl", "test")
    assert (eager.points, eager.origin) == (((4096, 7.0),), "test, eager")
    assert (graph.points, graph.origin) == (((4096, 3.0),), "test, graph")


def test_who():
    assert records.contestants(GPU) == ["braid", "nccl"]
    assert [curve.op for curve in records.curves(GPU, "braid", "test")] == ["all_gather"]
    assert records.curves(GPU, "gloo", "test") == []


@pytest.mark.parametrize("path", sorted(RECORDS.glob("g*_?.json")), ids=lambda path: path.name)
def test_records_of_this_project_are_read(path):
    document = records.load(path)
    who = records.contestants(document)
    assert "braid" in who
    for each in who:
        for curve in records.curves(document, each, path.name):
            assert all(us > 0 for _, us in curve.points)


def test_a_bench_record_counts_bytes_as_nccl_tests_does():
    document = records.load(RECORDS / "gloo_2.json")
    gather = next(c for c in records.curves(document, "braid", "x") if c.op == "all_gather")
    assert {size for size, _ in gather.points} == {
        row["bytes"] for row in document["results"] if row["op"] == "all_gather"
    }


def test_a_gpu_record_is_a_machine_of_that_gpu():
    node = records.machine(GPU, records.curves(GPU, "nccl", "test"), "test")
    assert node.peak_tflops == 989
    found = predict(Request("all_reduce", 1024, 4), node.path("nvlink")).time_us
    assert (found.value, found.basis) == (5.0, Basis.MEASURED)


def test_a_record_of_an_unknown_machine_has_its_measurements_only():
    document = {**GPU, "gpu": "CPU"}
    node = records.machine(document, records.curves(document, "nccl", "test"), "test")
    assert predict(Request("all_reduce", 1024, 4), node.path("auto")).time_us.value == 5.0
    with pytest.raises(PlanError, match="no rate is known"):
        predict(Request("broadcast", 1024, 4), node.path("auto"))


def test_a_record_over_nodes_of_an_unknown_machine_answers_for_as_many():
    document = {**GPU, "gpu": "CPU", "host": {"num_hosts": 2}}
    node = records.machine(document, records.curves(document, "nccl", "test"), "test")
    nics = network.find("ib-ndr-8x400")
    path = node.path("auto")
    found = predict(Request("all_reduce", 1024, 2, 2), path, nics)
    assert (found.algorithm, found.time_us.value, found.least_us.value) == ("measured", 5.0, 0)
    with pytest.raises(PlanError, match="no rate is known and broadcast was not measured"):
        predict(Request("broadcast", 1024, 2, 2), path, nics)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other/3"}, "schema other/3"),
        ({"results": [{}]}, "not a whole record"),
        ({"results": None}, "not a whole record"),
        ({"ranks": "four"}, "not a whole record"),
        (
            {"results": [{"op": "all_reduce", "bytes": 8, "who": "nccl", "samples_us": []}]},
            "not a whole record",
        ),
    ],
)
def test_refused(change, message):
    with pytest.raises(PlanError, match=message):
        records.curves({**GPU, **change}, "nccl", "test")


@pytest.mark.parametrize("text", ["", "{}", "[1]", json.dumps(GPU)[:-30], "\xff"])
def test_broken_files(text, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PlanError, match=r"record\.json"):
        records.load(path)


def test_a_machine_without_known_rates_has_what_was_measured():
    """A record between CPUs: no way over links can be computed."""
    document = {**GPU, "gpu": ""}
    found = records.machine(document, records.curves(document, "nccl", "x"), "x").paths[0]
    request = Request("all_reduce", 1024, 4)
    assert collective.algorithms_for(request, found) == ["auto"]
    (row,) = collective.report(request, found, None, ["auto"]).rows
    assert row.cells["likely"].value == 5.0

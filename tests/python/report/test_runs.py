"""Records as curves and shares: every form, one convention."""

import json
import math
from pathlib import Path

import pytest

from braid.errors import InvalidArgument
from braid.report.runs import load

RECORDS = Path(__file__).parents[3] / "records"
TIMED = {"p50_us": 1.0, "p95_us": 2.0, "slowest": 1, "behind_us": 0.0}
"""Of one rank."""


def curve(run, op, who, mode=""):
    return next(c for c in run.curves if (c.op, c.who, c.mode) == (op, who, mode))


def test_bench():
    run = load(RECORDS / "paced_421.json")
    assert run.paced
    assert run.title.endswith("links paced")
    (ours,) = curve(run, "all_gather", "braid").points
    (other,) = curve(run, "all_gather", "shm alone").points
    ratio = json.loads((RECORDS / "paced_421.json").read_text())["results"][0]["ratio"]
    assert ours.nbytes == 64 << 20
    assert ours.gbps / other.gbps == pytest.approx(ratio, abs=0.01)
    assert sum(run.shares[0].parts.values()) == pytest.approx(1)
    assert {"command", "date", "commit", "host", "options"} - {"options"} <= run.facts.keys()


def test_one_link_has_no_shares():
    assert load(RECORDS / "gloo_2.json").shares == []


def test_gpu_times_become_bandwidths():
    """2 x H200, NCCL: 256 MiB from each rank in about 1.04 ms is 258 GB/s."""
    run = load(RECORDS / "gpu_large_2.json")
    assert (run.title, run.gpu) == ("2 x NVIDIA H200", "NVIDIA H200")
    point = next(p for p in curve(run, "all_gather", "nccl").points if p.nbytes == 512 << 20)
    assert point.gbps == pytest.approx(258, rel=0.01)
    reduced = next(p for p in curve(run, "all_reduce", "nccl").points if p.nbytes == 256 << 20)
    assert reduced.gbps == pytest.approx((256 << 20) / reduced.time_us / 1e3, rel=1e-4)


def test_captured_calls_are_lines_of_their_own():
    run = load(RECORDS / "gpu_small_2.json")
    assert {c.mode for c in run.curves} == {"graph"}


def newer(**changes):
    """A record of the form braid.gpu/2 with one result."""
    run = {"who": "braid", "family": "braid", "samples_us": [2.0], "median_us": 2.0, "p5_us": 2.0}
    run |= {"p95_us": 2.0, "busbw_gbps": 380.0, "wrong": 0}
    result = {"op": "all_gather", "bytes": 1 << 20, "total_bytes": 8 << 20, "dtype": "bfloat16"}
    result |= {"mode": "eager", "calls_per_sample": 1, "host_share": 0.1, "absent": {}}
    result["runs"] = [run, {**run, "who": "nccl", "family": "nccl", "wrong": 3}]
    words = dict.fromkeys(("command", "commit", "driver", "cuda", "torch", "nccl", "braid"), "x")
    host = {"cpu": "", "cores": 1, "memory_gib": 1.0, "kernel": ""}
    return {
        "schema": "braid.gpu/2", "date": "2026-11-21", "dirty": True, **words, "gpu": "NVIDIA H200",
        "host": host, "ranks": 8, "sizes": "", "settings": {}, "options": {"NCCL_ALGO": "Ring"},
        "results": [result], **changes,
    }  # fmt: skip


def test_newer_gpu_records(tmp_path):
    path = tmp_path / "new.json"
    path.write_text(json.dumps(newer()))
    run = load(path)
    assert [c.who for c in run.curves] == ["braid"]  # the other one had wrong bytes
    assert run.curves[0].points[0].nbytes == 8 << 20
    assert run.shares[0].parts == {"nvlink": 0.9, "host": 0.1}
    assert run.facts["commit"] == "x, with changes"
    assert run.facts["options"] == "NCCL_ALGO=Ring"


def test_the_wire_of_every_point(tmp_path):
    """8 GPUs: where NVSwitch may have added, the least; a record without options does not say."""
    document = newer(options={})
    (result,) = document["results"]
    result["op"] = "all_reduce"
    for one in result["runs"]:
        one |= {"busbw_gbps": 480.0, "wrong": 0}
    path = tmp_path / "nvls.json"
    for options, wire, is_least in (({}, 308.571, True), ({"NCCL_NVLS_ENABLE": "0"}, 480.0, False)):
        path.write_text(json.dumps({**document, "options": options}))
        run = load(path)
        (ours,) = curve(run, "all_reduce", "braid").points
        (nccl,) = curve(run, "all_reduce", "nccl").points
        assert (ours.wire_gbps, ours.is_least) == (480.0, False)
        assert (nccl.wire_gbps, nccl.is_least) == (pytest.approx(wire, abs=1e-3), is_least)


def test_the_wire_between_cpus_was_counted(tmp_path):
    document = json.loads((RECORDS / "paced_421.json").read_text())
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    assert curve(load(path), "all_gather", "braid").points[0].wire_gbps is None
    document["results"][0]["wire_gbps"] = 0.25
    path.write_text(json.dumps(document))
    assert curve(load(path), "all_gather", "braid").points[0].wire_gbps == 0.25
    assert curve(load(path), "all_gather", "shm alone").points[0].wire_gbps is None


def test_a_nic_that_carried_a_part_is_a_link(tmp_path):
    document = newer()
    document["results"][0]["rdma_share"] = 0.05
    path = tmp_path / "nic.json"
    path.write_text(json.dumps(document))
    assert load(path).shares[0].parts == pytest.approx({"nvlink": 0.85, "host": 0.1, "rdma": 0.05})


def test_held_links_are_said(tmp_path):
    """An experiment's rates must not look like the machine's."""
    path = tmp_path / "held.json"
    path.write_text(json.dumps(newer(options={"BRAID_LINK_CAP": "nvlink=200GB/s"})))
    assert load(path).title == "8 x NVIDIA H200, links held to nvlink=200GB/s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 99999, "not JSON"),
        ("[]", "no record: it has no schema; a report takes braid.bench/1, braid.probe/1"),
        ('{"schema": "braid.tuning/1"}', "'braid.tuning/1' cannot be drawn"),
        ('{"schema": "braid.gpu/1"}', "the record has no field 'command'"),
        ('{"schema": "braid.gpu/2"}', "record: asked for the fields"),
        ('{"schema": "braid.bench/1", "results": 7}', "record: asked for the fields"),
        (json.dumps(newer(options=7)), "record.options: asked for an object"),
    ],
)
def test_refused(tmp_path, text, said):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def ranks_of(document):
    """Where a record has times by rank, of the first case."""
    schema = document["schema"]
    if schema == "braid.probe/1":
        return document["series"][0]
    return document["results"][0]["runs"][0] if "gpu" in schema else document["results"][0]["times"]


@pytest.mark.parametrize("name", ["flexlink_2.json", "latency_2.json", "steady.json"])
@pytest.mark.parametrize(
    ("field", "changed", "said"),
    [
        ("by_rank_us", {}, ""),
        ("by_rank", {}, ""),
        ("by_rank_us", {"rank 0": -1.0}, "above 0, found -1"),
        ("by_rank_us", {"rank 0": math.nan}, "a finite number, found nan"),
        ("by_rank_us", {"rank 99": 1.0}, "by_rank_us: asked for "),
        ("by_rank", {"rank 99": TIMED}, "by_rank: asked for "),
        ("by_rank", {"rank 0": {**TIMED, "p95_us": -2.0}}, "above 0, found 1, -2 and 0 us"),
        ("by_rank", {"rank 0": {**TIMED, "slowest": 10_000}}, "found 10000"),
    ],
)
def test_times_by_rank_are_checked(tmp_path, name, field, changed, said):
    """Of collectives, whose ranks are a list, and of kinds, where they have names."""
    document = json.loads((RECORDS / name).read_text())
    one = ranks_of(document)
    is_list = isinstance(one["by_rank_us"], list)
    every = {f"rank {i}": TIMED for i in range(document["ranks"])}
    named = {"by_rank_us": dict.fromkeys(every, 1.0), "by_rank": every}
    named[field] = {**named[field], **changed} if changed else {}
    one |= {key: list(found.values()) if is_list else found for key, found in named.items()}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    if not said:
        load(path)
        return
    with pytest.raises(InvalidArgument) as refused:
        load(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("gloo_2.json", ("results", 0, "bytes"), 0, "bytes, found 0"),
        ("gloo_2.json", ("results", 0, "bytes"), -1, "bytes, found -1"),
        ("gloo_2.json", ("results", 0, "busbw_gbps"), 1e308, "found 1e+308"),
        ("gloo_2.json", ("results", 0, "busbw_gbps"), -1.0, "GB/s from 0"),
        ("gloo_2.json", ("results", 0, "times", "median_us"), 0.0, "us from 0"),
        ("gpu_before_units_2.json", ("results", 0, "runs", 0, "busbw_gbps"), 1e300, "1e+300"),
        ("gpu_large_2.json", ("gpu",), 7, "record.gpu: asked for str, found 7"),
        ("gpu_large_2.json", ("gpu",), ["H200"], "record.gpu: asked for str"),
        ("p2p_2.json", ("series", 0, "times", "samples_us"), [1e308] * 2, "at most, found 1e+308"),
        ("host_2.json", ("series", 0, "bytes"), -1, "bytes: asked for 0 or more, found -1"),
    ],
)
def test_what_no_axis_has_a_place_for_is_refused(tmp_path, name, place, value, said):
    document = json.loads((RECORDS / name).read_text())
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgument) as refused:
        load(path)
    assert said in str(refused.value)


def test_no_file():
    with pytest.raises(InvalidArgument, match="No such file"):
        load(Path("/nowhere/x.json"))

"""Timelines of ranks put together and added up."""

import json

import pytest
from typer.testing import CliRunner

from braid import timeline
from braid.cli import app
from braid.errors import InvalidArgument
from braid.sizes import format_size

runner = CliRunner()
app.load_groups(["trace"])


def call(name, category, ts, dur, **args):
    known = {"dtype": "float32", "bytes": 1024, "path": "lanes", "state": "completed"}
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": 1, "ts": ts, "dur": dur,
            "args": {**known, **args}}  # fmt: skip


def document(rank, events, host="a", monotonic_ns=0, realtime_ns=0):
    about = {"braid": "0", "rank": rank, "host": host, "monotonic_ns": monotonic_ns}
    about |= {"realtime_ns": realtime_ns, "calls": len(events), "calls_left_out": 0}
    return {"otherData": about, "traceEvents": [{**e, "pid": rank} for e in events]}


def saved(tmp_path, **documents):
    paths = []
    for name, content in documents.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(content))
    return paths


def test_ranks_of_one_host_keep_their_times(tmp_path):
    paths = saved(
        tmp_path,
        b=document(1, [call("barrier", "host", 120.0, 5.0)], monotonic_ns=7),
        a=document(0, [call("barrier", "host", 100.0, 25.0)], monotonic_ns=3, realtime_ns=99),
    )
    whole = timeline.merge([timeline.read(p) for p in paths])
    assert [(e["pid"], e["ts"]) for e in whole["traceEvents"]] == [(0, 100.0), (1, 120.0)]
    assert whole["otherData"]["files"] == [str(paths[1]), str(paths[0])]


def test_other_hosts_are_moved_by_the_wall_clock(tmp_path):
    # The second host booted 5 s after the first: its monotonic clock is that much behind.
    wall = 1_700_000_000_000_000_000
    paths = saved(
        tmp_path,
        a=document(0, [call("barrier", "host", 9e6, 1.0)], "a", 9_000_000_000, wall),
        b=document(1, [call("barrier", "host", 4e6, 1.0)], "b", 4_000_000_000, wall),
    )
    whole = timeline.merge([timeline.read(p) for p in paths])
    assert [e["ts"] for e in whole["traceEvents"]] == [9e6, 9e6]


def test_processes_with_one_rank_stay_apart(tmp_path):
    arrow = {"name": "enqueued", "ph": "s", "id": "0.1.1", "ts": 1.0}
    paths = saved(tmp_path, a=document(0, [arrow]), b=document(0, [arrow]))
    events = timeline.merge([timeline.read(p) for p in paths])["traceEvents"]
    assert len({e["pid"] for e in events}) == 2
    assert len({e["id"] for e in events}) == 2


def test_a_file_that_is_no_timeline_is_named(tmp_path):
    for text in ("", "[]", "{}", '{"traceEvents": [], "otherData": {"rank": 0}}'):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(InvalidArgument, match=r"x\.json"):
            timeline.read(path)
    with pytest.raises(InvalidArgument, match="none"):
        timeline.merge([])


WRONG = [None, True, -1, 10**400, 1.5, float("nan"), float("inf"), "x", "\ud800", "\n", [], [1], {}]


def spoiled(document):
    """Every field of a document in turn is missing, or something else."""
    inner = [(document, key) for key in document]
    for place in (document["otherData"], *document["traceEvents"]):
        inner += [(place, key) for key in place]
        inner += [(place["args"], key) for key in place.get("args", {})]
    inner += [(document["traceEvents"], 0)]
    for place, key in inner:
        good = place[key]
        for wrong in WRONG:
            place[key] = wrong
            yield json.dumps(document)
        if isinstance(place, dict):
            del place[key]
            yield json.dumps(document)
        place[key] = good


def test_a_damaged_timeline_is_told_in_one_line(tmp_path):
    """It was a traceback, and exit code 1."""
    events = [call("all_reduce", "host", 0.0, 30.0, busbw_gbps=3.0), call("x", "gpu", 0.0, 1.0)]
    good, *_ = saved(tmp_path, good=document(0, events, "b", 1, 10**18))
    path = tmp_path / "bad.json"
    refused = 0
    for text in spoiled(document(1, events, "a", 2, 3)):
        path.write_text(text)
        try:
            both = [timeline.read(path), timeline.read(good)]
        except InvalidArgument as error:
            assert "bad.json" in str(error)  # noqa: PT017 - the others are right
            refused += 1
            continue
        json.dumps(timeline.merge(both))
        for row in timeline.summary(both):
            f"{row.op:15}{row.dtype:15}{format_size(row.bytes)}{row.path:14}".encode()
    assert refused > 100
    path.write_text("[" * 100_000)
    for words in (["summary", str(path)], ["merge", str(path), "-o", str(tmp_path / "out.json")]):
        done = runner.invoke(app.app, ["trace", *words])
        assert isinstance(done.exception, InvalidArgument), done.exception


def test_merge_command(tmp_path):
    paths = saved(tmp_path, a=document(0, [call("barrier", "host", 1.0, 2.0)]), b=document(1, []))
    out = tmp_path / "job.json"
    words = ["trace", "merge", *map(str, paths), "-o", str(out), "--json"]
    done = runner.invoke(app.app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"out": str(out), "files": 2, "ranks": 1, "events": 1}
    assert len(json.loads(out.read_text())["traceEvents"]) == 1


def test_summary_takes_gpu_times_from_the_gpu(tmp_path):
    events = [
        call("all_reduce", "host", 0.0, 30.0, busbw_gbps=3.0),
        call("all_reduce", "host", 50.0, 10.0, busbw_gbps=9.0),
        call("all_reduce", "host", 70.0, 20.0, busbw_gbps=4.5),
        call("all_reduce", "host", 95.0, 900.0, state="failed"),
        call("all_gather", "enqueue", 100.0, 4.0, path="lines", state="completed", busbw_gbps=7.0),
        call("all_gather", "gpu", 110.0, 50.0, path="lines", busbw_gbps=7.0),
        call("all_gather", "link", 110.0, 50.0),
        {"name": "thread_name", "ph": "M", "pid": 0, "args": {"name": "x"}},
    ]
    (path,) = saved(tmp_path, a=document(0, events))
    rows = timeline.summary([timeline.read(path)])
    assert rows == [
        timeline.Row("all_reduce", "host", "float32", 1024, "lanes", 4, 20.0, 4.5),
        timeline.Row("all_gather", "gpu", "float32", 1024, "lines", 1, 50.0, 7.0),
    ]
    done = runner.invoke(app.app, ["trace", "summary", str(path)])
    assert done.exit_code == 0
    assert "1 KiB" in done.output
    assert (
        json.loads(runner.invoke(app.app, ["trace", "summary", str(path), "--json"]).output)[0][
            "calls"
        ]
        == 4
    )

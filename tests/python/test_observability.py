"""What a program sees of its calls: timelines, flight records, counts, log files."""

import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import braid
from braid import timeline


def use(comm):
    comm.all_gather(np.arange(1000, dtype="f4"))
    comm.all_reduce(np.ones(5000), "max")
    comm.barrier()


def test_a_timeline_on_demand(ranks, tmp_path):
    def body(comm):
        use(comm)
        path = tmp_path / f"{comm.rank}.json"
        comm.trace(path)
        document = json.loads(path.read_text())
        calls = [e for e in document["traceEvents"] if e.get("cat") == "host"]
        assert [c["args"]["call"] for c in calls] == [1, 2, 3]
        assert calls[1]["args"]["redop"] == "max"
        assert calls[1]["args"]["bytes"] == 40_000
        assert {c["pid"] for c in calls} == {comm.rank}
        return [c["name"] for c in calls]

    names = ["all_gather", "all_reduce", "barrier"]
    assert ranks(2, body, {"BRAID_TRACE_CALLS": "10"}) == [names, names]


def test_nothing_is_kept_unless_asked_for(ranks):
    def body(comm):
        with pytest.raises(braid.InvalidArgument, match="BRAID_TRACE_CALLS"):
            comm.trace("never")
        with pytest.raises(braid.InvalidArgument, match="BRAID_TRACE_CALLS"):
            comm.flight_record()

    ranks(1, body)


def test_a_flight_record_on_demand(ranks, tmp_path):
    def body(comm):
        use(comm)
        record = comm.flight_record(tmp_path / f"fr_{comm.rank}")
        assert pickle.loads((tmp_path / f"fr_{comm.rank}").read_bytes()) == record
        assert record["pg_config"]["comm0"]["ranks"] == "[0, 1]"
        return [(e["profiling_name"], e["state"]) for e in record["entries"]]

    names = ["nccl:_all_gather_base", "nccl:all_reduce", "nccl:all_reduce_barrier"]
    found = ranks(2, body, {"BRAID_TRACE_CALLS": "10"})
    assert found[0] == found[1] == [(name, "completed") for name in names]


def test_a_comm_is_called_the_same_by_its_members_and_by_no_others(ranks):
    def body(comm):
        parts = [
            comm,
            comm.split([0, 0, 1][comm.rank]),
            comm.split([None, 0, 0][comm.rank]),
            comm.split(0),
        ]
        told = []
        for part in parts:
            about = {} if part is None else part.flight_record()["pg_config"]
            told.append([(name, facts["ranks"]) for name, facts in about.items()])
        return told

    found = ranks(3, body, {"BRAID_TRACE_CALLS": "10"})
    whole, first, second, last = zip(*found, strict=True)
    assert whole == ([("comm0", "[0, 1, 2]")],) * 3
    assert first[0] == first[1] == [("comm1", "[0, 1]")]
    assert first[2] == [("comm1@2", "[2]")]
    assert second[0] == []
    assert second[1] == second[2] == [("comm2@1", "[1, 2]")]
    assert last == ([("comm2", "[0, 1, 2]")],) * 3


def test_without_a_launcher_a_process_has_one_file_and_one_port(ranks, tmp_path):
    def body():
        rank = int(os.environ.pop("RANK"))
        port = int(os.environ["MASTER_PORT"])
        who = braid.Identity(rank=rank, size=2, store_port=port, job_id="mine")
        with braid.join(who) as comm, comm.split(rank) as part:  # where each is rank 0
            comm.all_reduce(np.ones(4))
            part.all_reduce(np.ones(3))

    ranks.collect(ranks.start(2, body, {"BRAID_TRACE": str(tmp_path / "t.json")}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.0.json", "t.1.json"]
    for rank in range(2):
        document = json.loads((tmp_path / f"t.{rank}.json").read_text())
        assert document["otherData"]["rank"] == rank
        names = [e["name"] for e in document["traceEvents"] if e.get("cat") == "host"]
        assert names.count("all_reduce") == 2


def test_ranks_that_only_send_show_their_links(ranks, tmp_path):
    def body(comm):
        comm.broadcast(np.ones(1 << 18), 0)
        path = tmp_path / f"{comm.rank}.json"
        comm.trace(path)
        events = json.loads(path.read_text())["traceEvents"]
        (call,) = (e for e in events if e.get("cat") == "host")
        (link,) = (e for e in events if e.get("cat") == "link")
        assert call["ts"] - 1 <= link["ts"]
        assert link["ts"] + link["dur"] <= call["ts"] + call["dur"] + 1
        return link["args"]["sent_bytes"], link["args"]["received_bytes"]

    options = {"BRAID_TRACE_CALLS": "10", "BRAID_LINKS": "shm"}
    assert ranks(2, body, options) == [(1 << 21, 0), (0, 1 << 21)]


def two_free_ports():
    """The first of two neighbours, rank 0's and rank 1's, below those that the kernel gives to
    whoever connects: it may give out the second one at any time.
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_shares_outlast_calls_that_move_nothing(ranks):
    port = two_free_ports()

    def shares(rank):
        with urllib.request.urlopen(f"http://127.0.0.1:{port + rank}/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
        return [line for line in lines if line.startswith("braid_link_share")]

    def body(comm):
        comm._force_shares([0.75, 0.25])
        comm.all_reduce(np.ones(1 << 18))
        before = shares(comm.rank)
        assert [line.split()[-1] for line in before][:2] == ["0.75", "0.25"]
        comm._force_shares(None)
        comm.barrier()
        comm.all_gather(np.ones(0))
        assert shares(comm.rank) == before

    ranks(2, body, {"BRAID_METRICS_PORT": str(port), "BRAID_LINKS": "shm,staged"})


def run_program(text, **environment):
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "BRAID_TUNE": "off", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(3)", "raise RuntimeError('early')", "import gc; comm = None; gc.collect()"],
)
def test_a_trace_is_whole_however_a_program_ends(end, tmp_path):
    path = tmp_path / "trace.json"
    done = run_program(
        "import sys, braid, numpy\n"
        "comm = braid.init(progress=False)\n"
        "comm.all_reduce(numpy.ones(10))\n"
        f"{end}\n",
        BRAID_TRACE=str(path),
    )
    document = json.loads(path.read_text())
    assert document["otherData"]["calls"] == 1, done.stderr
    assert [e["name"] for e in document["traceEvents"] if e.get("cat") == "host"] == ["all_reduce"]


def test_every_rank_has_a_file(ranks, tmp_path):
    ranks(3, use, {"BRAID_TRACE": str(tmp_path / "t.json")})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.0.json", "t.1.json", "t.2.json"]
    whole = timeline.merge([timeline.read(p) for p in sorted(tmp_path.iterdir())])
    calls = [e for e in whole["traceEvents"] if e.get("cat") == "host"]
    assert len(calls) == 9
    # One clock: no rank leaves a barrier before the last one has come.
    barriers = [c for c in calls if c["name"] == "barrier"]
    last_in = max(b["ts"] for b in barriers)
    assert all(b["ts"] + b["dur"] >= last_in for b in barriers)


def test_counts_are_served(ranks):
    port = two_free_ports()

    def page(rank):
        with urllib.request.urlopen(f"http://127.0.0.1:{port + rank}/metrics", timeout=5) as reply:
            assert "version=0.0.4" in reply.headers["Content-Type"]
            return reply.read().decode()

    def body(comm):
        use(comm)
        mine = page(comm.rank)
        comm.barrier()
        return mine

    pages = ranks(2, body, {"BRAID_METRICS_PORT": str(port), "BRAID_LINKS": "shm"})
    for rank, text in enumerate(pages):
        labels = f'comm="comm0",rank="{rank}"'
        assert f'braid_calls_total{{{labels},op="all_reduce",memory="host"}} 1\n' in text
        assert f'braid_call_seconds_count{{{labels},op="barrier",memory="host"}} 1\n' in text
        assert f'braid_link_up{{{labels},link="shm"}} 1\n' in text
        assert f'braid_link_share{{{labels},link="shm"}} 1\n' in text
    with pytest.raises((urllib.error.URLError, OSError)):
        page(0)


def test_a_taken_port_is_no_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_program(f"import braid; braid.init(progress=False, metrics_port={port}).close()")
    assert done.returncode == 0
    assert "BRAID_METRICS_PORT" in done.stderr


def until_it_fails(comm):
    for _ in range(1000):
        comm.all_reduce(np.ones(1000))


def test_a_lost_rank_leaves_records_on_the_others(ranks, tmp_path):
    def body():
        comm = braid.init(progress=False)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 0:  # rank 2 makes no call
            with pytest.raises(braid.PeerLost):
                until_it_fails(comm)
        path = tmp_path / f"fr_{comm.rank}"
        for _ in range(500):
            if path.exists():
                break
            time.sleep(0.01)
        record = pickle.loads(path.read_bytes())
        return [(e["collective_seq_id"], e["state"]) for e in record["entries"]][-1]

    options = {"BRAID_FLIGHT_RECORD": str(tmp_path / "fr_")}
    last = ranks.collect(ranks.start(3, body, options), killed={1: signal.SIGKILL})
    assert last[0][0] > 1
    assert last[0][1] == "started"
    assert last[2] == (1, "completed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fr_0", "fr_2"]


def test_log_lines_go_into_files(ranks, tmp_path):
    ranks(2, use, {"BRAID_LOG": "info", "BRAID_LOG_FILE": str(tmp_path / "log.%r")})
    for rank in range(2):
        lines = (tmp_path / f"log.{rank}").read_text().splitlines()
        assert any(f"rank {rank} comm info: 2 ranks, links " in line for line in lines)


def test_an_option_of_init(ranks, tmp_path):
    path = tmp_path / "only.%r.json"

    def body():
        with braid.init(progress=False, trace=path) as comm:
            comm.barrier()

    ranks.collect(ranks.start(1, body))
    assert json.loads((tmp_path / "only.0.json").read_text())["otherData"]["calls"] == 1

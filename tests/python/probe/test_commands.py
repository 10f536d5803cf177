"""The kinds of `braid bench` as a user meets them: help, records, bad input, Ctrl-C."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from typer.main import get_command

from braid.bench import gpus
from braid.cli import collectives, main
from braid.launch import free_port
from braid.probe import pairs
from braid.record.probe import from_json

KINDS = list(get_command(collectives.app).commands)


@pytest.fixture
def bench(monkeypatch, capsys, tmp_path):
    """Runs a command line in this process; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["braid", "bench", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return stop.value.code or 0, said.out, said.err

    return run


def load(path):
    return from_json(json.loads(path.read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_help(bench, kind):
    code, out, _ = bench(f"{kind} --help")
    text = " ".join(out.split())
    assert code == 0
    assert f"Example: braid bench {kind}" in text
    assert "--json" in text
    assert "GB/s" in text or "us" in text


@pytest.mark.parametrize(
    ("line", "cases"),
    [
        ("p2p --size 64KiB --links shm", 5),
        ("host --windows 4KiB,64KiB", 18),
        ("interference --size 64KiB", 4),
        ("pages --pages 4KiB --total 1MiB", 2),
    ],
)
def test_kinds_over_lanes(bench, tmp_path, line, cases):
    code, out, err = bench(f"{line} --device cpu --samples 3 --json r.json --svg r.svg")
    assert code == 0
    assert f"{cases} cases, 0 wrong bytes" in out
    assert "case 1 of" in err
    record = load(tmp_path / "r.json")
    command = line.split()[0]
    assert record.kind == {"pages": "engine"}.get(command, command)  # as older records have it
    assert len(record.series) == cases
    assert all(one.times.p50_us <= one.times.p99_us for one in record.series)
    assert (tmp_path / "r.svg").read_text().startswith("<?xml")
    assert bench("compare r.json r.json")[0] == 0
    assert bench("compare r.json r.json --json")[1].startswith("{")


def test_kinds_that_make_calls(tmp_path):
    """On real ranks, every byte checked."""
    (tmp_path / "t.jsonl").write_text(
        '{"op": "all_reduce", "bytes": 4096, "count": 3}\n'
        '{"op": "all_to_all", "bytes": 4096, "dtype": "int32"}\n'
    )
    for line, cases in (
        ("latency --total 64KiB --messages 4", 2),
        ("compute-overlap --size 64KiB --op all_gather", 3),
        ("replay t.jsonl", 3),
    ):
        command = [sys.executable, "-m", "braid.cli", "bench", *line.split()]
        command += ["--device", "cpu", "-n", "2", "--samples", "3", "--json", "r.json"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"{cases} cases, 0 wrong bytes" in done.stdout
        record = load(tmp_path / "r.json")
        assert record.ranks == 2
        assert all(one.by_rank_us.keys() == {"rank 0", "rank 1"} for one in record.series)


TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


def test_a_block_between_cpus(tmp_path):
    """On a machine that others load its prediction is worth nothing: only that it is there, and
    that --within turns it into an exit code, is looked at.
    """
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    command = [sys.executable, "-m", "braid.cli", "bench", "tp-block", "--model", "config.json"]
    command += ["--device", "cpu", "-n", "2", "--samples", "3", "--tokens", "8"]
    command += ["--layers", "2", "--time-budget", "1", "--within", "0.0001%", "--json", "r.json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    record = load(tmp_path / "r.json")
    assert (record.kind, record.ranks, record.is_bad) == ("tp-block", 2, False)
    assert done.returncode == 1, done.stderr
    groups = [one.group for one in record.series]
    assert groups[:7] == ["norm", "qkv", "attention", "out", "up", "activation", "down"]
    assert groups[7:12] == [
        "all_reduce 512 B", "all_reduce 1 KiB", "all_reduce 4 KiB", "all_reduce 8 KiB",
        "all_reduce at its size",
    ]  # fmt: skip
    assert groups[12:] == ["block"]
    predicted, measured = (
        record.figures[f"braid: block {x}, us"] for x in ("predicted", "measured")
    )
    assert record.figures["braid: error"] == pytest.approx(predicted / measured - 1, abs=1e-3)


def test_a_hang_is_shown_and_fails(bench, monkeypatch, tmp_path):
    """A pair that hangs costs its time-out; the others are measured."""
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(3))
    monkeypatch.setattr("braid.cli.probe_lanes._gpu_name", lambda count: f"{count} x fake")
    monkeypatch.setattr(pairs, "gpu_pair", one_hangs)
    monkeypatch.setattr(pairs, "open_gpus", lambda _a, _b: None)
    code, out, _ = bench("p2p --pair-timeout 2 --samples 3 --json r.json")
    assert code == 1
    assert "hang" in out
    record = load(tmp_path / "r.json")
    assert record.device == "3 x fake"
    assert [one.verdict for one in record.series].count("hang") == 2
    assert sum(one.verdict == "ok" for one in record.series) == 10


def one_hangs(a, b, settings, budget_s):
    from probe_fakes import FakeLane

    if (a, b) == (1, 2):
        time.sleep(60)
    return pairs.measure(FakeLane(f"gpu{a}>gpu{b}"), FakeLane(f"gpu{b}>gpu{a}"), settings, budget_s)


def test_compare_fails_with_1(bench, tmp_path):
    assert bench("pages --device cpu --pages 4KiB --total 64KiB --samples 3 --json a.json")[0] == 0
    document = json.loads((tmp_path / "a.json").read_text())
    document["series"][0]["times"]["p50_us"] *= 2
    document["device"] = "another"
    (tmp_path / "b.json").write_text(json.dumps(document))
    code, out, _ = bench("compare a.json b.json --tolerance 10%")
    assert code == 1
    assert "FAILED: 1 slower" in out
    assert "not the same machine or run: device" in out
    code, out, _ = bench("compare b.json a.json --json")
    assert code == 0
    assert json.loads(out)["rows"][0]["finding"] == "faster"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("p2p --size big", "'big' is no size"),
        ("p2p --size 0", "at least 1 B"),
        ("p2p --links warp", "'warp' is no link"),
        ("p2p --device tpu", "is no device"),
        ("p2p --device gpu", "GPUs were asked for"),
        ("p2p --pair-timeout 0", "--pair-timeout"),
        ("p2p --ranks 1", "from 2 to"),
        ("host --windows 8:4:x2", "is no range"),
        ("host --samples 0", "--samples"),
        ("host --svg x.bmp", "no .svg"),
        ("host --time-budget nan", "--time-budget"),
        ("interference --links shm", "two lanes"),
        ("pages --pages ,", "is no size"),
        ("latency --messages 1", "--messages"),
        ("latency --op scatter", "'scatter'"),
        ("latency --dtype float7", "'float7'"),
        ("compute-overlap --against mpi", "'mpi' is no baseline"),
        ("compute-overlap --ranks 65", "from 2 to 64"),
        ("tp-block --model llama3-8b --ranks 3", "do not divide over 3 ranks"),
        ("tp-block --model deepseek-v3 --ranks 2", "try llama3-8b"),
        ("tp-block --within 5 --ranks 2", "bench tp-block: --within: '5'"),
        ("tp-block --layers 0 --ranks 2", "--layers"),
        ("tp-block --tokens 2000000 --ranks 2", "at most 1,048,576"),
        ("tp-block --ranks 2 --record missing.json", "missing.json"),
        ("replay nowhere.jsonl", "No such file"),
        ("compare nowhere.json x.json", "No such file"),
        ("compare nowhere.json x.json --tolerance much", "--tolerance"),
    ],
)
def test_bad_input_is_one_line(bench, line, said):
    code, out, err = bench(line)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    command = [sys.executable, "-m", "braid.cli", "bench", "host", "--device", "cpu"]
    command += ["--windows", "64KiB,64MiB", "--samples", "30"]
    record = tmp_path / "r.json"
    with subprocess.Popen(
        [*command, "--json", str(record)], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as running:
        for line in running.stderr:
            if line.startswith("case 2 of"):
                break
        running.send_signal(signal.SIGINT)
        running.stderr.read()
        assert running.wait(20) == 130
    kept = load(record)
    assert kept.stopped.startswith("interrupted in case")
    assert 1 <= len(kept.series) < 18


def test_a_record_of_a_tree_without_git_has_the_commit_that_is_said(bench, tmp_path, monkeypatch):
    """As one with changes: nobody can tell that there are none."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "host.json"
    bench(f"host --device cpu --windows 64KiB --samples 3 --commit abc1234 --json {path} --quiet")
    record = json.loads(path.read_text())
    assert (record["commit"], record["dirty"]) == ("abc1234", True)


@pytest.mark.parametrize("kind", ["", "latency", "moe"])
def test_ctrl_c_ends_a_rank_that_waits_for_others(kind):
    """`braid bench` noted it for a case at hand, and waited on: 30 s, where that rank had ended."""
    port = free_port()
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "BRAID_JOB_TOKEN": "t"}
    command = [sys.executable, "-m", "braid.cli", "bench", *kind.split()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **job}) as running:
        while running.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == -signal.SIGINT


def test_ctrl_c_ends_a_rank_whatever_it_imports():
    """Python's own handler raises, and weakrefs' callbacks among others swallow what is raised."""
    program = (
        "import signal, sys, braid.cli\n"
        "sys.argv = ['braid', 'topo', '--words', 'wrong']\n"
        "try: braid.cli.main()\n"
        "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)\n"
    )
    command = [sys.executable, "-c", program]
    alone = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    of_a_rank = {**alone, "RANK": "0", "WORLD_SIZE": "1"}
    assert subprocess.check_output(command, env=of_a_rank) == b"True\n"
    assert subprocess.check_output(command, env=alone) == b"False\n"

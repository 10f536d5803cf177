"""Paths and standard outputs that cannot be written: one line, exit code 2, nothing measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from braid.cli import main

BENCH = "bench --device cpu -n 2 --sizes 1KiB --iters 1"
COPIES = "bench host --device cpu --samples 3"


def run(words, **where):
    line = [sys.executable, "-m", "braid.cli", *words]
    return subprocess.run(line, stderr=subprocess.PIPE, text=True, timeout=100, **where)


@pytest.mark.parametrize(
    ("command", "option", "path", "why"),
    [
        (BENCH, "--json", "", "--json: . is a folder, a file is needed"),
        (BENCH, "--json", "/proc/x.json", "--json: /proc/x.json: cannot be written: "),
        (BENCH, "--svg", "/proc/x.svg", "--svg: /proc/x.svg: cannot be written: "),
        (COPIES, "--json", "/proc/x.json", "--json: /proc/x.json: cannot be written: "),
        (COPIES, "--svg", "/proc/x.svg", "--svg: /proc/x.svg: cannot be written: "),
        (BENCH, "--svg", "x.txt", "--svg: 'x.txt' is no .svg, .png or .pdf"),
        (COPIES, "--svg", "x.txt", "--svg: 'x.txt' is no .svg, .png or .pdf"),
        ("demo --device cpu", "--out", "/proc/x", "--out: /proc/x: cannot be made: "),
        (BENCH, "--json", "nowhere/x.json", "--json: nowhere/x.json: there is no folder nowhere"),
        (COPIES, "--svg", "nowhere/x.svg", "--svg: nowhere/x.svg: there is no folder nowhere"),
    ],
)
def test_a_path_is_refused_before_anything_is_measured(
    command, option, path, why, monkeypatch, capfd
):
    monkeypatch.setattr(sys, "argv", ["braid", *command.split(), option, path])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capfd.readouterr()
    assert stop.value.code == 2
    assert said.out == ""
    assert said.err.startswith(f"braid: {why}")
    assert said.err.count("\n") == 1


LONG = "a" * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"plan collective all_reduce 1MiB -n 8 --hw {LONG}", "is no "),
        (f"plan collective all_reduce 1MiB -n 8 --hw {LONG}.json", "File name too long"),
        (f"plan models {LONG}", "is no model"),
        (f"plan models {LONG}.json", "File name too long"),
        (f"run {LONG}.py", "run: there is no file a"),
        (f"bench --device cpu --json {LONG}/x.json", "cannot be written: File name too long"),
        (f"bench --device cpu --svg {LONG}.svg", "cannot be written: File name too long"),
        (f"bench engine --plain {LONG}", "--plain: there is no file"),
        ("plan collective all_reduce 1MiB -n 8 --hw /proc/self/mem", "Input/output error"),
    ],
)
def test_a_path_that_cannot_be_looked_at(words, said, monkeypatch, capfd):
    """pathlib's questions raise for names that are too long, and for a folder that another user has
    closed.
    """
    monkeypatch.setattr(sys, "argv", ["braid", *words.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    found = capfd.readouterr()
    assert (stop.value.code, found.out) == (2, "")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["topo --from FILE", "topo --json --from FILE", "plan models --json", "plan hw"]
)
def test_a_closed_standard_output_takes_nothing(words, tmp_path):
    file = tmp_path / "m.txt"
    file.write_text("LINK TYPE TABLE:\n   GPU0  GPU1\nGPU0  0  XGMI\nGPU1  XGMI  0\n")
    line = [sys.executable, "-m", "braid.cli", *words.replace("FILE", str(file)).split()]
    with_closed = ["sh", "-c", 'exec "$@" >&-', "sh", *line]
    done = subprocess.run(with_closed, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_that_the_terminal_has_no_letters_for(tmp_path):
    file = tmp_path / "\u00fc.json"
    config = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 100, "model_type": "llama",
    }  # fmt: skip
    file.write_text(json.dumps(config))
    known = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run(["plan", "models", str(file)], env=known, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "/?.json" in done.stdout


def test_a_record_that_cannot_be_saved_is_one_line(tmp_path):
    full = tmp_path / "full.json"
    full.symlink_to("/dev/full")
    words = f"{BENCH} --ops all_reduce --against none --json {full}"
    done = run(words.split(), stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "all_reduce" in done.stdout  # the table is not lost
    assert f"{full}: cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["options", "plan hw", "--help", "topo --json", COPIES])
def test_a_full_standard_output_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        done = run(words.split(), stdout=full)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[-1] == "braid: standard output: cannot be written: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--version", "options"])
def test_a_reader_that_left_is_told_nothing(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(words.split(), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "words", [f"{BENCH} --ops all_reduce --against none", "explain all_reduce 4KiB -n 2"]
)
def test_of_ranks_too(words):
    """Nobody hears that rank 0 ended: what it printed was not wanted."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run(words.split(), stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    for said in ("braid run", "PeerLost", "Traceback"):
        assert said not in done.stderr, done.stderr


def test_a_pipe_gets_one_whole_record(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        done = run([*COPIES.split(), "--json", str(pipe)], stdout=subprocess.PIPE)
        found = reader.communicate(timeout=10)[0]
    assert done.returncode == 0, done.stderr
    assert json.loads(found)["kind"] == "host"

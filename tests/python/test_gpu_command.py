"""`braid bench` on GPUs: arguments, deadlines, interrupts, and a whole run on stand-ins."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from braid.bench import command, gpus, suite
from braid.bench.command import Asked, Refused
from braid.bench.deadline import EXIT_CODE, Deadlines
from braid.bench.interrupt import Interrupt
from braid.bench.no_multicast import NO_MULTICAST, forbid_multicast
from braid.bench.request import mode_of
from braid.errors import InvalidArgument

ASKED = Asked(
    device="auto", suite="", ops=["all_gather"], sizes=[1 << 20], ranks=0, dtype="", redop="sum",
    mode="auto", baselines="all", variants="none", samples=9, time_budget_s=0, options={},
    json_path=None, svg_path=None, commit="", quiet=False, host_only=[],
)  # fmt: skip


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(4))


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_used_when_they_are_there():
    assert command.gpus_to_use(ASKED) == 4
    assert command.gpus_to_use(replace(ASKED, device="cpu")) == 0
    assert command.gpus_to_use(replace(ASKED, host_only=["--pace"])) == 0
    assert command.gpus_to_use(replace(ASKED, suite="flexlink")) == 4
    with pytest.raises(Refused, match="--pace: this is for links between CPUs"):
        command.gpus_to_use(replace(ASKED, device="gpu", host_only=["--pace"]))
    with pytest.raises(Refused, match="the suites are for GPUs"):
        command.gpus_to_use(replace(ASKED, device="cpu", suite="flexlink"))


def test_what_was_asked_reaches_the_ranks():
    assert not command.request_of(ASKED).by_rank
    assert command.request_of(replace(ASKED, by_rank=True)).by_rank
    request = command.request_of(replace(ASKED, calls=7, launches=3, root=1))
    assert (request.calls, request.launches, request.root) == (7, 3, 1)
    assert {task.mode for task in request.tasks} == {"graph"}
    plain = command.request_of(replace(ASKED, launches=0))
    assert (plain.launches, {task.mode for task in plain.tasks}) == (2, {"eager"})


@pytest.mark.parametrize(
    ("mode", "launches", "found"),
    [
        ("auto", None, "auto"), ("auto", 3, "graph"), ("auto", 0, "eager"), ("both", 3, "both"),
        ("graph", 3, "graph"), ("eager", 0, "eager"), ("eager", None, "eager"),
        ("eager", 3, None), ("graph", 0, None), ("both", 0, None),
    ],
)  # fmt: skip
def test_graphs_and_modes(mode, launches, found):
    if found:
        assert mode_of(mode, launches) == found
        return
    with pytest.raises(ValueError, match=f"--cudagraph {launches} and --mode {mode} contradict"):
        mode_of(mode, launches)


def test_a_root_must_be_a_rank(monkeypatch):
    monkeypatch.setattr(command, "launch", lambda *_a, **_k: 0)
    assert command.run(replace(ASKED, root=3), 4) == 0
    for root, count in ((4, 4), (-1, 4), (2, 2)):
        with pytest.raises(InvalidArgument, match=f"asked for {root}, ranks are 0 to {count - 1}"):
            command.run(replace(ASKED, root=root), count)


@pytest.mark.parametrize(
    ("tasks", "begins"), [("8", "a rank"), ("1", "a launch"), ("", "a launch")]
)
def test_tasks_of_slurm_are_ranks(tasks, begins, monkeypatch):
    """Each would start a job on all GPUs. An interactive shell is a task, too, and the only one; a
    batch script is none.
    """
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", tasks or "8")
    if tasks:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    begun = []
    monkeypatch.setattr(command, "launch", lambda *_a, **_k: begun.append("a launch") or 0)
    monkeypatch.setattr(command, "_be_rank", lambda _: begun.append("a rank") or 0)
    assert command.run(ASKED, 4) == 0
    assert begun == [begins]


def test_a_size_that_is_cut_is_said_once_for_all_modes(monkeypatch, capsys):
    monkeypatch.setattr(command, "launch", lambda *_a, **_k: 0)
    one = replace(ASKED, ops=["all_reduce"], sizes=[1000], mode="both")
    assert command.run(one, 2) == 0
    words = "all_reduce of 1,000 B is measured at 992 B, in whole elements"
    assert capsys.readouterr().err == f"braid: {words}\n"


@pytest.mark.usefixtures("no_gpus")
def test_without_gpus_the_cpu_twin_is_measured():
    assert command.gpus_to_use(ASKED) == 0
    for asked in (replace(ASKED, device="gpu"), replace(ASKED, suite="flexlink")):
        with pytest.raises(Refused, match="GPUs were asked for, but there is none"):
            command.gpus_to_use(asked)


def test_one_gpu_is_not_enough(monkeypatch):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(1))
    assert command.gpus_to_use(ASKED) == 0
    with pytest.raises(Refused, match="a collective needs two"):
        command.gpus_to_use(replace(ASKED, device="gpu"))


SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}


def test_a_rank_of_a_launch_needs_its_own_gpu_alone(monkeypatch):
    """As tasks of `srun --gpus-per-task=1` see it; CPUs were measured without a word."""
    monkeypatch.delenv("RANK", raising=False)
    for name, text in SLURM.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(1))
    monkeypatch.setattr(command, "launch", lambda *_a, **_k: pytest.fail("something started"))
    monkeypatch.setattr(command, "_be_rank", lambda _: 0)
    for device in ("auto", "gpu"):
        asked = replace(ASKED, device=device)
        assert command.gpus_to_use(asked) == 1
        assert command.run(asked, 1) == 0
    assert command.gpus_to_use(replace(ASKED, device="cpu")) == 0
    assert command.gpus_to_use(replace(ASKED, host_only=["--pace"])) == 0


RANK = "from braid.bench import gpus; raise SystemExit(10 + gpus.needed(2))"


def test_ranks_that_bench_starts_need_what_it_needs_itself():
    """On a machine with one GPU it has told them to measure CPUs; torchrun's have heard nothing."""
    rank = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    assert subprocess.run([sys.executable, "-c", RANK], env=rank, timeout=60).returncode == 11
    line = [sys.executable, "-c", RANK]
    with gpus.starting_ranks():
        assert command.launch(line, 2) == 12
        assert gpus.needed(2) == 2
    assert command.launch(line, 2) == 11


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "lazy"}, "--mode: 'lazy' is no mode"),
        ({"redop": "max"}, "--op: baselines on GPUs add"),
        ({"dtype": "float8"}, "--dtype: 'float8' is none of bfloat16"),
        ({"baselines": "gloo"}, "'gloo' is no baseline"),
        ({"variants": "x"}, "'x' is no variant"),
        ({"mode": "eager", "launches": 2}, "--cudagraph 2 and --mode eager contradict"),
        ({"suite": "flexlink", "root": 0}, "its figures are for its own calls; leave -m, -G"),
        ({"suite": "flexlink", "calls": 1}, "its figures are for its own calls; leave -m, -G"),
        ({"suite": "flexlink", "launches": 0}, "its figures are for its own calls; leave -m"),
        ({"ranks": 5}, "asked for 5, this machine has 4 GPUs"),
        ({"ranks": 1}, "a collective needs two"),
        ({"ranks": 9}, "GPUs of one node are 8"),
        ({"suite": "nothing"}, "'nothing' is no suite; braid has flexlink"),
        ({"suite": "flexlink", "baselines": "x"}, "is no baseline"),
    ],
)
def test_wrong_arguments_are_found_before_anything_starts(change, words, monkeypatch):
    monkeypatch.setattr(command, "launch", lambda *_a, **_k: pytest.fail("something started"))
    with pytest.raises(Refused, match=words):
        command.run(replace(ASKED, **change), 4)


def test_command_line_says_why_there_is_no_gpu():
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "bench", "--suite", "flexlink"],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("braid: bench: GPUs were asked for, but ")
    assert len(done.stderr.splitlines()) == 1


def test_suite_launches_every_rank_count(monkeypatch, tmp_path, capsys):
    started = []

    def start(ranks, more):
        started.append((ranks, os.environ.get("BRAID_LINK_CAP"), more[more.index("--json") + 1]))
        return 0

    monkeypatch.setattr(suite, "start", start)
    monkeypatch.setattr(suite, "_load", lambda _path: None)
    asked = replace(ASKED, suite="flexlink", json_path=tmp_path / "f.json", time_budget_s=100)
    assert suite.run(asked, 4) == 0
    assert [(ranks, cap) for ranks, cap, _ in started] == [(2, None), (4, None)]
    assert started[1][2] == str(tmp_path / "f_4.json")
    assert "0 of 0 measured figures" in capsys.readouterr().out


def test_suite_holds_nvlink_when_the_build_can(monkeypatch, tmp_path):
    from gpu_fakes import record

    started = []
    monkeypatch.setattr(
        suite, "start", lambda n, _more: started.append((n, os.environ.get("BRAID_LINK_CAP"))) or 0
    )
    monkeypatch.setattr(suite, "_load", lambda _path: record([]))
    monkeypatch.setattr(suite, "_knows_cap", lambda: True)
    asked = replace(ASKED, suite="flexlink", json_path=tmp_path / "f.json", ranks=4)
    assert suite.run(asked, 4) == 0
    assert started == [(4, None), (4, "nvlink:147")]
    assert "BRAID_LINK_CAP" not in os.environ


def test_a_step_that_takes_too_long_ends_the_rank():
    said = []
    deadlines = Deadlines(2, lambda words, code: said.append((words, code)))
    with deadlines.step("quick", 60):
        pass
    with deadlines.step("slow", 0.05):
        time.sleep(1)
    deadlines.close()
    assert said == [("braid bench: rank 2: slow: not done after 0.05 s; giving up\n", EXIT_CODE)]


def test_steps_nest_and_optional_ones_are_no_failure():
    said = []
    deadlines = Deadlines(0, lambda words, code: said.append((words, code)))
    with deadlines.step("optional", 60, exit_code=0), deadlines.step("inner", 0.05):
        time.sleep(1)
    deadlines.close()
    assert [code for _, code in said] == [0]
    assert "inner" in said[0][0]


def test_interrupt_is_remembered_once():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as stop:
        assert not stop.asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked()
    assert signal.getsignal(signal.SIGINT) is before


def test_multicast_is_forbidden(monkeypatch):
    monkeypatch.setenv(NO_MULTICAST, "0")
    forbid_multicast()
    assert os.environ[NO_MULTICAST] == "1"


def test_no_operation_that_needs_multicast_is_named():
    folder = Path(command.__file__).parent
    for path in folder.glob("*.py"):
        for line in path.read_text().splitlines():
            assert "ops.multimem" not in line, path

"""A whole run of the GPU benchmark, with CPU tensors and Gloo in place of GPUs and NCCL."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import gpu_fakes  # noqa: E402
from gpu_fakes import Alone, Runner  # noqa: E402

from braid.bench import symmetric, timer  # noqa: E402
from braid.bench.contestant import Shelf  # noqa: E402
from braid.bench.deadline import EXIT_CODE  # noqa: E402
from braid.bench.nccl import Nccl  # noqa: E402
from braid.bench.pattern import Data  # noqa: E402
from braid.bench.session import of_runs  # noqa: E402
from braid.bench.verdict import wrong_bytes  # noqa: E402
from braid.cases.gpu import GpuCase, growth  # noqa: E402
from braid.cases.operations import OPS  # noqa: E402
from braid.record import gpu as gpu_record  # noqa: E402

STAND_IN = Path(__file__).with_name("gpu_stand_in.py")


def run(record, how=""):
    return subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(STAND_IN), str(record), how],
        capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "BRAID_TUNE": "off"},
    )  # fmt: skip


def test_ranks_that_have_one_gpu_together_are_refused(tmp_path):
    """Each sees one, as where its launcher shows it its own alone."""
    done = run(tmp_path / "r.json", "shared")
    assert done.returncode == 1
    assert "bench: ranks 0 and 1 have the same GPU: start one rank for each GPU" in done.stderr


def test_a_run_measures_whoever_is_there(tmp_path):
    done = run(tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    made = gpu_record.load(tmp_path / "r.json")
    wanted = [(op, n, "eager") for op in OPS for n in (992, 1 << 18)]
    assert [(r.op, r.bytes, r.mode) for r in made.results] == [
        *wanted,
        ("all_gather", 4096, "graph"),
    ]
    assert "without all_gather 1 TiB eager: its buffers do not fit" in done.stdout
    for result in made.results:
        assert {run.who for run in result.runs} == {"braid", "nccl", "braid unregistered"}
        assert all(len(run.samples_us) == 3 and run.wrong == 0 for run in result.runs)
        assert [run.bursts for run in result.runs] == [2, 2, 2]
        for run_of in result.runs:
            assert run_of.wire_gbps is not None
            assert run_of.algbw_gbps is not None
            assert [one.p50_us for one in run_of.by_rank] == run_of.by_rank_us
            assert len(run_of.by_rank) == 2
            slowest = max(one.p95_us for one in run_of.by_rank)
            assert slowest <= max(run_of.samples_us) + 0.002
        assert "braid host" in result.absent
        assert (result.path, result.host_share) == ("copy engines", 0.1)
    assert (tmp_path / "r.svg").exists()
    assert "in force: BRAID_TUNE=off" in done.stdout
    assert "BRAID_JOB_TOKEN" not in done.stdout
    for name in ("nccl 32 ctas", "nccl symmetric", "nccl zero-cta", "symm copies"):
        assert f"without {name}: " in done.stdout
    assert not made.stopped
    assert "broadcast 256 KiB eager, braid unregistered" in done.stdout  # ranks were asked for


def test_a_wrong_byte_of_anybody_is_seen_everywhere(tmp_path):
    done = run(tmp_path / "r.json", "lie")
    assert done.returncode == 1
    for result in gpu_record.load(tmp_path / "r.json").results:
        wrong = {run.who: run.wrong for run in result.runs}
        found = wrong.pop("nccl")
        assert wrong == {"braid": 0, "braid unregistered": 0}
        # The checked call, the burst on a soiled result, the last timed one; in place more follows.
        assert found == 3 or (result.op == "all_reduce" and found > 3)
    assert "WRONG 3" in done.stdout


def test_a_burst_that_does_nothing_is_wrong(tmp_path):
    """Eager and in a graph. What was left by the checked call is right, byte for byte."""
    done = run(tmp_path / "r.json", "lazy")
    assert done.returncode == 1
    results = gpu_record.load(tmp_path / "r.json").results
    assert {result.mode for result in results} == {"eager", "graph"}
    for result in results:
        wrong = {run.who: run.wrong for run in result.runs}
        assert wrong.pop("nccl") > result.total_bytes / 4, result.op
        assert set(wrong.values()) == {0}


def test_a_setting_that_failed_everywhere_is_none_of_the_record():
    """All of them were listed as if they had run."""
    told = {"nccl symmetric": "windows", "nccl zero-cta": "the same, by copy engines"}
    results = [gpu_fakes.result("all_gather", 1024, braid=3.0, nccl_symmetric=4.0)]
    assert of_runs(told, results) == {"nccl symmetric": "windows"}


def test_nccl_has_its_windows_where_they_help():
    contestant = Nccl("nccl symmetric", "nccl-best", None, None, None, symmetric=True)
    assert [op for op in OPS if contestant.is_for(op)] == [
        "all_gather", "all_reduce", "reduce_scatter", "all_to_all"
    ]  # fmt: skip


def test_calls_launches_and_root_as_asked(tmp_path):
    done = run(tmp_path / "r.json", "asked")
    assert done.returncode == 0, done.stderr
    results = gpu_record.load(tmp_path / "r.json").results
    assert {result.calls_per_sample for result in results} == {7}
    assert [result.launches for result in results if result.mode == "graph"] == [3]
    assert {result.root for result in results if result.op == "broadcast"} == {0}
    assert {result.root for result in results if result.op != "broadcast"} == {None}
    assert not wrong_bytes(results)


def test_a_graph_is_launched_as_often_as_asked(monkeypatch):
    launches = []
    graphed = timer.Graphed(Alone(), 3)
    graphed._graphs["x"] = SimpleNamespace(replay=lambda: launches.append(1))
    monkeypatch.setattr(timer, "_between_events", lambda _crew, burst, _meet: burst() or 420.0)
    assert graphed.counts(7) == (7, 21)
    case = GpuCase.of("all_reduce", 1024, "int8", 2)
    runner = Runner("x")
    runner.load = lambda _case: None
    assert graphed.sample_us(runner, case, 7) == 20.0
    assert len(launches) == 3


def test_a_rank_that_hangs_ends_the_run(tmp_path):
    begin_s = time.monotonic()
    done = run(tmp_path / "r.json", "slow")
    assert done.returncode == EXIT_CODE
    assert "giving up" in done.stderr
    assert time.monotonic() - begin_s < 60


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    done = run(tmp_path / "r.json", "interrupt")
    made = gpu_record.load(tmp_path / "r.json")
    assert made.stopped.startswith("interrupted in case ")
    assert made.results[0].bytes == 992
    assert done.returncode == 130
    assert "stopped: interrupted" in done.stdout


def test_a_pipe_gets_one_whole_record(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        done = run(pipe)
        found = reader.communicate(timeout=10)[0]
    assert done.returncode == 0, done.stderr
    assert len(json.loads(found)["results"]) == 2 * len(OPS) + 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int8", "uint8"])
def test_data_is_checked_byte_by_byte(dtype):
    data = Data(dtype, 1, 3, torch.device("cpu"))
    case = GpuCase.of("all_gather", 6_000_000, dtype, 3)
    out = torch.empty(case.out_count, dtype=data.dtype)
    for rank in range(3):
        data.fill(out[rank * case.count : (rank + 1) * case.count], rank)
    assert data.wrong_bytes(case, out) == 0
    out.view(torch.uint8)[[7, 70_000, -1]] ^= 1
    assert data.wrong_bytes(case, out) == 3
    data.soil(out)
    assert data.wrong_bytes(case, out) > 0.9 * out.numel()


@pytest.mark.parametrize(
    ("dtype", "ranks", "calls"),
    [
        ("bfloat16", 2, 21), ("bfloat16", 8, 40), ("float16", 2, 11), ("float32", 3, 8),
        ("float64", 5, 9), ("int8", 3, 30), ("uint8", 2, 9), ("int32", 7, 50), ("int64", 3, 60),
    ],
)  # fmt: skip
def test_sums_in_place_grow_as_they_are_told_to(dtype, ranks, calls):
    """Added one by one, in any order."""
    case = GpuCase.of("all_reduce", 4096, dtype, ranks)
    data = Data(dtype, 0, ranks, torch.device("cpu"))
    total = torch.zeros(case.count, dtype=data.dtype)
    for rank in range(ranks):
        operand = torch.empty_like(total)
        data.fill(operand, rank)
        total += operand
    for _ in range(calls - 1):
        sources = [total.clone() for _ in range(ranks)]
        total.zero_()
        for source in sources:
            total += source
    factor = growth(case, calls)
    assert factor == ranks ** (calls - 1)
    assert data.wrong_bytes(case, total, factor) == 0
    if dtype == "int8" and ranks == 3:
        assert data.wrong_bytes(case, total, growth(case, calls + 1)) > 100


@pytest.mark.parametrize(
    ("dtype", "ranks", "calls"),
    [("bfloat16", 8, 60), ("bfloat16", 3, 4), ("float16", 2, 13), ("float32", 3, 40)],
)
def test_sums_in_place_that_a_type_cannot_hold_are_not_told(dtype, ranks, calls):
    assert growth(GpuCase.of("all_reduce", 4096, dtype, ranks), calls) is None
    assert growth(GpuCase.of("all_reduce", 4096, dtype, ranks), 1) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_sums_are_exact_in_every_order(dtype):
    ranks = 8
    case = GpuCase.of("reduce_scatter", 100_000, dtype, ranks)
    data = Data(dtype, 5, ranks, torch.device("cpu"))
    total = torch.zeros(case.send_count, dtype=data.dtype)
    for rank in reversed(range(ranks)):
        operand = torch.empty_like(total)
        data.fill(operand, rank)
        total += operand
    mine = total[5 * case.count : 6 * case.count]
    assert data.wrong_bytes(case, mine) == 0
    assert data.wrong_bytes(case, total[: case.count]) > 0


def test_what_one_symmetric_contestant_leaves_is_nobody_elses_operand(monkeypatch):
    """two-shot's sums in place were what one-shot sent next, so its bursts compared as wrong."""
    world = SimpleNamespace(WORLD=SimpleNamespace(group_name="world"))
    monkeypatch.setattr(symmetric, "dist", SimpleNamespace(group=world))
    shelves = [
        Shelf(lambda nbytes: (torch.empty(nbytes, dtype=torch.uint8), lambda: None))
        for _ in range(4)
    ]
    case = GpuCase.of("all_reduce", 1 << 10, "bfloat16", 2, "graph")
    data = Data(case.dtype, 0, 2, torch.device("cpu"))
    players = [each for each in symmetric.all_kinds(*shelves) if each.is_for(case.op)]
    assert {each.name for each in players} == {"symm one-shot", "symm two-shot"}
    for each in players:
        each.prepare(case, data, 0)
    sent = {each.name: each.send.clone() for each in players}
    for each in players:
        data.soil(each.out)
    for each in players:
        assert torch.equal(each.send, sent[each.name]), each.name

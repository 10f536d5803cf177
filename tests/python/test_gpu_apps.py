"""tests/gpu/apps: what runs programs of others by NCCL and by braid, with stand-ins for both."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from braid.record.probe import from_json

APPS = Path(__file__).parents[1] / "gpu" / "apps"
sys.path.insert(0, str(APPS))
import sheet_of_apps  # noqa: E402

PROGRAM = """
import json, os, sys, time
from pathlib import Path

losses = {losses}
is_braid = "VLLM_NCCL_SO_PATH" in os.environ
{more}
told = {{
    "what": "Stand-in 1.0", "device": "", "parameters": 5, "checked": 7, "wrong": {wrong},
    "losses": [loss.hex() for loss in losses], "times_us": {{"step": [2000.0, 3000.0, 4000.0]}},
}}
Path(sys.argv[sys.argv.index("--out") + 1].replace("%r", os.environ["RANK"])).write_text(
    json.dumps(told)
)
"""
COUNTS = """
#include <stddef.h>
#include <stdint.h>
size_t braid_nccl_counts(uint64_t *taken, uint64_t *handed_on, size_t room) {
  for (size_t i = 0; i < room; ++i) taken[i] = TAKEN * (i == 1), handed_on[i] = i == 5;
  return room;
}
"""


@pytest.fixture
def apps(monkeypatch):
    """The driver, anew for every test."""
    spec = importlib.util.spec_from_file_location("apps_run", APPS / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "apps_run", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drop_in(tmp_path_factory):
    """A library that only counts, by what it says was taken over: compiled once each."""

    @cache
    def compiled(taken) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("skipped: needs a C compiler")
        folder = tmp_path_factory.mktemp("counts")
        (folder / "counts.c").write_text(COUNTS)
        path = folder / "libcounts.so"
        command = [compiler, "-shared", "-fPIC", f"-DTAKEN={taken}", "-o", str(path)]
        subprocess.run([*command, str(folder / "counts.c")], check=True)
        return path

    return compiled


@pytest.fixture
def tried(apps, drop_in, monkeypatch, tmp_path, capsys):
    """Runs one stand-in both ways; its exit code, what was printed, and the record."""

    def body(
        losses="[3.0, 2.5, 2.0]", more="", wrong="0", taken=9, needs="json", *options, **fields
    ):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM.format(losses=losses, more=more, wrong=wrong))
        program = apps.Program(
            "fake", "Stand-in", needs, (str(script),), "VLLM_NCCL_SO_PATH", **fields
        )  # LD_PRELOAD would be in the tests' own tools as well
        monkeypatch.setattr(apps, "PROGRAMS", (program,))
        monkeypatch.setattr(apps, "DROP_IN", drop_in(taken))
        path = tmp_path / "apps.json"
        words = ["run.py", "--logs", str(tmp_path / "logs"), "--json", str(path), *options]
        monkeypatch.setattr(sys, "argv", words)
        code = apps.main()
        return code, capsys.readouterr().out, from_json(json.loads(path.read_text()))

    return body


def test_equal_losses_and_calls_taken_over_are_right(tried):
    code, said, record = tried()
    assert code == 0, said
    assert "Stand-in 1.0: right: losses of 2 ranks equal to the bit in 3 of 3 steps" in said
    assert "step 3.000 ms by NCCL, 3.000 by braid" in said
    assert "taken over by rank 0: all_gather 9; handed on by rank 0: send 1" in said
    assert (record.kind, record.is_bad) == ("apps", False)
    assert {(one.group, one.case) for one in record.series} == {
        ("Stand-in: step", "nccl"),
        ("Stand-in: step", "braid"),
    }
    assert record.figures["Stand-in: calls taken over"] == 9
    assert record.figures["Stand-in: steps with losses equal to the bit on all ranks"] == 3
    assert record.figures["Stand-in: step: nccl / braid"] == 1


def test_a_process_that_has_all_gpus_is_started_once_and_sees_as_many_as_asked(tried, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = "assert (os.environ['WORLD_SIZE'], os.environ['CUDA_VISIBLE_DEVICES']) == ('1', '0,1,2')"
    code, said, _ = tried(
        "[3.0, 2.5]", f"import os; {seen}", "0", 9, "json", "-n", "3", is_one_process=True
    )
    assert code == 0, said


def test_a_last_bit_is_wrong_between_two_ranks(tried):
    code, said, record = tried(more="losses[1] += 2**-51 * is_braid")
    assert code == 1
    assert "WRONG: losses differ by 4.44e-16, allowed 0" in said
    assert "NCCL against itself 0" in said
    assert record.figures["Stand-in: wrong"] == 1


def test_close_is_enough_where_nccl_differs_from_itself(tried):
    code, said, record = tried(more="losses[1] += time.time_ns() % 1e9 * 1e-13")
    assert code == 0, said
    assert record.figures["Stand-in: largest gap of NCCL from itself"] > 0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"losses": "[2.0, 2.5]"}, "braid: the loss does not fall"),
        ({"losses": "[float('nan'), 2.0]"}, "losses differ by inf"),
        ({"wrong": "is_braid * 2"}, "braid: 4 wrong results"),
        ({"taken": 0}, "braid took nothing over"),
        ({"more": "if is_braid: print('here it broke'); sys.exit(3)"}, "braid: exit code 3"),
        ({"more": "if is_braid: sys.exit(0)"}, "braid: ended without a word"),
    ],
)
def test_what_is_wrong_is_said(tried, what, said):
    code, printed, record = tried(**what)
    assert code == 1
    assert f"WRONG: {said}" in printed or f"; {said}" in printed
    assert record.figures["Stand-in: wrong"] >= 1
    assert "here it broke" in printed or "here it broke" not in what.get("more", "")


def test_a_program_that_hangs_is_ended_and_says_where(tried, tmp_path):
    limited = ("[3.0, 2.0]", "if is_braid: time.sleep(99)", "0", 9, "json", "--limit", "4")
    code, said, record = tried(*limited)
    assert code == 1
    assert "braid: did not end in 4 s" in said
    assert [one.verdict for one in record.series if one.case == "braid"] == ["hang"]
    assert "time.sleep" in (tmp_path / "program.py").read_text()
    assert 'program.py", line' in (tmp_path / "logs" / "fake.braid.log").read_text()


def test_what_is_not_installed_is_skipped_by_name(tried):
    code, said, record = tried(needs="no_such_module")
    assert code == 1  # nothing was compared
    assert "fake: skipped: no_such_module is not installed" in said
    assert [(one.group, one.verdict) for one in record.series] == [("Stand-in", "unsupported")]


def test_without_time_nothing_is_started(tried):
    code, said, _ = tried("[3.0, 2.0]", "", "0", 9, "json", "--budget", "1")
    assert code == 1
    assert "fake: skipped: no time left, 1 s were given" in said


def test_no_way_names_another_programs_library(apps, monkeypatch):
    """Calls would be asked of that one."""
    names = {program.variable for program in apps.PROGRAMS}
    for name in names:
        monkeypatch.setenv(name, "/somewhere/else.so")
    for program in apps.PROGRAMS:
        assert not names & apps.environment(program, "nccl", 20, 2).keys()
        found = names & apps.environment(program, "braid", 20, 2).keys()
        assert found <= {program.variable}


def test_a_name_that_is_not_there_is_one_line(apps, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "x"])
    with pytest.raises(SystemExit) as ended:
        apps.main()
    assert ended.value.code == 2
    assert "--only: asked for 'x'" in capsys.readouterr().err


def test_every_program_is_there(apps):
    assert all(Path(program.command[0]).exists() for program in apps.PROGRAMS)
    assert sheet_of_apps.device_of([], 2) == ""


LAYER = """
import os
import torch
import torch.distributed as dist

IS_WRONG = "LAYER_WRONG" in os.environ

class PyNcclCommunicator:
    # vLLM's interface, by Gloo; its calls can be made wrong.
    def __init__(self, group, device):
        self.available, self.disabled, self.queue = True, True, None

    def _spoil(self, tensor):
        if IS_WRONG and tensor.numel() > 1000:
            tensor[1000] += 1

    def all_reduce(self, source, result, op=dist.ReduceOp.SUM):
        result.copy_(source)
        dist.all_reduce(result, op)
        self._spoil(result)

    def all_gather(self, out, own):
        dist.all_gather(list(out.chunk(dist.get_world_size())), own)
        self._spoil(out)

    def all_gatherv(self, out, own, sizes):
        for rank, part in enumerate(out.split(sizes)):
            part.copy_(own if rank == dist.get_rank() else part)
            dist.broadcast(part, rank)

    def reduce_scatter(self, out, own, op=dist.ReduceOp.SUM):
        whole = own.clone()
        dist.all_reduce(whole, op)
        out.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])
        self._spoil(out)

    def reduce_scatterv(self, out, own, sizes):
        whole = own.clone()
        dist.all_reduce(whole)
        out.copy_(whole.split(sizes)[dist.get_rank()])

    def broadcast(self, tensor, src):
        dist.broadcast(tensor, src)
        self._spoil(tensor)

    def group_start(self):
        self.queue = []

    def group_end(self):
        queue, self.queue = self.queue, None
        for work in [post(tensor, peer) for post, tensor, peer in queue]:
            work.wait()

    def send(self, tensor, peer):
        self._post(dist.isend, tensor, peer)

    def recv(self, tensor, peer):
        self._post(dist.irecv, tensor, peer)

    def _post(self, post, tensor, peer):
        if self.queue is None:
            post(tensor, peer).wait()
        else:
            self.queue.append((post, tensor, peer))
"""


def layer_run(folder, **more):
    """pynccl.py on two ranks with a stand-in of vLLM's class."""
    package = folder / "vllm" / "distributed" / "device_communicators"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "vllm" / "__init__.py").write_text("__version__ = '0'\n")
    (package / "pynccl.py").write_text(LAYER)
    found = {**os.environ, **more}
    found["PYTHONPATH"] = os.pathsep.join([str(folder), found.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(APPS / "pynccl.py"), "vllm"]
    command += ["--cpu", "--out", str(folder / "told.%r.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=found, check=False, timeout=300
    )
    told = [json.loads((folder / f"told.{rank}.json").read_text()) for rank in range(2)]
    return done.returncode, done.stdout + done.stderr, told


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="skipped: needs torch")
@pytest.mark.parametrize("more", [{}, {"LAYER_WRONG": "1"}])
def test_every_call_of_a_layer_is_checked(tmp_path, more):
    code, said, told = layer_run(tmp_path, **more)
    assert all(one["checked"] > 100 and not one["raised"] for one in told), said
    assert code == len(more), said
    assert all(bool(one["wrong"]) == bool(more) for one in told)
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        assert (f"WRONG {name} " in said) == bool(more)

"""The baseline `mscclpp`: a library with NCCL's names is opened, called and measured."""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpu_fakes import Alone, record, result  # noqa: E402
from test_gpu_command import ASKED  # noqa: E402

from braid.bench import flexlink, gpus, mscclpp, suite  # noqa: E402
from braid.bench.command import Refused, gpus_to_use, request_of  # noqa: E402
from braid.bench.deadline import Deadlines  # noqa: E402
from braid.bench.flexlink_rows import rows  # noqa: E402
from braid.bench.pattern import Data  # noqa: E402
from braid.bench.roster import Roster  # noqa: E402
from braid.cases.gpu import GpuCase  # noqa: E402
from braid.record import gpu as gpu_record  # noqa: E402

HERE = Path(__file__).parent
CPU = torch.device("cpu")
MIB = 1 << 20


def compiled(folder, name, *sources):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = folder / name
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         *map(str, sources), "-o", str(made)],
        check=True,
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mscclpp")
    return compiled(folder, "libmscclpp_nccl.so", HERE / "fake_mscclpp.c")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What a test sets is gone after it."""
    for name in ("MSCCLPP_FORCE_DISABLE_NVLS", "MSCCLPP_NCCL_LIB_PATH", *mscclpp._DEFAULTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)


def test_the_environment_wins_but_for_multicast(monkeypatch):
    monkeypatch.setenv("MSCCLPP_FORCE_DISABLE_NVLS", "0")
    monkeypatch.setenv("MSCCLPP_NCCL_LIB_PATH", "")
    mscclpp.set_environment()
    assert os.environ["MSCCLPP_FORCE_DISABLE_NVLS"] == "1"
    assert os.environ["MSCCLPP_NCCL_LIB_PATH"] == ""
    assert os.environ["MSCCLPP_SOCKET_IFNAME"] == "lo"


def test_torchs_nccl_is_found_among_what_is_loaded(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12 /x/braid/libbraid-nccl.so\n"
        "7f01-7f02 rw-p 00000000 00:00 0\n"
        "7f02-7f03 r--p 00000000 08:01 13 /x/nvidia/nccl/lib/libnccl.so.2\n"
    )
    assert mscclpp.loaded_nccl(maps) == "/x/nvidia/nccl/lib/libnccl.so.2"
    maps.write_text("7f01-7f02 rw-p 00000000 00:00 0\n")
    assert mscclpp.loaded_nccl(maps) == ""


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_rank_alone_gets_its_own_data(library, op):
    opened = mscclpp.open_library(str(library))
    opened.join(Alone())
    send, out = (mscclpp.lasting_shelf(CPU) for _ in range(2))
    contestant = mscclpp.Mscclpp(opened, send, out)
    data = Data("bfloat16", 0, 1, CPU)
    for nbytes in (1024, 64 << 10):
        case = GpuCase.of(op, nbytes, "bfloat16", 1)
        contestant.prepare(case, data, 0)
        contestant.soil(case, data, 0)
        assert data.wrong_bytes(case, contestant.result()) > 0
        contestant.run()
        assert data.wrong_bytes(case, contestant.result()) == 0
        contestant.let_go()
    opened.leave()
    opened.leave()  # there is nothing left to end


def test_errors_have_the_librarys_words(library):
    mscclpp.set_environment()
    opened = mscclpp.Library(str(library))
    opened.join(Alone())
    with pytest.raises(RuntimeError, match=r"ncclAllReduce: invalid argument \(4\)"):
        opened.enqueue("all_reduce", "float32", 8, 0, 0, 0)
    opened.leave()
    with pytest.raises(OSError, match="cannot open"):
        mscclpp.Library(str(library.parent / "nothing.so"))


def test_a_library_that_is_none_costs_a_line(library, monkeypatch):
    roster = Roster.__new__(Roster)
    roster.contestants, roster.missing, roster.settings = [], {}, {}
    roster._crew, roster._device, roster._deadlines = Alone(), CPU, Deadlines(0)
    roster._open_mscclpp("/nowhere/libmscclpp_nccl.so")
    assert roster.missing["mscclpp"].startswith("OSError: /nowhere/libmscclpp_nccl.so: cannot open")
    assert roster.contestants == []
    with monkeypatch.context() as changed:
        changed.setattr(mscclpp, "set_environment", lambda: None)
        changed.setenv("MSCCLPP_FORCE_DISABLE_NVLS", "0")  # which the library refuses
        roster._open_mscclpp(str(library))
    assert roster.missing["mscclpp"] == "RuntimeError: ncclCommInitRank: invalid argument (4)"
    roster._open_mscclpp(str(library))
    assert [one.name for one in roster.contestants] == ["mscclpp"]
    roster._mscclpp.leave()
    roster._deadlines.close()


def test_nobody_elses_functions_are_called(tmp_path):
    """Another library of the process may have the same names, as NCCL has."""
    (tmp_path / "decoy.c").write_text("int fake_number(void) { return 1; }\n")
    decoy = compiled(tmp_path, "decoy.so", tmp_path / "decoy.c")
    ctypes.CDLL(str(decoy), mode=ctypes.RTLD_GLOBAL)
    later = compiled(tmp_path, "later.so", HERE / "fake_mscclpp.c")
    assert mscclpp.Library(str(later)).version == "900"


def test_memory_stays_where_it_is():
    shelf = mscclpp.lasting_shelf(CPU)
    first = shelf.take(1024, torch.uint8).data_ptr()
    shelf.drop()
    assert shelf.take(8 * MIB, torch.uint8).data_ptr() == first
    with pytest.raises(ValueError, match="asked for"):
        shelf.take(65 * MIB, torch.uint8)


def test_cases_that_are_none_of_its(library):
    contestant = mscclpp.Mscclpp(mscclpp.Library(str(library)), None, None)
    assert contestant.family == "mscclpp"
    assert [op for op in flexlink.LARGE_AIMS if contestant.is_for(op)] == [
        "all_gather", "all_reduce", "reduce_scatter",
    ]  # fmt: skip
    case = GpuCase.of("all_gather", 32 * MIB, "bfloat16", 2)
    assert contestant.why_not(case) == ""
    assert "up to 64 MiB" in contestant.why_not(replace(case, count=case.count * 2))
    assert "it has uint8" in contestant.why_not(replace(case, dtype="float64"))


def test_it_takes_part_where_it_is_named(library, monkeypatch):
    named = replace(ASKED, mscclpp=library)
    request = request_of(named)
    assert request.mscclpp == str(library)
    assert all("mscclpp" in task.groups for task in request.tasks)
    assert "mscclpp" not in request_of(ASKED).groups
    whole = suite.request_of(replace(named, suite="flexlink"))
    graphs = [t for t in whole.tasks if t.op in flexlink.SMALL_OPS and t.mode == "graph"]
    assert all("mscclpp" in task.groups for task in graphs)
    monkeypatch.setenv("BRAID_LINK_CAP", "nvlink:147")
    assert suite.request_of(replace(named, suite="flexlink")).mscclpp == ""
    with pytest.raises(Refused, match="--mscclpp: there is no file /nowhere"):
        request_of(replace(ASKED, mscclpp=Path("/nowhere")))
    with pytest.raises(Refused, match="--mscclpp: it runs on GPUs"):
        gpus_to_use(replace(named, device="cpu"))
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))
    with pytest.raises(Refused, match="GPUs were asked for, but there is none"):
        gpus_to_use(named)


def test_a_run_with_it(library, tmp_path):
    """Its reduce-scatter has a wrong byte on rank 1, which is seen; the others are right."""
    path = tmp_path / "r.json"
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", "run", "-n", "2", str(HERE / "gpu_stand_in.py"),
         str(path)],
        capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "BRAID_TUNE": "off", "FAKE_LIBRARY": str(library),
             "FAKE_MSCCLPP": "lie"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    made = gpu_record.load(path)
    for found in made.results:
        wrong = {run.who: run.wrong for run in found.runs}
        assert ("mscclpp" in wrong) == (found.op in flexlink.SMALL_OPS)
        assert wrong.get("mscclpp", 0) == 3 * (found.op == "reduce_scatter")
        assert wrong["braid"] == wrong["nccl"] == 0
        assert all(len(run.samples_us) == 3 for run in found.runs)
    assert f"{library}, version 900, MSCCLPP_FORCE_DISABLE_NVLS=1" in made.settings["mscclpp"]


def small(op, part, **others):
    """Every size of the figure; braid takes `part` of its time."""
    results = [result(op, n, "graph", braid=100 * part, **others) for n in flexlink.SMALL]
    rival = gpu_record.make_run("mscclpp", "mscclpp", [100.0], lambda us: 1 / us, 0)
    return [replace(one, runs=[*one.runs, rival]) for one in results]


def test_its_figures():
    results = [*small("all_reduce", 0.9), *small("all_gather", 0.85), *small("reduce_scatter", 0.5)]
    found = {row.work.split()[0]: row for row in rows(record(results[:-1])) if "MSCCL" in row.work}
    assert (found["all_reduce"].is_reached, found["all_reduce"].required[:8]) == (True, "<= 0.90x")
    assert found["all_gather"].is_reached is False
    assert found["all_gather"].reached.startswith("0.85x at the most (all_gather ")
    assert found["reduce_scatter"].is_reached is None
    assert found["reduce_scatter"].reached.endswith("; without 1 of 13 sizes")
    without = [row for row in rows(record([])) if "MSCCL" in row.work]
    assert [row.reached[:12] for row in without] == ["not measured"] * 3

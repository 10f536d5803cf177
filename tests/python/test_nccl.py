"""`braid nccl-env` and `braid nccl-check`, on a machine that need not have a GPU or NCCL."""

import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from braid.cli import kernels, nccl

pytestmark = pytest.mark.skipif(nccl.library() is None, reason="built without the drop-in")
BRAID = [sys.executable, "-m", "braid.cli"]


def braid(*arguments, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*BRAID, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_the_line_keeps_what_is_preloaded_already():
    assert braid("nccl-env", LD_PRELOAD="").stdout == f"LD_PRELOAD={nccl.library()}\n"
    blanks = braid("nccl-env", LD_PRELOAD="/a/libm.so.6  /a/libdl.so.2").stdout  # as ld.so has it
    assert blanks == f"LD_PRELOAD={nccl.library()}:/a/libm.so.6:/a/libdl.so.2\n"
    both = f"/old/{nccl.FILE}:/some/other.so"
    assert nccl.preload(nccl.library()) == str(nccl.library())
    os.environ["LD_PRELOAD"] = both
    try:
        assert nccl.preload(nccl.library()) == f"{nccl.library()}:/some/other.so"
    finally:
        del os.environ["LD_PRELOAD"]


def test_programs_that_open_nccl_themselves_get_their_variables():
    path = str(nccl.library())
    assert braid("nccl-env", "--for", "vllm", LD_PRELOAD="").stdout.splitlines() == [
        f"LD_PRELOAD={path}",
        f"VLLM_NCCL_SO_PATH={path}",
        "VLLM_ALLREDUCE_USE_SYMM_MEM=0",
    ]
    said = json.loads(braid("nccl-env", "--for", "sglang", "--json", LD_PRELOAD="").stdout)
    assert said == {"LD_PRELOAD": path, "SGLANG_NCCL_SO_PATH": path}
    refused = braid("nccl-env", "--for", "mystery")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "asked for 'mystery', there is vllm, sglang" in refused.stderr


def test_programs_start_with_it():
    line = braid("nccl-env").stdout.strip().partition("=")
    out = subprocess.run(
        [sys.executable, "-c", "print(6 * 7)"],
        env={**os.environ, line[0]: line[2]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (out.stdout, out.stderr) == ("42\n", "")


FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + 8) + struct.pack(
    "<HHIQ12xI32x", 2, 0x101, 64, 8, 90
)
"""A head, and one part for sm_90 without its code."""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A library that tells a version as NCCL does."""
    folder = tmp_path_factory.mktemp("nccl")
    source, library = folder / "real.c", folder / "libreal.so"
    source.write_text("int ncclGetVersion(int* version) { *version = 22809; return 0; }")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.fixture
def build(monkeypatch, tmp_path):
    """A build whose core holds what is asked for."""

    def make(core=None):
        (tmp_path / nccl.FILE).touch()
        if core is not None:
            (tmp_path / nccl.CORE).write_bytes(core)
        monkeypatch.setattr(nccl, "library", lambda: tmp_path / nccl.FILE)
        monkeypatch.setattr(nccl, "real_version", lambda _path: ("2.28.9", True))
        return tmp_path / nccl.FILE

    return make


def test_a_build_says_for_which_gpus_it_is(tmp_path):
    library = tmp_path / "core.so"
    library.write_bytes(b"x" * 7 + FATBIN + b"\0" * 8 + FATBIN[:4] + b"y" * 9)
    assert kernels.built_for(library) == [90]
    assert kernels.words(library) == "for sm_90"
    library.write_bytes(FATBIN)  # cut off
    assert kernels.words(library) == kernels.NONE
    assert kernels.words(tmp_path / "none.so").startswith("MISSING")


@pytest.mark.skipif(nccl.num_gpus() > 1, reason="the self-test would use the GPUs")
@pytest.mark.parametrize(
    ("core", "code", "words"),
    [
        (FATBIN + b"\0" * 8, 0, "kernels         for sm_90"),
        (b"no kernels", 2, f"kernels         {kernels.NONE}"),
        (None, 2, "core            MISSING"),
    ],
)
def test_the_check_fails_where_everything_would_go_to_nccl(build, capsys, core, code, words):
    path = build(core)
    assert nccl.check() == code
    said = capsys.readouterr().out
    assert f"drop-in         {path}" in said
    assert words in said
    assert ("self-test       skipped" in said) is (code == 0)
    assert (nccl.lacks(path) == "") is (code == 0)


@pytest.mark.skipif(nccl.num_gpus() > 1, reason="the self-test would use the GPUs")
def test_the_check_says_what_is_there(real):
    code = nccl.MISSING if nccl.lacks(nccl.library()) else 0
    checked = braid("nccl-check", BRAID_NCCL_REAL=real)
    assert checked.returncode == code, checked.stdout + checked.stderr
    assert f"drop-in         {nccl.library()}" in checked.stdout
    assert "the real NCCL   2.28.9" in checked.stdout
    assert "several GPUs    of one process: taken over" in checked.stdout
    shared = braid("nccl-check", BRAID_NCCL_SHARED="off", BRAID_NCCL_REAL=real)
    assert "several GPUs    of one process: left to NCCL" in shared.stdout


@pytest.mark.parametrize(
    ("core", "has_nccl", "real", "words"),
    [
        (None, True, "", ["libbraid-nccl-core.so is missing: install braid again"]),
        (b"none", True, "", ["this build has no kernels for GPUs: with nvcc 12.8 or newer"]),
        (FATBIN, False, "", ["NCCL was not found: install torch for CUDA"]),
        (FATBIN, False, "/x/libnccl.so.2", ["not found at BRAID_NCCL_REAL=/x/libnccl.so.2: name"]),
        (b"none", False, "", ["this build has no kernels for GPUs", "NCCL was not found"]),
    ],
    ids=["core", "kernels", "nccl", "named", "both"],
)
def test_the_last_line_says_what_is_missing_and_what_to_do(
    build, capsys, monkeypatch, core, has_nccl, real, words
):
    build(core if core is None else core + b"\0" * 8)
    monkeypatch.setenv("BRAID_NCCL_REAL", real)
    monkeypatch.setattr(nccl, "real_version", lambda _path: ("NOT FOUND: it", has_nccl))
    assert nccl.check() == (nccl.NO_NCCL if core == FATBIN else nccl.MISSING)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("self-test       not run: ")
    for each in words:
        assert each in last
    assert "above" not in last
    assert last.count("; ") == len(words) - 1


def test_without_nccl_the_check_fails():
    checked = braid("nccl-check", "--json", BRAID_NCCL_REAL="/nowhere/libnccl.so.2")
    code = nccl.MISSING if nccl.lacks(nccl.library()) else nccl.NO_NCCL
    assert checked.returncode == code
    facts = json.loads(checked.stdout)
    assert facts["the real NCCL"].startswith("NOT FOUND: ")
    assert "braid rank" not in facts["the real NCCL"]  # the head of a log line
    assert facts["self-test"].startswith("not run")


def test_the_line_warns_of_a_build_without_kernels(build, capsys, monkeypatch):
    from braid.cli import app

    monkeypatch.setenv("LD_PRELOAD", "")
    path = build(b"no kernels")
    app.nccl_env()
    said = capsys.readouterr()
    assert said.out == f"LD_PRELOAD={path}\n"
    assert said.err.startswith("braid: nccl-env: everything will go to NCCL: kernels: MISSING")
    build(FATBIN + b"\0" * 8)
    app.nccl_env()
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(nccl.num_gpus() > 1, reason="the self-test would use the GPUs")
def test_both_as_json(real):
    (line,) = json.loads(braid("nccl-env", "--json", LD_PRELOAD="").stdout).items()
    assert line == ("LD_PRELOAD", str(nccl.library()))
    facts = json.loads(braid("nccl-check", "--json", BRAID_NCCL_REAL=real).stdout)
    assert facts["drop-in"] == str(nccl.library())
    assert {"core", "kernels", "self-test"} <= facts.keys()


def test_without_a_real_library_it_says_so():
    code = (
        "import ctypes; n = ctypes.CDLL('libnccl.so.2');"
        "n.ncclGetErrorString.restype = ctypes.c_char_p;"
        "print(n.ncclGetVersion(None), n.ncclGetErrorString(2).decode())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "LD_PRELOAD": str(nccl.library()),
            "BRAID_NCCL_REAL": "/nowhere/libnccl.so.2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.stdout.startswith("2 braid: the real NCCL library was not found")
    assert "/nowhere/libnccl.so.2" in out.stderr


def test_a_rank_takes_the_only_gpu_that_it_is_shown(monkeypatch):
    """Not the one at its place on the node, which a launcher may hide."""
    torch = pytest.importorskip("torch")
    from braid.cli import nccl_rank

    taken = []

    def begin(_backend):
        raise ConnectionError

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", begin)
    with pytest.raises(ConnectionError):
        nccl_rank.main()
    assert taken == [0]

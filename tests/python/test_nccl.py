"""`braid nccl-env` and `braid nccl-check`, on a machine that need not have a GPU or NCCL."""

import json
import os
import subprocess
import sys

import pytest

from braid.cli import nccl

pytestmark = pytest.mark.skipif(nccl.library() is None, reason="built without the drop-in")
BRAID = [sys.executable, "-m", "braid.cli"]


def braid(*arguments, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*BRAID, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_the_line_keeps_what_is_preloaded_already():
    assert braid("nccl-env", LD_PRELOAD="").stdout == f"LD_PRELOAD={nccl.library()}\n"
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


@pytest.mark.skipif(nccl.num_gpus() > 1, reason="the self-test would use the GPUs")
def test_the_check_says_what_is_there():
    checked = braid("nccl-check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"drop-in         {nccl.library()}" in checked.stdout
    assert "MISSING" not in checked.stdout
    assert "self-test       skipped" in checked.stdout
    assert "several GPUs    of one process: taken over" in checked.stdout
    shared = braid("nccl-check", BRAID_NCCL_SHARED="off")
    assert "several GPUs    of one process: left to NCCL" in shared.stdout


@pytest.mark.skipif(nccl.num_gpus() > 1, reason="the self-test would use the GPUs")
def test_both_as_json():
    (line,) = json.loads(braid("nccl-env", "--json", LD_PRELOAD="").stdout).items()
    assert line == ("LD_PRELOAD", str(nccl.library()))
    facts = json.loads(braid("nccl-check", "--json").stdout)
    assert facts["drop-in"] == str(nccl.library())
    assert facts["self-test"].startswith("skipped")


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

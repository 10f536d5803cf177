"""The drop-in for NCCL from the command line: the line that puts it in place, and a self-test."""

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

import braid
from braid.cli import kernels
from braid.launch import launch

FILE, CORE = "libbraid-nccl.so", "libbraid-nccl-core.so"
MISSING, NO_NCCL = 2, 3
"""Exit codes of the check: this build lacks a part; there is no NCCL that programs could see."""
PROGRAMS = {
    "vllm": {"VLLM_NCCL_SO_PATH": "", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"},
    "sglang": {"SGLANG_NCCL_SO_PATH": ""},
}
"""Variables of programs that open NCCL themselves; "" stands for the drop-in's path. Why each is
there: docs/recipes.md."""
_MOST_RANKS = 8
_LOG_HEAD = re.compile(r"^braid(: | rank \S+ nccl \w+: )")
"""What a line of the drop-in's log begins with."""
# What the real library says about itself, asked through the drop-in in a process of its own.
_ASK_VERSION = """
import ctypes
{imports}
library = ctypes.CDLL("libnccl.so.2")
version = ctypes.c_int()
code = library.ncclGetVersion(ctypes.byref(version))
print(version.value if code == 0 else f"error {{code}}")
"""


def library() -> Path | None:
    """The drop-in beside the package, where an installation and scripts/gpu_test put it."""
    path = Path(braid.__file__).parent / FILE
    return path if path.is_file() else None


def preload(path: Path) -> str:
    """LD_PRELOAD with the drop-in in front of what is there."""
    # Blanks separate for ld.so, too, and would end the word in `env $(braid nccl-env) program`.
    others = [each for each in re.split("[: ]", os.environ.get("LD_PRELOAD", "")) if each]
    return ":".join([str(path), *(each for each in others if not each.endswith(FILE))])


def variables(path: Path, program: str = "") -> dict[str, str]:
    """What a program's environment must hold, by name. KeyError for one that is not in PROGRAMS."""
    more = PROGRAMS[program] if program else {}
    return {"LD_PRELOAD": preload(path)} | {
        name: value or str(path) for name, value in more.items()
    }


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def lacks(path: Path) -> str:
    """What this build lacks, so that everything would go to NCCL; "" for nothing."""
    core = path.with_name(CORE)
    if not core.is_file():
        return f"{CORE} is not beside {FILE}"
    found = kernels.words(core)
    return f"kernels: {found}" if found == kernels.NONE else ""


def _remedy(path: Path, has_nccl: bool) -> str:
    """What is missing, and what to do about it."""
    missing: list[str] = []
    if not path.with_name(CORE).is_file():
        missing.append(f"{CORE} is missing: install braid again (docs/install.md)")
    elif lacks(path):
        missing.append(
            "this build has no kernels for GPUs: with nvcc 12.8 or newer on the PATH install braid"
            " again (docs/install.md)"
        )
    if not has_nccl:
        stated = os.environ.get("BRAID_NCCL_REAL")
        missing.append(
            f"NCCL was not found at BRAID_NCCL_REAL={stated}: name its libnccl.so.2 by an absolute"
            " path, or unset it"
            if stated
            else "NCCL was not found: install torch for CUDA or the nvidia-nccl wheel, or set"
            " BRAID_NCCL_REAL to the absolute path of libnccl.so.2"
        )
    return "; ".join(missing)


def real_version(path: Path) -> tuple[str, bool]:
    """The version that programs will see, or why there is none; and whether there is."""
    code = _ASK_VERSION.format(imports="import torch" if has_torch() else "")
    asked = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": preload(path), "BRAID_LOG": "warn"},
        capture_output=True,
        text=True,
        check=False,
    )
    answer = asked.stdout.strip()
    if answer.isdigit():
        number = int(answer)
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}", True
    lines = asked.stderr.strip().splitlines() or [answer or "no answer"]
    return f"NOT FOUND: {_LOG_HEAD.sub('', lines[-1])}", False


def _several_gpus() -> str:
    """What becomes of communicators of which one process has more than one GPU."""
    text = (os.environ.get("BRAID_NCCL_SHARED") or "on").lower()
    if text in ("on", "1", "true", "yes"):
        return "of one process: taken over (BRAID_NCCL_SHARED=on)"
    return "of one process: left to NCCL (BRAID_NCCL_SHARED=off); one process per GPU is taken over"


def _facts(path: Path, nccl: str) -> dict[str, str]:
    core = path.with_name(CORE)
    return {
        "drop-in": str(path),
        "core": str(core) if core.is_file() else "MISSING: everything goes to NCCL",
        "kernels": kernels.words(core),
        "the real NCCL": nccl,
        "BRAID_NCCL": os.environ.get("BRAID_NCCL", "on"),
        "several GPUs": _several_gpus(),
    }


def num_gpus() -> int:
    """GPUs that torch can use; 0 without torch or without a driver."""
    if not has_torch():
        return 0
    import torch

    return int(torch.cuda.device_count())


def check(as_json: bool = False) -> int:
    """Says what is in place and tries it; the exit code of the whole."""
    path = library()
    if path is None:
        print(
            f"braid: nccl-check: {FILE} is not beside the package: built without it; install braid"
            " again (docs/install.md)",
            file=sys.stderr,
        )
        return MISSING
    nccl, has_nccl = real_version(path)
    facts = _facts(path, nccl)
    if not as_json:
        for name, text in facts.items():
            print(f"{name:15} {text}", flush=True)
    if remedy := _remedy(path, has_nccl):
        code = MISSING if lacks(path) else NO_NCCL
        facts["self-test"] = f"not run: {remedy}"
    else:
        code, facts["self-test"] = _self_test(path, sys.stderr if as_json else None)
    print(json.dumps(facts, indent=1) if as_json else f"self-test       {facts['self-test']}")
    return code


def _self_test(path: Path, output: TextIO | None) -> tuple[int, str]:
    """Exit code and words; what ranks print goes to `output`, standard output if None."""
    ranks = min(num_gpus(), _MOST_RANKS)
    if ranks < 2:
        why = "there is no torch" if not has_torch() else f"torch sees {ranks} GPUs, two are needed"
        return 0, f"skipped: {why}; what a GPU is not needed for is in place"
    began = time.monotonic()
    os.environ["LD_PRELOAD"] = preload(path)
    code = launch([sys.executable, "-m", "braid.cli.nccl_rank"], ranks, output=output)
    verdict = "passed" if code == 0 else f"FAILED with code {code}"
    return code, f"{verdict} on {ranks} GPUs in {time.monotonic() - began:.0f} s"


def counts(loaded: ctypes.CDLL) -> tuple[list[int], list[int]]:
    """Calls of each operation (see nccl_rank.OPS) that were taken over, and that NCCL did."""
    room = 7
    taken, handed_on = (ctypes.c_uint64 * room)(), (ctypes.c_uint64 * room)()
    loaded.braid_nccl_counts(taken, handed_on, ctypes.c_size_t(room))
    return list(taken), list(handed_on)

"""Runs a rank's program unchanged, and says afterwards which of its calls braid took over.

    braid run -n 2 tests/gpu/apps/witness.py OUT PROGRAM.py ARGUMENTS...

OUT is a file; %r in it is the rank's number. Nothing of braid's is imported: the counts are asked
of the library that the program has loaded. After WITNESS_LIMIT_S seconds every thread's stack goes
to standard error: a program that hangs says where.
"""

import ctypes
import faulthandler
import json
import os
import runpy
import sys
from pathlib import Path

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv")
PATHS = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")
"""Variables by which vLLM and SGLang are told of a library; others find it by its name."""


def calls() -> dict[str, dict[str, int]]:
    """By operation; empty where NCCL's library is not braid's."""
    named = [os.environ[name] for name in PATHS if os.environ.get(name)]
    try:
        counts = ctypes.CDLL((named or ["libnccl.so.2"])[0]).braid_nccl_counts
    except (OSError, AttributeError):
        return {}
    taken, handed_on = (ctypes.c_uint64 * len(OPS))(), (ctypes.c_uint64 * len(OPS))()
    counts(taken, handed_on, ctypes.c_size_t(len(OPS)))
    return {
        "taken over": {op: n for op, n in zip(OPS, taken, strict=True) if n},
        "handed on": {op: n for op, n in zip(OPS, handed_on, strict=True) if n},
    }


def main() -> None:
    out, program, *rest = sys.argv[1:]
    sys.argv = [program, *rest]
    sys.path[0] = str(Path(program).resolve().parent)
    limit_s = float(os.environ.get("WITNESS_LIMIT_S", "0"))
    if limit_s:
        faulthandler.dump_traceback_later(limit_s, exit=False)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        rank = os.environ.get("RANK", "0")
        Path(out.replace("%r", rank)).write_text(json.dumps(calls()), encoding="utf-8")


if __name__ == "__main__":
    main()

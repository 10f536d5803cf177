"""The stand-in for DeepEP from the command line: the line that puts it in place, a self-test."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import braid
from braid import _braid
from braid.launch import launch

MISSING, FAILED = 2, 1
_RANKS = 2
_ASK = "import deep_ep; print(deep_ep.__file__); print(deep_ep.__version__)"


def folder() -> Path:
    """What must be on the path before the real deep_ep."""
    return Path(braid.__file__).parent / "stand_ins"


def variables() -> dict[str, str]:
    here = str(folder())
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {"PYTHONPATH": os.pathsep.join([here, *(each for each in others if each != here)])}


def _found() -> tuple[str, bool]:
    """What a program gets that imports deep_ep here with the variables set; whether it is ours."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={**os.environ, **variables()},
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines() or ["no answer"]
        return f"NOT FOUND: {lines[-1]}", False
    path, version = asked.stdout.splitlines()[:2]
    return f"{version} at {path}", Path(path).is_relative_to(folder())


def _real() -> str:
    """The package that would be imported without us."""
    ours = str(folder())
    kept, sys.path[:] = list(sys.path), [each for each in sys.path if each != ours]
    try:
        spec = importlib.util.find_spec("deep_ep")
    finally:
        sys.path[:] = kept
    return "none" if spec is None else str(spec.origin)


def check(as_json: bool = False) -> int:
    """Says what is in place and tries it; the exit code of the whole."""
    found, is_ours = _found()
    facts = {
        "stand-in": str(folder()),
        "deep_ep": found,
        "the real DeepEP": _real(),
        "memory": "host tensors, and those of the GPUs of one node"
        if _braid.moe.has_kernels()
        else "host tensors; this build has no kernels for GPUs",
    }
    if not is_ours:
        code, facts["self-test"] = MISSING, "not run: deep_ep is not the stand-in, see above"
    else:
        said = sys.stderr if as_json else None
        code = launch([sys.executable, "-m", "braid.cli.deepep_rank"], _RANKS, output=said)
        facts["self-test"] = (
            f"passed on {_RANKS} ranks" if code == 0 else f"FAILED with code {code}"
        )
        code = FAILED if code else 0
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        for name, text in facts.items():
            print(f"{name:16} {text}")
    return code

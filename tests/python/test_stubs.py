"""python/braid/_braid.pyi says what the compiled module has."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import braid
from braid import _braid

STUB = Path(__file__).parents[2] / "python/braid/_braid.pyi"


def names(body):
    """Functions, classes and annotated variables of a stub."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def public(thing):
    """What a module or class of nanobind offers."""
    return {name for name in dir(thing) if not name.startswith("_")}


def test_module_and_stub_agree():
    tree = ast.parse(STUB.read_text())
    declared = set(names(tree.body)) - {"Array"}
    assert declared - {"__version__"} == public(_braid)
    comm = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert set(names(comm.body)) - {"__init__"} == public(_braid.Comm)


def test_ops_are_named_by_their_types():
    """A checker refuses op="mean", and what it takes is what the core takes."""
    for call in (braid.Comm.all_reduce, braid.Comm.reduce_scatter, braid.Comm.reduce):
        assert inspect.signature(call).parameters["op"].annotation is braid.Op
    assert {_braid.redop_code(op) for op in get_args(braid.Op)} == set(range(5))
    assert inspect.signature(braid.Comm.explain).parameters["op"].annotation is braid.Operation


def test_its_parts_need_no_import_of_their_own():
    """And what needs no torch brings none in."""
    program = (
        "import sys, braid; braid.kv.Layout, braid.moe.Buffer, braid.weights.Sender;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="module 'braid' has no attribute 'nonesuch'"):
        braid.nonesuch  # noqa: B018


def test_parts_that_need_torch_come_when_they_are_asked_for():
    pytest.importorskip("torch", reason="skipped: needs torch")
    program = "import braid; braid.overlap.ag_gemm, braid.torch.BraidGroup"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_dir_lists_what_users_import():
    """In a program that has used nothing yet, too, and nothing of how it is loaded."""
    program = (
        "import braid; names = set(dir(braid)); missing = set(braid.__all__) - names;"
        "other = {n for n in names if not n.startswith('__')} - set(braid.__all__);"
        "assert not missing and not other and {'init', 'Comm'} <= names, (missing, other)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert all(hasattr(braid, name) for name in dir(braid))

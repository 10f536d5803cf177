"""python/braid/_braid.pyi says what the compiled module has."""

import ast
from pathlib import Path

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

#!/usr/bin/env python3
"""Proves that includes and imports go one way, and that costly headers stay where they belong.

A folder of src/ may include itself and what its row names: a folder, or one header of a folder. So
may sub-folders of large ones; a row there names no folder of a later row, so there is no way round.
A package of python/braid may import itself and what its row names; imports inside functions and
for types alone count, too.
Prints one line per violation, `file:line: message`, and exits 1 if there is any.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ALLOWED: dict[str, list[str]] = {
    "base": [],
    "sys": ["base"],
    "group": ["base", "sys"],
    "fabric": ["base", "sys", "group"],
    # Decisions see facts, never the machine; json_read.h is text in, facts out.
    "plan": ["base", "fabric/types.h", "fabric/json_read.h"],
    "device": [],  # what kernels are made of; nothing of the host
    "transport": ["base", "sys", "group", "fabric", "device"],  # motion never sees decisions
    "engine": ["base", "sys", "group"],
    "comm": ["base", "sys", "group", "fabric", "plan", "transport", "device"],
    "coll": ["base", "sys", "group", "fabric", "plan", "transport", "comm", "device"],
    "moe": ["base", "sys", "group", "fabric", "transport", "comm", "device"],  # beside coll
    # Beside coll: tiles that wait for communication, and communication by tiles.
    "overlap": ["base", "sys", "group", "transport", "comm", "device"],
}
# Sub-folders, lowest first; "": what lies in the folder itself. A header that is named is one that
# a lower folder needs of a higher one: the inside of a comm, say.
SUBFOLDERS: dict[str, dict[str, list[str]]] = {
    "comm": {
        "observe": ["comm/device/links/names.h"],
        "device/shares": [],
        "device/links": [
            "device/shares",
            *("comm/state.h", "comm/link_spec.h"),
            *("comm/device/call_watch.h", "comm/device/kernel_cache.h"),
        ],
        "device": ["observe", "device/shares", "device/links", "comm/state.h"],
        "": ["observe", "device"],
    },
    "coll": {
        "": [],
        "reduce": [],
        # Kernels, and what host and device know of their shapes.
        "packets": ["reduce"],
        "lines": ["packets", "reduce"],
        "direct": ["packets", "reduce"],
        "relay": ["direct"],
        # What all collectives on GPUs, and all on hosts, are made of.
        "device": ["", "reduce", "packets", "lines", "direct", "relay"],
        "nodes": ["reduce", "device"],
        "host": ["", "reduce", "nodes"],
        "messages": ["", "host"],
        **{
            op: ["", "device", "host"]
            for op in ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")
        },
        **{op: ["", "device", "host"] for op in ("gather", "scatter")},
        "rooted_reduce": ["", "device", "host", "all_reduce"],
        "tune": ["", "all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"],
    },
}
# bindings/: every folder of src/, and the C contract in include/braid.
ABOVE_ALL = [*ALLOWED, "braid"]

# python/braid, lowest first: a package, a module beside the packages, or a part of a package that
# lies lower than the rest of it. `braid` is the package's own __init__, `_braid` what is compiled.
IMPORTS: dict[str, list[str]] = {
    "_braid": [],
    "closing": [],
    "errors": [],
    "launch": [],
    "noise": [],
    "printable": [],
    "private_socket": [],
    "this_host": [],
    "ratio": [],
    "sizes": [],
    "typed_json": [],
    "under_nccl": [],
    "arrays": ["errors"],
    "json_file": ["errors"],
    "launched": ["errors"],
    "progress": ["errors"],
    "timeline": ["errors"],
    "arguments": ["errors"],
    "work": ["_braid", "errors"],
    "calls": ["_braid", "errors", "work"],
    "by_address": ["_braid", "arrays", "calls"],
    "calling": ["_braid", "arrays", "by_address", "calls", "work"],
    "rooted": ["_braid", "errors", "arrays", "arguments", "calling", "work"],
    "collectives": ["_braid", "errors", "arrays", "arguments", "calling", "rooted", "work"],
    "messages": ["_braid", "errors", "arrays", "arguments", "collectives", "work"],
    "objects": ["errors", "arguments", "messages"],
    "split": ["errors"],
    "joining": ["errors", "arguments"],
    "comm": [
        "_braid",
        "errors",
        "arguments",
        "arrays",
        "objects",
        "progress",
        "split",
        "joining",
    ],
    "engine": ["_braid", "closing", "errors", "arrays"],
    "letters": ["errors"],
    "kv": ["closing", "errors", "arrays", "engine", "letters", "private_socket"],
    "weights": ["_braid", "closing", "errors", "arrays", "engine", "letters"],
    "braid": ["_braid", "errors", "arguments", "comm", "engine", "joining", "under_nccl", "work"],
    "kv.vllm": ["errors", "engine", "kv", "braid"],
    "weights.doors": ["closing", "errors", "engine", "weights", "braid"],
    "moe": ["_braid", "errors", "arrays", "split", "comm", "joining", "this_host"],
    "overlap": ["_braid", "errors", "by_address", "comm"],
    "torch.streams": [],
    "torch": [
        "_braid",
        "errors",
        "split",
        "comm",
        "joining",
        "private_socket",
        "this_host",
        "braid",
        "overlap",
        "torch.streams",
    ],
    "torch.moe": ["_braid", "errors", "comm", "moe", "torch.streams"],
    "stand_ins": ["moe", "torch.moe"],  # on the path of programs; nothing imports them
    "plan.shipped": [],
    "plan.formulas": ["plan.shipped"],
    "saved": ["typed_json", "plan.formulas"],
    "cases": ["sizes", "braid", "plan.formulas"],
    "record": ["json_file", "noise", "typed_json", "cases"],
    "terminal": ["closing", "json_file", "launch", "launched", "printable", "sizes", "record"],
    "topo": [
        "errors",
        "printable",
        "typed_json",
        "plan.shipped",
        "plan.formulas",
        "saved",
        "record",
    ],
    "plan": ["errors", "typed_json", "plan.shipped", "plan.formulas", "saved", "terminal", "topo"],
}
_LOW = ["closing", "errors", "json_file", "launch", "launched", "noise", "ratio", "sizes"]
_LOW += ["typed_json", "this_host", "braid", "_braid"]
IMPORTS |= {
    "bench": [*_LOW, "plan.formulas", "cases", "record", "terminal"],
    "probe": [*_LOW, "plan.formulas", "cases", "record", "terminal", "saved", "plan", "bench"],
    # Between two engines: timed as the probes are.
    "bench.engine": [*_LOW, "cases", "record", "terminal", "bench", "probe", "engine"],
    "bench.kv": [*_LOW, "record", "bench.engine", "bench", "probe", "engine", "kv"],
    "bench.weights": [*_LOW, "record", "bench.engine", "probe", "engine", "weights"],
    "bench.overlap": [*_LOW, "record", "overlap", "bench", "probe"],
    "bench.moe": [*_LOW, "record", "probe", "moe"],
    "report": [
        *("errors", "noise", "ratio", "sizes", "typed_json", "plan.shipped", "plan.formulas"),
        *("saved", "record", "topo", "plan", "bench", "probe"),
    ],
}
# The commands: nothing imports them, and they start with no more than they need.
IMPORTS["cli"] = [
    name
    for name in IMPORTS
    if name not in ("torch", "overlap", "torch.streams", "torch.moe", "stand_ins")
]

# Headers that cost compile time or belong to a foreign library -> files that may include them.
CONTAINED: dict[str, str] = {
    r"spdlog/": r"src/base/log\.cc",
    r"nlohmann/json\.hpp": r".*\.cc",
    r"nanobind/": r"bindings/python/.*",
    r"rdma/|infiniband/|hwloc|numa": r"src/(sys|transport/rdma)/.*",
    r"cuda": r".*\.cuh?",  # host code speaks to the driver through sys/cuda/api.h
    r"openssl/": r"src/(sys|group)/.*",
    r"iostream|regex|filesystem": r".*\.cc",
}
SOURCES = {".h", ".cc", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def includes(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Line number, whether the include is quoted, and its text."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1] == '"', match[2]


def folder_complaint(path: Path, header: str) -> str | None:
    """Why `path` (relative to the repository) may not include `header`, a path relative to src/."""
    is_src = path.parts[0] == "src"
    folder = path.parts[1] if is_src else "bindings"
    top = header.split("/")[0]
    if "/" not in header:  # beside the including file: bindings do so, src/ always names the folder
        return "write the folder of the header too" if is_src else None
    if is_src and folder not in ALLOWED:
        return f"folder {folder} has no row in scripts/check_layers.py"
    allowed = ALLOWED[folder] if is_src else ABOVE_ALL
    if top == folder or top in allowed or header in allowed:
        return None
    return f"{folder} may include {', '.join(allowed) or 'nothing'}, not {header}"


def subfolder_complaint(path: Path, header: str) -> str | None:
    """The same within a folder that has a table of sub-folders."""
    top = header.split("/")[0]
    if path.parts[:2] != ("src", top) or top not in SUBFOLDERS:
        return None
    rows = SUBFOLDERS[top]
    own, other = ("/".join(parts[:-1]) for parts in (path.parts[2:], header.split("/")[1:]))
    if own not in rows:
        return f"folder {top}/{own} has no row in scripts/check_layers.py"
    if other in (own, *rows[own]) or header in rows[own]:
        return None
    allowed = ", ".join(name or top for name in rows[own])
    return f"{top}/{own} may include {allowed or 'nothing'} of {top}, not {header}"


def row_of(module: str) -> str | None:
    """The row of IMPORTS that a module of braid belongs to: the longest that is its name, or a
    package it is in.
    """
    parts = module.split(".")[1:] or ["braid"]
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in IMPORTS), None)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and module of every import of braid, wherever in the file it is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            found = [f"{'.' * node.level}{node.module or ''}"]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{name.name}" for name in node.names]
        else:
            continue
        for module in found:
            if module.split(".")[0] in ("braid", ""):
                yield node.lineno, module


def import_complaint(importer: str, module: str) -> str | None:
    """Why one module of braid may not import another, or a name of it."""
    if module.startswith("."):
        return "write the whole name of the module"
    row = row_of(importer)
    assert row is not None, importer
    used = row_of(module) or "braid"  # a name out of the package itself
    if used in (row, *IMPORTS[row]):
        return None
    name = module.removeprefix("braid.")
    return f"{row} may import {', '.join(IMPORTS[row]) or 'nothing'}, not {name}"


def python_complaints(root: Path) -> Iterator[str]:
    top = root / "python"
    for path in sorted((top / "braid").rglob("*.py")):
        importer = ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")
        if row_of(importer) is None:
            yield f"{path.relative_to(root)}:1: {importer} has no row in scripts/check_layers.py"
            continue
        for number, module in sorted(imports(path)):
            if found := import_complaint(importer, module):
                yield f"{path.relative_to(root)}:{number}: {found}"


def complaints(root: Path, path: Path) -> Iterator[str]:
    relative = path.relative_to(root)
    for number, quoted, header in includes(path):
        found = None
        if quoted:
            found = folder_complaint(relative, header) or subfolder_complaint(relative, header)
        if found is None:
            for pattern, where in CONTAINED.items():
                if re.match(pattern, header) and not re.fullmatch(where, relative.as_posix()):
                    found = f"{header} belongs in {where} alone"
        if found:
            yield f"{relative}:{number}: {found}"


def check(root: Path) -> list[str]:
    files = [
        p
        for top in ("src", "bindings")
        for p in sorted((root / top).rglob("*"))
        if p.suffix in SOURCES
    ]
    return [line for path in files for line in complaints(root, path)] + [*python_complaints(root)]


def main() -> int:
    found = check(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    )
    print("\n".join(found) if found else "layers: includes and imports go one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Proves that includes go one way, and that costly headers stay where they belong.

A folder may include itself and what its row names: a folder, or one header of a folder.
Prints one line per violation, `file:line: message`, and exits 1 if there is any.
"""

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
    "transport": ["base", "sys", "group", "fabric"],  # motion never sees decisions
    "comm": ["base", "sys", "group", "fabric", "plan", "transport"],
    "coll": ["base", "sys", "group", "fabric", "plan", "transport", "comm"],
}
# bindings/: every folder of src/, and the C contract in include/braid.
ABOVE_ALL = [*ALLOWED, "braid"]

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


def complaints(root: Path, path: Path) -> Iterator[str]:
    relative = path.relative_to(root)
    for number, quoted, header in includes(path):
        found = folder_complaint(relative, header) if quoted else None
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
    return [line for path in files for line in complaints(root, path)]


def main() -> int:
    found = check(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    )
    print("\n".join(found) if found else "layers: includes go one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The source files of src/ and bindings/ as compilers see them one by one, and which have changed.

A build compiles several files as one (cmake/unity.cmake); what looks at each file by itself takes
its command from a folder that is configured without that, and never built.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CONFIGURED = Path("build/alone")
"""Holds compile_commands.json with every file by itself."""
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_FOREIGN = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.MULTILINE)


@cache
def includes(path: Path) -> tuple[Path, ...]:
    """The headers of ours that the file names, in its order."""
    found = []
    for name in _INCLUDE.findall(path.read_text()):
        folders = (path.parent, Path("src"), Path("include"), Path())
        found += [folder / name for folder in folders if (folder / name).is_file()][:1]
    return tuple(found)


@cache
def foreign_includes(path: Path) -> tuple[str, ...]:
    """The headers of others that the file names, in its order."""
    return tuple(_FOREIGN.findall(path.read_text()))


@cache
def reads(path: Path) -> frozenset[Path]:
    """The file and every header of ours that it includes, in one step or several."""
    found: set[Path] = set()
    todo = [path]
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo += includes(file)
    return frozenset(found)


def commands() -> dict[Path, str]:
    """Every source file that a build without tests compiles, and the command for it."""
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "BRAID_UNITY": "OFF",
        "BRAID_BUILD_TESTS": "OFF",
        "BRAID_BUILD_PYTHON": "ON",
        "Python_EXECUTABLE": sys.executable,
        "BRAID_CUDA": "OFF",
    }
    configure = ["cmake", "-S", ".", "-B", str(CONFIGURED)]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    found: dict[Path, str] = {}
    for entry in json.loads((CONFIGURED / "compile_commands.json").read_text()):
        file = Path(os.path.relpath(entry["file"]))
        if file.parts[0] in ("src", "bindings") and file.suffix == ".cc":
            found.setdefault(file, entry["command"])
    missed = len(list(Path("src").rglob("*.cc"))) - len(found)
    if missed > 1:  # libfabric with headers and without: one of the two is built
        sys.exit(f"{CONFIGURED}/compile_commands.json lacks {missed} files: it is of no use")
    return found


def flags(command: str) -> list[str]:
    """What is compiled with, without what is compiled, to where and how well."""
    words = shlex.split(command)
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    kept = []
    rest = iter(words[first:])
    for word in rest:
        if word in ("-o", "-c"):
            next(rest)
        elif not word.startswith("-O"):
            kept.append(word)
    return kept


@dataclass(frozen=True)
class Clean:
    """Remembers in a folder which files were found clean, as they and their headers were then."""

    folder: Path
    also: bytes = b""
    """What the verdict depends on beside the file and its command."""

    def stamp(self, file: Path, command: str) -> Path:
        digest = hashlib.sha256(command.encode() + self.also)
        for read in sorted(reads(file)):
            digest.update(str(read).encode() + read.read_bytes())
        return self.folder / digest.hexdigest()

    def forget_all_but(self, stamps: set[Path]) -> None:
        for old in set(self.folder.iterdir()) - stamps:
            old.unlink()

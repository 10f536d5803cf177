#!/usr/bin/env python3
"""Runs clang-tidy 19 on the files of src/ that changed since it last found them clean.

What a file was clean with is kept in build/tidy: a hash of the file, of all of our headers that it
includes, of its compiler flags and of .clang-tidy. From nothing it takes several minutes a core.
Prints what clang-tidy finds and exits 1 if that is anything.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

TIDY = "clang-tidy-19"
BUILD = Path("build/tidy-commands")
"""Configured, never built: each file by itself, which a build does not compile so."""
CLEAN = Path("build/tidy")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
FINDING = re.compile(r"\b(?:warning|error): ")
# Flags that gcc alone knows would be findings themselves.
KNOWN_FLAGS = "--extra-arg=-Wno-unknown-warning-option"


@cache
def reads(path: Path) -> frozenset[Path]:
    """The file and every header of ours that it includes, in one step or several."""
    found: set[Path] = set()
    todo = [path]
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for name in INCLUDE.findall(file.read_text()):
            todo += [folder / name for folder in (Path("src"), Path("include"), file.parent)]
    return frozenset(found)


def stamp(file: Path, command: str) -> Path:
    digest = hashlib.sha256(command.encode() + Path(".clang-tidy").read_bytes())
    for read in sorted(reads(file)):
        digest.update(str(read).encode() + read.read_bytes())
    return CLEAN / digest.hexdigest()


def commands() -> Iterator[tuple[Path, str]]:
    """The files of src/ that are compiled, not those that a build generates; and their commands."""
    options = ("-DBRAID_UNITY=OFF", "-DBRAID_BUILD_TESTS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    configure = ["cmake", "-S", ".", "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release", *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        if file.is_relative_to(Path.cwd() / "src"):
            yield file.relative_to(Path.cwd()), entry["command"]


def findings(file: Path) -> str:
    """What clang-tidy says of the file; empty when it is clean."""
    done = subprocess.run(
        [TIDY, "--quiet", KNOWN_FLAGS, "-p", BUILD, file],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0 and not FINDING.search(done.stdout):
        return ""
    return done.stdout or done.stderr


def main() -> int:
    CLEAN.mkdir(parents=True, exist_ok=True)
    stamps = {file: stamp(file, command) for file, command in commands()}
    todo = [file for file, path in stamps.items() if not path.exists()]
    print(f"{len(todo)} of {len(stamps)} files to look at", flush=True)
    if len(stamps) < len(list(Path("src").rglob("*.cc"))) // 2:
        print(f"{BUILD}/compile_commands.json has too few of src/: it is of no use")
        return 1
    complaints = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for file, text in zip(todo, pool.map(findings, todo), strict=True):
            if text:
                complaints += 1
                print(text, end="", flush=True)
            else:
                stamps[file].touch()
    for old in set(CLEAN.iterdir()) - set(stamps.values()):
        old.unlink()
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

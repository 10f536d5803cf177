#!/usr/bin/env python3
"""Compiles every source file of src/, bindings/c and bindings/nccl by itself, and every header.

Builds compile a folder's files as one, where a file may lean on what another one included. A header
that some source file includes before all else is proven by that file; the others are compiled by
themselves. Only syntax and types are looked at, half a second a file; what was clean is not looked
at again until it, or a header that it includes, changes (build/alone/clean).
Prints the compiler's words and exits 1 if there are any errors.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sources


def headers_not_first(files: list[Path]) -> list[Path]:
    """Headers that no source file includes before everything else of ours."""
    proven = {header for file in files if (header := sources.first_include(file))}
    folders = (Path("src"), Path("bindings/c"), Path("bindings/nccl"))
    headers = {header for folder in folders for header in folder.rglob("*.h")}
    return sorted(header for header in headers - proven if not header.name.endswith("_body.h"))


def all_to_compile(commands: dict[Path, str]) -> dict[Path, str]:
    """Source files with their commands, then headers with that of a file of their folder.

    Those of bindings/python every build compiles by themselves.
    """
    commands = {f: c for f, c in commands.items() if not f.is_relative_to("bindings/python")}
    by_folder = {file.parts[:2]: command for file, command in commands.items()}
    unbuilt = [file for file in Path("src").rglob("*.cc") if file not in commands]
    rest = unbuilt + headers_not_first(list(commands))
    any_command = next(iter(commands.values()))
    return commands | {file: by_folder.get(file.parts[:2], any_command) for file in rest}


def errors(compiler: str, file: Path, command: str) -> str:
    """What the compiler says of the file; empty when it is clean."""
    done = subprocess.run(
        [compiler, *sources.flags(command), "-I.", "-fsyntax-only", "-w", "-xc++", "-"],
        input=f'#include "{file}"\n',
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"{file} does not compile alone:\n{done.stderr}"


def compiler() -> str:
    cache = (sources.CONFIGURED / "CMakeCache.txt").read_text()
    return cache.split("CMAKE_CXX_COMPILER:", 1)[1].split("\n", 1)[0].split("=", 1)[1]


def main() -> int:
    work = all_to_compile(sources.commands())
    clean = sources.Clean(sources.CONFIGURED / "clean")
    clean.folder.mkdir(exist_ok=True)
    stamps = {file: clean.stamp(file, command) for file, command in work.items()}
    todo = [file for file, path in stamps.items() if not path.exists()]
    with_compiler = compiler()
    complaints = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda file: errors(with_compiler, file, work[file]), todo)
        for file, text in zip(todo, found, strict=True):
            if text:
                complaints += 1
                print(text, end="", flush=True)
            else:
                stamps[file].touch()
    clean.forget_all_but(set(stamps.values()))
    print(f"{len(todo)} of {len(work)} files compiled by themselves, {complaints} with errors")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

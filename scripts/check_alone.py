#!/usr/bin/env python3
"""Compiles every source file of src/, bindings/c, bindings/nccl and bindings/nixl by itself, and
every header.

Builds compile a folder's files as one, where a file may lean on what another one included. Only
syntax and types are looked at; what was clean is not looked at again until it, or a header that it
includes, changes (build/alone/clean).

Most of such a compilation is the reading of headers, the same ones by hundreds of files. With clang
they are read once: what several files include is precompiled, and handed to those that include all
of it. A file gets nothing that it would not have had by itself, and headers that lean on those
before them are found where they are compiled by themselves. What fails so is compiled again
without, which has the last word.
Prints the compiler's words and exits 1 if there are any errors.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import sources

_LIBRARY_BYTES = 60_000
"""What a header of the standard library weighs beside our own text."""
_PRECOMPILING = 2
"""How many times as long as reading it, precompiling text takes."""


def all_headers() -> list[Path]:
    """Headers that can be compiled: a body is part of the files that include it."""
    folders = (Path("src"), *(Path("bindings", name) for name in ("c", "nccl", "nixl")))
    headers = {header for folder in folders for header in folder.rglob("*.h")}
    return sorted(header for header in headers if not header.name.endswith("_body.h"))


def all_to_compile(commands: dict[Path, str]) -> dict[Path, str]:
    """Source files with their commands, then headers with that of a file of their folder.

    Those of bindings/python every build compiles by themselves.
    """
    commands = {f: c for f, c in commands.items() if not f.is_relative_to("bindings/python")}
    by_folder = {file.parts[:2]: command for file, command in commands.items()}
    unbuilt = [file for file in Path("src").rglob("*.cc") if file not in commands]
    rest = unbuilt + all_headers()
    any_command = next(iter(commands.values()))
    return commands | {file: by_folder.get(file.parts[:2], any_command) for file in rest}


def included(file: Path) -> frozenset[str]:
    """What the file includes, in one step or several, as it would be written in another file."""
    read = sources.reads(file)
    ours = {f'"{header}"' for header in read - {file}}
    return frozenset(ours | {f"<{name}>" for one in read for name in sources.foreign_includes(one)})


def weight(include: str) -> int:
    """How long an include takes to be read, without those in it that are ours, in bytes."""
    path = (
        Path(include.strip('"')) if include.startswith('"') else Path("/usr/include", include[1:-1])
    )
    return path.stat().st_size if path.is_file() else _LIBRARY_BYTES


def worth_precompiling(files: Iterable[Path]) -> dict[Path, frozenset[str]]:
    """For files that are compiled with the same flags: the includes that each is handed.

    What any two files have in common is looked at; each time what saves most beside those chosen
    before it is taken.
    """
    all_of = {file: included(file) for file in sorted(files)}
    weights = {include: weight(include) for every in all_of.values() for include in every}
    bit = {include: 1 << i for i, include in enumerate(sorted(weights))}  # sets as numbers: fast
    masks = {file: sum(bit[include] for include in every) for file, every in all_of.items()}
    distinct = sorted(set(masks.values()))
    common = {one & other for one in distinct for other in distinct} - {0}
    cost = {mask: sum(weights[i] for i, b in bit.items() if mask & b) for mask in common}
    saved = dict.fromkeys(masks, 0)
    chosen: dict[Path, int] = {}

    def gain(mask: int) -> int:
        gains = (cost[mask] - saved[file] for file, has in masks.items() if mask & ~has == 0)
        return sum(one for one in gains if one > 0) - _PRECOMPILING * cost[mask]

    while common:
        gains = {mask: gain(mask) for mask in common}
        common = {mask for mask in common if gains[mask] > 0}  # it only becomes less
        if not common:
            break
        best = max(sorted(common), key=gains.__getitem__)
        for file, has in masks.items():
            if best & ~has == 0 and cost[best] > saved[file]:
                chosen[file], saved[file] = best, cost[best]
    return {f: frozenset(i for i, b in bit.items() if m & b) for f, m in chosen.items()}


@dataclass(frozen=True)
class Compiler:
    program: str
    can_precompile: bool = False

    def run(self, command: str, text: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *sources.flags(command), "-I.", "-w", *more, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    def precompile(self, includes: frozenset[str], command: str, into: Path) -> Path | None:
        """None: they do not compile, which is said where they are compiled by themselves."""
        text = "".join(f"#include {include}\n" for include in sorted(includes))
        instantiate = ("-Xclang", "-fpch-instantiate-templates")
        done = self.run(command, text, *instantiate, "-xc++-header", "-o", str(into))
        return into if done.returncode == 0 else None


def errors(compiler: Compiler, file: Path, command: str, before: Path | None = None) -> str:
    """What the compiler says of the file, which has what was precompiled to `before` before it;
    empty when it is clean.
    """
    text = f'#include "{file}"\n'
    more = ("-fsyntax-only", "-xc++")
    if before and compiler.run(command, text, "-include-pch", str(before), *more).returncode == 0:
        return ""
    done = compiler.run(command, text, *more)
    return "" if done.returncode == 0 else f"{file} does not compile alone:\n{done.stderr}"


def compiler() -> Compiler:
    """clang, as sanitizers' builds take it, or what the build is configured with."""
    clang = subprocess.run(["which", "clang++-19"], capture_output=True, text=True, check=False)
    if clang.returncode == 0:
        return Compiler(clang.stdout.strip(), can_precompile=True)
    cache = (sources.CONFIGURED / "CMakeCache.txt").read_text()
    return Compiler(cache.split("CMAKE_CXX_COMPILER:", 1)[1].split("\n", 1)[0].split("=", 1)[1])


def precompiled(
    with_compiler: Compiler, work: dict[Path, str], folder: Path, pool: ThreadPoolExecutor
) -> dict[Path, Path | None]:
    """What was precompiled, into that folder, for each file that is handed something."""
    by_flags: dict[tuple[str, ...], list[Path]] = {}
    for file, command in work.items():
        by_flags.setdefault(tuple(sources.flags(command)), []).append(file)
    handed: dict[Path, Future[Path | None]] = {}
    for files in by_flags.values():
        to_make: dict[frozenset[str], Future[Path | None]] = {}
        for file, includes in worth_precompiling(files).items():
            if includes not in to_make:
                into = folder / f"{len(handed)}.pch"
                made = pool.submit(with_compiler.precompile, includes, work[file], into)
                to_make[includes] = made
            handed[file] = to_make[includes]
    return {file: made.result() for file, made in handed.items()}


def main() -> int:
    work = all_to_compile(sources.commands())
    clean = sources.Clean(sources.CONFIGURED / "clean")
    clean.folder.mkdir(exist_ok=True)
    stamps = {file: clean.stamp(file, command) for file, command in work.items()}
    todo = [file for file, path in stamps.items() if not path.exists()]
    with_compiler = compiler()
    complaints = 0
    with (
        TemporaryDirectory(dir=sources.CONFIGURED) as folder,  # 20 MB each
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        before: dict[Path, Path | None] = {}
        if with_compiler.can_precompile:
            to_compile = {file: work[file] for file in todo}
            before = precompiled(with_compiler, to_compile, Path(folder), pool)
        found = pool.map(lambda f: errors(with_compiler, f, work[f], before.get(f)), todo)
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

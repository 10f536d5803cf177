#!/usr/bin/env python3
"""Runs clang-tidy 19 on files of src/ and bindings/ that changed since it last found them clean.

What a file was clean with is kept in build/tidy: a hash of the file, of all of our headers that it
includes, of its command and of .clang-tidy. From nothing it takes several minutes a core.
Prints what clang-tidy finds and exits 1 if that is anything.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sources

TIDY = "clang-tidy-19"
FINDING = re.compile(r"\b(?:warning|error): ")
# Flags that gcc alone knows would be findings themselves.
KNOWN_FLAGS = "--extra-arg=-Wno-unknown-warning-option"


def findings(file: Path) -> str:
    """What clang-tidy says of the file; empty when it is clean."""
    done = subprocess.run(
        [TIDY, "--quiet", KNOWN_FLAGS, "-p", sources.CONFIGURED, file],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0 and not FINDING.search(done.stdout):
        return ""
    return done.stdout or done.stderr


def main() -> int:
    clean = sources.Clean(Path("build/tidy"), Path(".clang-tidy").read_bytes())
    clean.folder.mkdir(parents=True, exist_ok=True)
    commands = sources.commands()
    stamps = {file: clean.stamp(file, command) for file, command in commands.items()}
    todo = [file for file, path in stamps.items() if not path.exists()]
    print(f"{len(todo)} of {len(stamps)} files to look at", flush=True)
    complaints = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for file, text in zip(todo, pool.map(findings, todo), strict=True):
            if text:
                complaints += 1
                print(text, end="", flush=True)
            else:
                stamps[file].touch()
    clean.forget_all_but(set(stamps.values()))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

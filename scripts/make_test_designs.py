"""What compiling for `make test` costs in several designs: the same files, one compiler at a time.

    nice .venv/bin/python scripts/make_test_designs.py [--samples 2] [--only NAME..] [--cached]

Copies what git has of this tree, changes a line of it for each design, builds TARGETS without a
compiler cache, and adds up user and system time of all processes. Designs take turns, so that a
load of the machine's other programs meets all of them. With --cached instead: what steps take with
an empty compiler cache, and again with what they left there. Adds a run to
records/make_test_designs.json.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TARGETS = ("test_group",)
FOLDERS = ("base", "sys", "group")
"""Of src/, which it links; of tests/ it has group."""

STD = "<algorithm> <array> <atomic> <cstdint> <functional> <memory> <span> <string> <vector>"
LIBRARY = "  add_library(braid_${name} STATIC ${sources})\n"
PROGRAM = "  add_executable(test_${name} ${sources})\n"
ONE_HEADER = {
    "CMakeLists.txt": (
        LIBRARY,
        LIBRARY + "  if(name STREQUAL sys)\n"
        f"    target_precompile_headers(braid_sys PRIVATE {STD})\n"
        "  elseif(NOT name STREQUAL base)\n"
        "    target_precompile_headers(braid_${name} REUSE_FROM braid_sys)\n  endif()\n",
    ),
    "tests/CMakeLists.txt": (
        PROGRAM,
        PROGRAM + "  if(name STREQUAL group)\n"
        f"    target_precompile_headers(test_group PRIVATE <gtest/gtest.h> {STD})\n  endif()\n",
    ),
}
LARGER = {
    "CMakeLists.txt": ("braid_unity(braid_${name} 24)", "braid_unity(braid_${name} 48)"),
    "tests/CMakeLists.txt": ("braid_unity(test_${name} 18)", "braid_unity(test_${name} 36)"),
}
NO_UNITS = {
    "CMakeLists.txt": ("  if(BRAID_UNITY)\n", "  if(FALSE)\n"),
    "tests/CMakeLists.txt": ("  braid_unity(test_${name} 18)\n", ""),
}


def tests_at(flags: str) -> dict[str, tuple[str, str]]:
    return {"tests/CMakeLists.txt": ("set(test_flags -Og)", f"set(test_flags {flags})")}


def all_at(flags: str) -> dict[str, tuple[str, str]]:
    return {"CMakeLists.txt": ("${sanitized_flags} -g1 -fsanitize", f"{flags} -fsanitize")}


RELEASE = ("-DCMAKE_BUILD_TYPE=Release",)
ADDRESS = ("-DCMAKE_BUILD_TYPE=Debug", "-DBRAID_SANITIZE=address,undefined")
THREAD = ("-DCMAKE_BUILD_TYPE=Debug", "-DBRAID_SANITIZE=thread")


@dataclass(frozen=True)
class Design:
    build: str
    what: str
    options: tuple[str, ...]
    changes: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.build}: {self.what}"


DESIGNS = (
    Design("release", "as it is", RELEASE),
    Design("release", "each file by itself", RELEASE, NO_UNITS),
    Design("release", "units twice as large", RELEASE, LARGER),
    Design("release", "one precompiled header for all", RELEASE, ONE_HEADER),
    Design("release", "tests at -O0", RELEASE, tests_at("-O0")),
    Design("debug", "as it is", ADDRESS),
    Design("debug", "units twice as large", ADDRESS, LARGER),
    Design("debug", "one precompiled header for all", ADDRESS, ONE_HEADER),
    Design("debug", "no lines for backtraces", ADDRESS, all_at("-O0 -g0")),
    Design("debug", "at -O1", ADDRESS, all_at("-O1 -g1")),
    Design("debug", "gcc at -Og", (*ADDRESS, "-DCMAKE_CXX_COMPILER=g++")),
    Design("tsan", "as it is", THREAD),
    Design("tsan", "one precompiled header for all", THREAD, ONE_HEADER),
)


KERNELS = ("coll/reduce/reduce_whole", "coll/reduce/reduce_rest", "coll/packets/copies")
"""Of build/release, for sm_90a: 25 of the 387 seconds that all its kernels took with two compilers
at once, after Ninja's log."""
STEPS = {
    "check_kernels": ["scripts/check_kernels"],
    "try_install": ["scripts/try_install"],
    "three kernels": [],
}


def put(tree: Path, changes: dict[str, tuple[str, str]]) -> None:
    for file, (old, new) in changes.items():
        text = (tree / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"make_test_designs: {file}: {old!r} is there {text.count(old)} times")
        (tree / file).write_text(text.replace(old, new), encoding="utf-8")


def measured(design: Design, archive: Path, folder: Path) -> dict[str, float]:
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    put(tree, design.changes)
    options = ("-DBRAID_BUILD_PYTHON=OFF", "-DBRAID_CUDA=OFF", "-DBRAID_WERROR=OFF")
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(
        ["cmake", "-S", tree, "-B", tree / "made", "-G", "Ninja", *options, *design.options],
        **quiet,
    )
    return spent(design.name, ["ninja", "-C", str(tree / "made"), "-j1", *TARGETS])


def spent(what: str, command: list[str], env: dict[str, str] | None = None) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise SystemExit(f"make_test_designs: {what}: {(done.stdout + done.stderr)[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "user": round(after.ru_utime - before.ru_utime, 2),
        "sys": round(after.ru_stime - before.ru_stime, 2),
    }


def kernels() -> list[str]:
    """Their compilers' commands, one after the other."""
    targets = [f"kernels/{one}.fatbin" for one in KERNELS]
    said = subprocess.run(
        ["ninja", "-C", "build/release", "-t", "commands", *targets],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    ours = [line for line in said if any(f"{target}.d" in line for target in targets)]
    assert len(ours) == len(targets)
    return ["bash", "-c", "; ".join(f"({line})" for line in ours)]


def with_a_cache(
    rows: list[dict[str, Any]], wanted: dict[str, list[str]], num_samples: int, folder: Path
) -> Iterator[None]:
    env = os.environ | {
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_DEPEND": "1",
        "CCACHE_BASEDIR": os.getcwd(),
    }
    for number in range(num_samples):
        for step, command in wanted.items():
            env["CCACHE_DIR"] = str(folder / f"{step} {number}")
            for what in ("nothing in the cache", "all in the cache"):
                row = next((r for r in rows if (r["build"], r["design"]) == (step, what)), None)
                if row is None:
                    rows.append(row := {"build": step, "design": what, "samples": []})
                row["samples"].append(spent(step, command or kernels(), env))
                print(step, what, row["samples"][-1], flush=True)
                yield


def without_one(
    rows: list[dict[str, Any]], wanted: list[Design], num_samples: int, folder: Path
) -> Iterator[None]:
    os.environ["CCACHE_DISABLE"] = "1"
    archive = folder / "tree.tar"
    subprocess.run(["git", "archive", "-o", archive, "HEAD"], check=True)
    rows.extend({"build": one.build, "design": one.what, "samples": []} for one in wanted)
    for _ in range(num_samples):
        for design, row in zip(wanted, rows, strict=True):
            row["samples"].append(measured(design, archive, folder))
            print(design.name, row["samples"][-1], flush=True)
            yield


def lines_of(folders: list[Path], pattern: str) -> int:
    files = [file for folder in folders for file in folder.rglob(pattern)]
    return sum(len(file.read_bytes().splitlines()) for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("records/make_test_designs.json"))
    args = parser.parse_args()
    from braid.bench import facts

    commit, dirty = facts.commit()
    wanted = [one for one in DESIGNS if not args.only or one.name in args.only]
    steps_wanted = {k: v for k, v in STEPS.items() if not args.only or k in args.only}
    ours = [Path("src") / name for name in FOLDERS], [Path("tests/group")]
    run: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "targets": TARGETS,
        "lines": {
            "src": [lines_of(ours[0], "*.cc"), lines_of([Path("src")], "*.cc")],
            "tests": [lines_of(ours[1], "*_test.cc"), lines_of([Path("tests")], "*_test.cc")],
        },
        "designs": [],
    }
    runs = json.loads(args.out.read_text(encoding="utf-8"))["runs"] if args.out.exists() else []
    record = {
        "schema": "braid.make_test_designs/1",
        "command": "nice scripts/make_test_designs.py",
        "date": run["date"],
        "commit": commit,
        "dirty": dirty,
        "machine": f"{os.cpu_count()} cores",
        "runs": [*runs, run],
    }
    with TemporaryDirectory() as made:
        folder, rows = Path(made), run["designs"]
        steps = (
            with_a_cache(rows, steps_wanted, args.samples, folder)
            if args.cached
            else without_one(rows, wanted, args.samples, folder)
        )
        for _ in steps:
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

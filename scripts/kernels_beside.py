"""Kernels of packets, lines and direct of two commits beside each other, on streams of one GPU.

    git archive --format=tar.gz -o before.tar.gz BEFORE src
    git archive --format=tar.gz -o after.tar.gz AFTER src tests/device
    scripts/kernels_beside.py before.tar.gz after.tar.gz --out records/beside_kernels_2.json

Needs nvcc with its static runtime, and one GPU. The archives name their commits. Either's kernels
are compiled as the library has them, and after's tests/device/collectives_check.cu over either's
sources. These check all cases, then run in turn, checking what arrives before and after they time
anything, each round beginning with the other one. Every sample is kept. Where cuobjdump is at hand,
the record says of each file of kernels whether its machine code is the same. `halves` of a row is
the first half of before's own samples over the second: what a ratio of 1 looks like.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LIMIT = 1.02  # of the other's time
KERNELS = (
    "lines/line_copies",
    "lines/line_floats",
    "direct/direct_copies",
    "direct/direct_floats",
    "packets/copies",
    "packets/packets_reduce_floats",
)
SHAPES = ("packets", "lines", "direct")
ARCHITECTURE = ("-gencode", "arch=compute_90a,code=sm_90a")
# As cmake/cuda.cmake compiles them for the library, for one architecture.
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Isrc", *ARCHITECTURE)
KEYS = ("way", "op", "dtype", "ranks", "message_bytes", "blocks", "calls")
SIDES = ("before", "after")


def said(command: list[str], seconds: float, cwd: Path | None = None) -> str:
    """What a command printed; the end of this program where it fails."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{command[0]}: exit code {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def nvcc_at_hand() -> Path:
    for place in (os.environ.get("NVCC"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if place and Path(place).exists():
            return Path(place).resolve()
    raise SystemExit("kernels_beside: no nvcc; name it in NVCC")


class Side:
    """A commit's sources, unpacked, and what is built of them."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as files:
            self.commit = files.pax_headers["comment"]
            files.extractall(folder, filter="data")
        self.folder = folder
        self.program = folder / "collectives_check"
        self.fatbins = [folder / f"{Path(name).name}.fatbin" for name in KERNELS]

    def compilations(self, nvcc: Path, tests: Path) -> list[list[str]]:
        """The longest first."""
        toolkit = nvcc.parent.parent
        folders = [toolkit / name for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
        library = next((one for one in folders if (one / "libcudart_static.a").exists()), None)
        program = [str(tests / "device/collectives_check.cu"), f"-I{tests}", "-cudadevrt", "none"]
        program += [f"src/coll/{kind}/shape.cc" for kind in SHAPES]
        program += [f"-L{library}"] if library else []
        made = [
            [f"src/coll/{name}.cu", "-fatbin", "-o", str(fatbin)]
            for name, fatbin in zip(KERNELS, self.fatbins, strict=True)
        ]
        made.sort(key=lambda args: "floats" not in args[0])
        return [[str(nvcc), *FLAGS, *args] for args in [*made, [*program, "-o", str(self.program)]]]

    def check(self, seconds: float) -> list[str]:
        """What the program says of all cases, by way and ranks; right or wrong."""
        try:
            done = subprocess.run(
                [str(self.program), *map(str, self.fatbins)],
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [f"no end in {seconds} s"]
        return [*done.stdout.splitlines(), f"exit code {done.returncode}"]

    def times(self, seconds: float) -> dict[tuple[Any, ...], list[float]]:
        command = [str(self.program), "--times", *map(str, self.fatbins)]
        lines = said(command, seconds).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return {tuple(each[key] for key in KEYS): each["us"] for each in found}


def build(sides: dict[str, Side], nvcc: Path) -> None:
    tests = sides["after"].folder / "tests"
    jobs = [
        (command, side.folder)
        for side in sides.values()
        for command in side.compilations(nvcc, tests)
    ]
    jobs.sort(key=lambda job: not any("floats.cu" in word for word in job[0]))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda job: said(job[0], 170, job[1]), jobs))


def machine_code(fatbin: Path, nvcc: Path) -> str | None:
    dump = nvcc.parent / "cuobjdump"
    return said([str(dump), "-sass", str(fatbin)], 60) if dump.exists() else None


def same_code(sides: dict[str, Side], nvcc: Path) -> dict[str, bool | None]:
    """By the kernels' files; None where nothing can tell."""
    with ThreadPoolExecutor() as pool:
        before, after = (
            list(pool.map(lambda fatbin: machine_code(fatbin, nvcc), sides[side].fatbins))
            for side in SIDES
        )
    pairs = zip(KERNELS, before, after, strict=True)
    return {name: None if old is None else old == new for name, old, new in pairs}


def row(what: tuple[Any, ...], samples: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Medians of all samples, their ratio, and the samples by round."""
    flat = {side: [us for one in samples[side] for us in one] for side in SIDES}
    median = {side: statistics.median(flat[side]) for side in SIDES}
    half = len(flat["before"]) // 2
    halves = statistics.median(flat["before"][:half]) / statistics.median(flat["before"][half:])
    return {
        **dict(zip(KEYS, what, strict=True)),
        "before_us": round(median["before"], 3),
        "after_us": round(median["after"], 3),
        "ratio": round(median["after"] / median["before"], 4),
        "halves": round(halves, 4),
        "samples_us": samples,
    }


def measure(sides: dict[str, Side], rounds: int, ends: float) -> list[dict[str, Any]]:
    """As many rounds as end in time; three at least."""
    found: dict[tuple[Any, ...], dict[str, list[list[float]]]] = {}
    longest = 0.0
    for index in range(rounds):
        if index >= 3 and time.monotonic() + longest > ends:
            print(f"kernels_beside: {index} rounds, as time is up", flush=True)
            break
        began = time.monotonic()
        for side in SIDES if index % 2 == 0 else reversed(SIDES):
            for what, us in sides[side].times(60).items():
                found.setdefault(what, {each: [] for each in SIDES})[side].append(us)
        longest = max(longest, time.monotonic() - began)
        print(f"round {index + 1}: {time.monotonic() - began:.1f} s", flush=True)
    return [row(what, samples) for what, samples in found.items() if all(samples.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=200, help="no round that ends later")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    began = time.monotonic()
    nvcc = nvcc_at_hand()
    gpu, driver = said(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"], 30
    ).split(", ")
    with tempfile.TemporaryDirectory() as folder:
        archives = {"before": given.before, "after": given.after}
        sides = {side: Side(path, Path(folder) / side) for side, path in archives.items()}
        build(sides, nvcc)
        print(f"built after {time.monotonic() - began:.1f} s", flush=True)
        code = same_code(sides, nvcc)
        checks = {side: each.check(60) for side, each in sides.items()}
        for side, lines in checks.items():
            print(f"checks of {side}, {time.monotonic() - began:.1f} s:", *lines, sep="\n  ")
        sys.stdout.flush()
        rows = measure(sides, given.rounds, began + given.seconds)
    record = {
        "schema": "braid.kernels_beside/1",
        "command": "scripts/" + " ".join([Path(__file__).name, "before.tar.gz", "after.tar.gz"]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": sides["after"].commit,
        "before_commit": sides["before"].commit,
        "dirty": False,  # what was built is what the archives hold
        "gpu": gpu.strip(),
        "driver": driver.strip(),
        "nvcc": said([str(nvcc), "--version"], 30).splitlines()[-1],
        "rounds": len(rows[0]["samples_us"]["before"]) if rows else 0,
        "same_machine_code": code,
        "checks": checks,
        "rows": rows,
    }
    given.out.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"machine code is the same: {code}")
    ratios = sorted(each["ratio"] for each in rows)
    halves = sorted(each["halves"] for each in rows)
    print(f"{len(rows)} figures, after / before {ratios[0]} to {ratios[-1]}")
    print(f"before / before, first half and second: {halves[0]} to {halves[-1]}")
    for each in rows:
        if each["ratio"] > LIMIT:
            print("SLOWER", {key: each[key] for key in each if key != "samples_us"})


if __name__ == "__main__":
    main()

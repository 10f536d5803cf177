"""nccl-tests, NCCL's own programs, with NCCL alone and with braid in its place.

    nccl_tests.py build CHECKOUT OUT          compiles a checkout of nccl-tests into OUT
    nccl_tests.py run OUT --json RECORD       on all GPUs; --parts, --programs for a part of it

A process per GPU needs MPI: tests/gpu/nccl_tests/mpi.c stands in for it, started by `braid run`.
Nothing of nccl-tests is in this repository. What the parts are, plan() says. Exit code 1: a value
was wrong, a program did not end, or braid did not take over what it should.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nccl_tests_record import (
    BRAID,
    HANDED_ON,
    NCCL,
    SCHEMA,
    TAKEN,
    Outcome,
    Ratio,
    Record,
    Step,
    ratios,
    read,
)

ROOT = Path(__file__).resolve().parents[1]
STAND_IN = ROOT / "tests/gpu/nccl_tests"
DROP_IN = ROOT / "python/braid/libbraid-nccl.so"
ADDS = ("all_reduce", "reduce_scatter")
PER_RANK = ("all_gather", "reduce_scatter")  # a size is all ranks' together
PARTS = ("check", "large", "graph", "shared", "time", "product")
DEFAULT_PARTS = PARTS[:-1]

_CHECKED_ONCE = "-n 1 -w 0 -c 1"
_ALL = "-d all -o all"
_TIMED = "-n 20 -w 5 -c 1 -N 2 -d bfloat16"


def plan(ranks: int, rounds: int) -> Iterator[Step]:
    """Every step, part by part."""
    for program in (*TAKEN, *HANDED_ON):  # every type and reduction, 8 B to 128 MiB
        sizes = f"-b 8 -e 128M -f {4 if program in TAKEN else 64}"
        root = "-r -1 " if program == "broadcast" else ""
        yield Step("check", program, f"{sizes} {root}{_CHECKED_ONCE} {_ALL}", BRAID)
    for program in TAKEN:  # 512 MiB and 4 GiB
        sizes = f"-b 512M -e 4G -f 8 {_CHECKED_ONCE}"
        yield Step("large", program, f"{sizes} -d all -o sum", BRAID)
        if program in ADDS:
            yield Step("large", program, f"{sizes} -d bfloat16 -o all", BRAID)
            yield Step("product", program, f"{sizes} {_ALL}", BRAID)
    for program in TAKEN:  # in CUDA graphs, each launched twice
        sizes = "-b 8 -e 128M -f 16 -G 2 -n 2 -w 0 -c 1"
        yield Step("graph", program, f"{sizes} {_ALL}", BRAID)
    for program in TAKEN:  # one process with all GPUs
        sizes = f"-g {ranks} -b 8 -e 128M -f 16"
        yield Step("shared", program, f"{sizes} {_CHECKED_ONCE} {_ALL}", BRAID, True)
        yield Step("shared", program, f"{sizes} -G 2 -n 2 -w 0 -c 1 -d bfloat16", BRAID, True)
    for turn in range(rounds):
        for program in TAKEN:
            yield from _timed(program, ranks, turn)


def _timed(program: str, ranks: int, turn: int) -> Iterator[Step]:
    """NCCL and braid in turn, the first one first in every other round."""
    kib = ranks if program in PER_RANK else 1
    sizes = [f"-b {kib}K -e {kib}G -f 4 {_TIMED}"]
    if program in (*ADDS, "all_gather"):
        sizes.append(f"-b {kib}K -e {4 * kib}M -f 4 -G 5 {_TIMED}")
    for arguments in sizes:
        for who in (NCCL, BRAID) if turn % 2 == 0 else (BRAID, NCCL):
            yield Step("time", program, arguments, who, keeps_times=True)


@dataclass(frozen=True)
class Setup:
    """Where things are."""

    programs: Path
    nccl: Path
    """The real libnccl.so.2."""
    ranks: int
    timeout_s: float


def command_of(step: Step, setup: Setup) -> list[str]:
    """The line that runs a step. Only the program is given another NCCL: not what starts it."""
    assigned = [f"LD_LIBRARY_PATH={setup.nccl.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"]
    if step.who == BRAID:
        assigned += [f"LD_PRELOAD={DROP_IN}", f"BRAID_NCCL_REAL={setup.nccl}", "BRAID_LOG=info"]
        assigned += ["BRAID_NCCL_TIMEOUT=30s"]
        assigned += ["BRAID_NCCL_SHARED=on"] if step.is_one_process else []
    program = str(setup.programs / f"{step.program}_perf")
    inner = ["env", *assigned, program, *step.arguments.split()]
    if step.is_one_process:
        return inner
    return [sys.executable, "-m", "braid.cli", "run", "-n", str(setup.ranks), "--", *inner]


def play(step: Step, setup: Setup) -> Outcome:
    """Runs a step, for so long at most."""
    with tempfile.TemporaryDirectory() as folder:
        said, log = Path(folder) / "said", Path(folder) / "log"
        begin_s = time.monotonic()
        with said.open("wb") as out, log.open("wb") as err:
            try:
                code = subprocess.run(
                    command_of(step, setup), stdout=out, stderr=err, check=False,
                    stdin=subprocess.DEVNULL, timeout=setup.timeout_s,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = 124
        seconds = time.monotonic() - begin_s
        words = log.read_text(errors="replace")
        outcome = read(step, said.read_text(errors="replace"), words, seconds, code)
        if outcome.failure(setup.ranks):
            print("".join(words.splitlines(keepends=True)[-8:]), file=sys.stderr, end="")
    return outcome


def run(setup: Setup, steps: list[Step], path: Path | None) -> int:
    """All steps; the record is written after each."""
    record = _record(setup)
    num_failed = 0
    for step in steps:
        outcome = play(step, setup)
        record.outcomes.append(outcome)
        record.ratios = ratios(record.outcomes)
        why = outcome.failure(setup.ranks)
        num_failed += bool(why)
        print(
            f"{step.part:7} {step.who:6} {step.program:15} {outcome.num_checked:5} checked"
            f" {outcome.wrong} wrong {outcome.seconds:5.1f} s  {why or 'ok'}",
            flush=True,
        )
        if path:
            from braid import json_file

            json_file.save(record, path)
    show(record.ratios)
    checked = sum(o.num_checked for o in record.outcomes if o.step.who == BRAID)
    wrong = sum(o.wrong for o in record.outcomes if o.step.who == BRAID)
    print(f"under braid: {checked} results, {wrong} wrong values; {num_failed} steps failed")
    return 1 if num_failed else 0


def show(found: list[Ratio]) -> None:
    """A line for every size: NCCL's time, braid's, and how many times as fast that is."""
    for one in sorted(found, key=lambda r: (r.program, r.is_graph, r.place, r.bytes)):
        how = "graph" if one.is_graph else "eager"
        place = "in place" if one.place.endswith("in place") else "out of place"
        print(
            f"{one.program:15} {how} {place:12} {one.bytes:>12} B"
            f" {one.nccl_us:>10.1f} us {one.braid_us:>10.1f} us {one.ratio:6.2f}x"
        )


def _record(setup: Setup) -> Record:
    from braid.cli import facts

    commit, dirty = facts.commit()
    return Record(
        schema=SCHEMA,
        command=" ".join(sys.argv),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        gpu=_gpu(),
        nccl=_line("strings", str(setup.nccl), found="NCCL version "),
        nccl_tests=_version(setup.programs),
        ranks=setup.ranks,
        options=facts.variables(),
    )


def _line(*command: str, found: str = "") -> str:
    """The first line that has the words; "unknown" where there is none, or no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    except OSError:
        return "unknown"
    return next((line.strip() for line in done.stdout.splitlines() if found in line), "unknown")


def _gpu() -> str:
    return _line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


def _version(programs: Path) -> str:
    built = programs / "CHECKOUT"
    return built.read_text(encoding="utf-8").strip() if built.exists() else "unknown"


def nccl_folder(asked: Path | None) -> Path:
    """NCCL's, with include/ and lib/: the one asked for, else the nvidia-nccl wheel's."""
    if asked:
        return asked
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        sys.exit("nccl_tests: no nvidia-nccl wheel beside this Python; name a folder with --nccl")
    return Path(spec.submodule_search_locations[0])


def build(checkout: Path, out: Path, nccl: Path, cuda: Path, arch: str, jobs: int) -> int:
    """Compiles the programs and the stand-in for MPI."""
    links = out / "links"
    for folder in (links / "lib", links / "include"):
        folder.mkdir(parents=True, exist_ok=True)
    library = links / "lib/libnccl.so"
    library.unlink(missing_ok=True)
    library.symlink_to(nccl / "lib/libnccl.so.2")
    (links / "include/mpi.h").write_bytes((STAND_IN / "mpi.h").read_bytes())
    mpi = links / "lib/mpi.o"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-c", str(STAND_IN / "mpi.c"), "-o", str(mpi)], check=True)
    archive = links / "lib/libmpi.a"
    archive.unlink(missing_ok=True)
    subprocess.run(["ar", "cr", str(archive), str(mpi)], check=True)
    code = f"-gencode=arch=compute_{arch},code=sm_{arch} -I{nccl / 'include'}"
    subprocess.run(
        [
            "make", "-C", str(checkout / "src"), f"-j{jobs}", "MPI=1", f"MPI_HOME={links}",
            f"NCCL_HOME={links}", f"CUDA_HOME={cuda}", "CUDARTLIB=cudart_static",
            f"NVCC_GENCODE={code}", f"BUILDDIR={out.resolve()}", "DSO=0",
        ],
        check=True,
    )  # fmt: skip
    for left in out.rglob("*.o"):
        left.unlink()
    version = _line("grep", "NCCL_TESTS_VERSION", str(checkout / "src/common.h"), found="define")
    (out / "CHECKOUT").write_text(version.split()[-1].strip('"') + "\n", encoding="utf-8")
    print(f"nccl_tests: {len(list(out.glob('*_perf')))} programs in {out}")
    return 0


def chosen(args: argparse.Namespace, ranks: int) -> list[Step]:
    """The steps that were asked for."""
    parts = args.parts.split(",") if args.parts else DEFAULT_PARTS
    programs = args.programs.split(",") if args.programs else (*TAKEN, *HANDED_ON)
    for word in (*parts, *programs):
        if word not in (*PARTS, *TAKEN, *HANDED_ON):
            sys.exit(f"nccl_tests: '{word}' is no part and no program")
    steps = [
        step
        for step in plan(ranks, args.rounds)
        if step.part in parts and step.program in programs
    ]
    return [replace(step, who=NCCL) for step in steps if step.who == BRAID] if args.nccl_alone else steps


def _gpus() -> int:
    found = _line("nvidia-smi", "--query-gpu=count", "--format=csv,noheader")
    return int(found) if found.isdigit() else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    make = commands.add_parser("build")
    make.add_argument("checkout", type=Path)
    make.add_argument("--cuda", type=Path, default=Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")))
    make.add_argument("--arch", default="90")
    make.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    test = commands.add_parser("run")
    test.add_argument("--ranks", type=int, default=0, help="0: every GPU")
    test.add_argument("--parts", default="", help=f"a list of {', '.join(PARTS)}; not said: all but product")
    test.add_argument("--programs", default="", help="a list such as all_reduce,alltoall")
    test.add_argument("--rounds", type=int, default=2, help="of NCCL and braid in turn")
    test.add_argument("--nccl-alone", action="store_true", help="what is checked, without braid")
    test.add_argument("--timeout", type=float, default=55, help="seconds for a step")
    test.add_argument("--json", type=Path, help="write the record here")
    for one in (make, test):
        one.add_argument("out", type=Path, help="where the programs are")
        one.add_argument("--nccl", type=Path, help="folder with include/ and lib/ of NCCL")
    args = parser.parse_args()
    nccl = nccl_folder(args.nccl)
    if args.what == "build":
        return build(args.checkout, args.out, nccl, args.cuda, args.arch, args.jobs)
    ranks = args.ranks or _gpus()
    if ranks < 2:
        sys.exit("nccl_tests: it takes two GPUs; nvidia-smi says how many there are, or --ranks")
    setup = Setup(args.out.resolve(), nccl / "lib/libnccl.so.2", ranks, args.timeout)
    return run(setup, chosen(args, ranks), args.json)


if __name__ == "__main__":
    sys.exit(main())

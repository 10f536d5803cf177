"""nccl-tests, NCCL's own programs, with NCCL alone and with braid in its place.

    tests/gpu/nccl_tests/build CHECKOUT BUILT    compiles a checkout; it is not in this repository
    scripts/nccl_tests.py BUILT --json RECORD    on all GPUs; --parts, --programs for less

A process per GPU needs MPI: tests/gpu/nccl_tests/mpi.c stands in for it, started by `braid run`.
Exit code 1: a value was wrong, a program did not end, or braid did not take over what it should.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nccl_tests_plan import BRAID, DEFAULT_PARTS, HANDED_ON, NCCL, OPS, PARTS, TAKEN, Step, plan
from nccl_tests_record import SCHEMA, Outcome, Ratio, Record, ratios, read

ROOT = Path(__file__).resolve().parents[1]
DROP_IN = ROOT / "python/braid/libbraid-nccl.so"


@dataclass(frozen=True)
class Setup:
    """Where things are."""

    programs: Path
    nccl: Path
    """The real libnccl.so.2."""
    ranks: int
    timeout_s: float
    commit: str = ""
    """Of a tree without git, for the record; "": git says."""


def command_of(step: Step, setup: Setup) -> list[str]:
    """The line that runs a step. Only the program is given another NCCL: not what starts it."""
    paths = [str(setup.nccl.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    assigned = [f"LD_LIBRARY_PATH={':'.join(paths)}"]
    if step.who == BRAID:
        assigned += [f"LD_PRELOAD={DROP_IN}", f"BRAID_NCCL_REAL={setup.nccl}", "BRAID_LOG=info"]
        assigned += ["BRAID_NCCL_TIMEOUT=30s"]
        assigned += ["BRAID_NCCL_SHARED=on"] if step.is_one_process else []
        # What is checked is braid, at sizes too that the drop-in would leave to NCCL.
        assigned += [] if step.keeps_times else [f"BRAID_NCCL_OPS={','.join(OPS)}"]
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
    kinds = {(False, False): "eager", (True, False): "graph", (False, True): "windows"}
    for one in sorted(
        found, key=lambda r: (r.program, r.is_in_windows, r.is_graph, r.place, r.bytes)
    ):
        how = kinds[one.is_graph, one.is_in_windows]
        place = "in place" if one.place.endswith("in place") else "out of place"
        print(
            f"{one.program:15} {how:7} {place:12} {one.bytes:>12} B"
            f" {one.nccl_us:>10.1f} us {one.braid_us:>10.1f} us {one.ratio:6.2f}x"
        )


def _record(setup: Setup) -> Record:
    from braid.bench import facts

    commit, dirty = facts.commit(setup.commit)
    return Record(
        schema=SCHEMA,
        command=" ".join(sys.argv),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        gpu=_asked("name"),
        ranks=setup.ranks,
        options=facts.variables(),
    )


def _asked(fact: str) -> str:
    """What nvidia-smi says of the first GPU; "unknown" where there is none."""
    command = ["nvidia-smi", f"--query-gpu={fact}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return next(iter(done.stdout.splitlines()), "unknown").strip()


def nccl_folder(asked: Path | None) -> Path:
    """The one asked for, else the nvidia-nccl wheel's."""
    if asked:
        return asked
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        sys.exit("nccl_tests: no nvidia-nccl wheel beside this Python; name a folder with --nccl")
    return Path(spec.submodule_search_locations[0])


def chosen(args: argparse.Namespace, ranks: int) -> list[Step]:
    """The steps that were asked for."""
    parts = args.parts.split(",") if args.parts else DEFAULT_PARTS
    programs = args.programs.split(",") if args.programs else (*TAKEN, *HANDED_ON)
    for word in (*parts, *programs):
        if word not in (*PARTS, *TAKEN, *HANDED_ON):
            sys.exit(f"nccl_tests: '{word}' is no part and no program")
    steps = [
        step for step in plan(ranks, args.rounds) if step.part in parts and step.program in programs
    ]
    if args.nccl_alone:
        return [replace(step, who=NCCL) for step in steps if step.who == BRAID]
    return steps


def _gpus() -> int:
    found = _asked("count")
    return int(found) if found.isdigit() else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("built", type=Path, help="where the programs are")
    parser.add_argument("--ranks", type=int, default=0, help="0: every GPU")
    parts = f"a list of {', '.join(PARTS)}; not said: all but product"
    parser.add_argument("--parts", default="", help=parts)
    parser.add_argument("--programs", default="", help="a list such as all_reduce,alltoall")
    parser.add_argument("--rounds", type=int, default=2, help="of NCCL and braid in turn")
    parser.add_argument("--nccl-alone", action="store_true", help="the checks without braid")
    parser.add_argument("--timeout", type=float, default=55, help="seconds for a step")
    parser.add_argument("--nccl", type=Path, help="the folder of NCCL that has lib/libnccl.so.2")
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--commit", default="", help="of a tree without git, for the record")
    args = parser.parse_args()
    ranks = args.ranks or _gpus()
    if ranks < 2:
        sys.exit("nccl_tests: it takes two GPUs; nvidia-smi says how many there are, or --ranks")
    nccl = nccl_folder(args.nccl) / "lib/libnccl.so.2"
    setup = Setup(args.built.resolve(), nccl.resolve(), ranks, args.timeout, args.commit)
    return run(setup, chosen(args, ranks), args.json)


if __name__ == "__main__":
    sys.exit(main())

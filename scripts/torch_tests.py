"""PyTorch's own distributed tests with braid in NCCL's place, and with NCCL alone what fails.

    python3 scripts/torch_tests.py CHECKOUT --json RECORD      # CHECKOUT/test/distributed
    python3 scripts/torch_tests.py CHECKOUT --files test_c10d_nccl.py --workers 4

CHECKOUT is PyTorch's source, outside this repository, of about the version that is installed: a
file that does not fit it cannot be read, and is named. Needs pytest and expecttest. Tests start
processes of their own; several run at a time, on the same GPUs. One that fails with braid is run
with NCCL, and where it passes there again, alone, in both ways: only what fails with braid each
time is held against it. A quarter of the time is kept for that: beside many others a test may take
longer than it may. What passes only when it is run again is named.

Exit code 1: a test fails, hangs or crashes with braid that passes with NCCL alone, or with which
NCCL was not asked since the time was over; or no communicator was taken over.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DROP_IN = ROOT / "python/braid/libbraid-nccl.so"
NCCL, BRAID = "nccl", "braid"
FILES = (
    "test_c10d_nccl.py",
    "test_distributed_spawn.py",
    "test_nccl.py",
    "test_c10d_object_collectives.py",
    "test_c10d_spawn_nccl.py",
    "test_functional_api.py",
    "test_device_mesh.py",
    "test_pg_wrapper.py",
    "test_data_parallel.py",
    "_composable/fsdp/test_fully_shard_comm.py",
    "_composable/fsdp/test_fully_shard_overlap.py",
    "tensor/parallel/test_tp_examples.py",
    "tensor/parallel/test_parallelize_api.py",
    "_tensor/test_redistribute.py",
    "_tensor/test_dtensor.py",
    "algorithms/ddp_comm_hooks/test_ddp_hooks.py",
    "optim/test_zero_redundancy_optimizer.py",
)
CHUNK = 4
"""Tests of one pytest: starting one costs seconds, and a hang takes the rest with it."""
START_S, TEST_S, COLLECT_S = 40.0, 60.0, 300.0
PYTEST = [
    *(sys.executable, "-m", "pytest", "-p", "torch_tests", "-p", "no:cacheprovider"),
    *("-c", os.devnull, "--rootdir", "."),  # no settings of a folder that CHECKOUT lies in
]
PYTEST_ENDS = (0, 1)
"""Its exit codes where it ran what it was asked for."""
GOOD = ("passed", "skipped")
TAKEN = ": taken over (rank"
"""In the drop-in's line about a communicator, of each rank."""
BAD = ("failed", "crashed", "hung")
KEPT = 0.25
"""Of the time, in which nothing is begun but what is run again."""
NOT_RUN = "not run"
"""The time was over."""
NOTES = "BRAID_TORCH_TESTS_NOTES"


# ---- within pytest, which is told to load this file (-p torch_tests) ----


def pytest_runtest_logstart(nodeid: str) -> None:
    """Names the test that a hang or a crash was in."""
    _note(nodeid, "started")


def pytest_runtest_logreport(report: "object") -> None:
    """A test is what its worst part is."""
    outcome, when = getattr(report, "outcome", ""), getattr(report, "when", "")
    if when == "call" or outcome != "passed":
        _note(getattr(report, "nodeid", ""), outcome)


def _note(nodeid: str, word: str) -> None:
    path = os.environ.get(NOTES)
    if path:
        with Path(path).open("a") as notes:
            notes.write(f"{nodeid}\t{word}\n")


# ---- outside ----


@dataclass(frozen=True)
class Setup:
    """What every pytest is started with."""

    folder: Path
    """CHECKOUT/test/distributed."""
    ranks: int
    logs: Path | None = None


@dataclass
class Result:
    """One test: its outcome in each way, the last one where it was run again. By NCCL only where it
    was not good with braid."""

    test: str
    outcomes: dict[str, str] = field(default_factory=dict)
    tries: int = 1

    @property
    def is_fault(self) -> bool:
        """Held against braid."""
        return self.outcomes.get(NCCL) in GOOD and self.outcomes.get(BRAID) in BAD

    @property
    def is_open(self) -> bool:
        """It may have to be: the time ended before NCCL was asked."""
        return self.outcomes.get(NCCL, NOT_RUN) == NOT_RUN and self.outcomes.get(BRAID) in BAD


def environment(way: str, ranks: int, scratch: str) -> dict[str, str]:
    """Of a pytest and all that it starts. `scratch` is a folder of its own."""
    env = {**os.environ, "BACKEND": "nccl", "WORLD_SIZE": str(ranks), "TEMP_DIR": scratch}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "scripts"), env.get("PYTHONPATH", "")])
    env[NOTES] = f"{scratch}/notes"
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # one that is installed may not fit this pytest
    env.pop("PYTEST_ADDOPTS", None)  # meant for the pytest that one starts oneself
    if way == BRAID:
        env |= {"LD_PRELOAD": str(DROP_IN), "BRAID_LOG": "info"}
    return env


def outcomes_of(notes: str, ended: str) -> dict[str, str]:
    """By test. One that started and is not told of again is what `ended` says of the process."""
    told: dict[str, str] = {}
    for line in notes.splitlines():
        test, _, word = line.partition("\t")
        if told.get(test) not in ("failed", "skipped"):
            told[test] = word
    return {test: ended if word == "started" else word for test, word in told.items()}


def with_the_end(told: dict[str, str], tests: list[str], ended: str) -> dict[str, str]:
    """The outcomes and how the process ended, "" for well: where that was in no test, all are that
    before the first one, and behind one that one.
    """
    if ended in ("", NOT_RUN) or ended in told.values():
        return told
    if not told:
        return dict.fromkeys(tests, ended)
    last = list(told)[-1]
    return told | {last: ended} if told[last] in GOOD else told


@dataclass(frozen=True)
class Played:
    """What came of some tests, by test; of those behind one that hangs or crashes, nothing."""

    outcomes: dict[str, str]
    taken_over: int
    """Ranks of communicators that braid took over meanwhile."""


def play(way: str, tests: list[str], setup: Setup, until_s: float) -> Played:
    """Runs tests of one file in one process, until then at most."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("init_dir", "barrier", "test_dir"):
            (Path(scratch) / name).mkdir()
        log = (setup.logs or Path(scratch)) / f"{way}-{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            child = subprocess.Popen(
                [*PYTEST, "-q", "-s", *tests], cwd=setup.folder, start_new_session=True,
                env=environment(way, setup.ranks, scratch), stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            limit_s = START_S + TEST_S * len(tests)
            try:
                child.wait(max(0.0, min(limit_s, until_s - time.monotonic())))
                ended = "crashed" if child.returncode not in PYTEST_ENDS else ""
            except subprocess.TimeoutExpired:
                ended = "hung" if time.monotonic() < until_s else NOT_RUN
            finally:
                _end_session(child)
        notes = Path(scratch) / "notes"
        told = outcomes_of(notes.read_text() if notes.exists() else "", ended or "crashed")
        return Played(
            with_the_end(told, tests, ended),
            log.read_text(errors="replace").count(TAKEN),
        )


def _end_session(child: "subprocess.Popen[bytes]") -> None:
    """With the processes that tests have started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, 9)
    child.wait()


def collected(file: str, setup: Setup) -> tuple[list[str], str]:
    """The tests of a file, or of a part of it (FILE::CLASS::TEST); where it has none, why."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            said = subprocess.run(
                [*PYTEST, "--collect-only", "-q", file], cwd=setup.folder,
                env=environment(NCCL, setup.ranks, scratch), capture_output=True, text=True,
                check=False, timeout=COLLECT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [], f"not read within {COLLECT_S:.0f} s"
    tests = [line for line in said.stdout.splitlines() if f"{line}::".startswith(f"{file}::")]
    return tests, "" if tests else _why(said.stdout, said.stderr)


def _why(out: str, err: str) -> str:
    """Of a reading that found nothing: what pytest marks as an error (E), else what it calls one
    (an option: a folder's name comes last), or what is said last.
    """
    lines = [line.strip() for line in out.splitlines() + err.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E  ")]
    called = [line for line in lines if line.startswith("ERROR") or ": error: " in line]
    return (marked or called or lines or ["it has no tests"])[-1]


def chunks(tests: list[str], size: int) -> list[list[str]]:
    """In order, each of one file."""
    return [tests[i : i + size] for i in range(0, len(tests), size)]


class Race:
    """All tests in both ways."""

    def __init__(
        self,
        setup: Setup,
        workers: int,
        until_s: float,
        keep: Callable[["Race"], None] | None = None,
    ) -> None:
        self.setup, self.workers, self.until_s = setup, workers, until_s
        self._first_until_s = until_s - KEPT * max(0.0, until_s - time.monotonic())
        self._keep, self._lock = keep, threading.Lock()
        self.results: dict[str, Result] = {}
        self.unread: dict[str, str] = {}
        """Why, by file."""
        self.taken_over = 0
        self.not_begun = 0
        """Tests, when the time was over."""

    def run(self, files: list[str]) -> None:
        """What is not begun when the time is over is left out."""
        with ThreadPoolExecutor(self.workers) as pool:
            found = dict(
                zip(files, pool.map(lambda f: collected(f, self.setup), files), strict=True)
            )
            self.unread = {file: why for file, (tests, why) in found.items() if not tests}
            parts = [part for tests, _ in found.values() for part in chunks(tests, CHUNK)]
            list(pool.map(self._both, parts))
        self.not_begun = sum(t not in self.results for part in parts for t in part)
        for test in [t for t, one in self.results.items() if one.is_fault or one.is_open]:
            self._again(test)

    def keep(self) -> None:
        """Writes down what there is: a job that is ended has its record."""
        if self._keep:
            with self._lock:
                self._keep(self)

    def faults(self) -> list[Result]:
        return [result for result in list(self.results.values()) if result.is_fault]

    def _both(self, tests: list[str]) -> None:
        self._all_of(BRAID, tests)
        self._all_of(NCCL, [t for t in tests if self._told(t) not in (*GOOD, None)])
        self.keep()

    def _told(self, test: str) -> str | None:
        return self.results[test].outcomes.get(BRAID) if test in self.results else None

    def _all_of(self, way: str, tests: list[str]) -> None:
        """Behind one that hangs or crashes the rest are run anew."""
        left = tests
        while left and time.monotonic() < self._first_until_s:
            told = self._play(way, left, self._first_until_s)
            for test, word in told.items():
                self.results.setdefault(test, Result(test)).outcomes[way] = word
            left = [test for test in left if test not in told] if told else []

    def _play(self, way: str, tests: list[str], until_s: float) -> dict[str, str]:
        played = play(way, tests, self.setup, until_s)
        self.taken_over += played.taken_over  # a number that is only told: a lost one is no harm
        return played.outcomes

    def _again(self, test: str) -> None:
        """Alone, twice at most, until it is no fault."""
        result = self.results[test]
        for _ in range(2):
            is_told = not (result.is_fault or result.is_open)
            if is_told or time.monotonic() >= self.until_s:
                return
            result.tries += 1
            found = {
                way: self._play(way, [test], self.until_s).get(test, NOT_RUN)
                for way in (NCCL, BRAID)
            }
            if NOT_RUN in found.values():  # the time is over: what was found stays
                return
            result.outcomes = found


def table(race: Race) -> str:
    """A line a file, of what there was with braid; then every fault."""
    columns = ("passed", "skipped", *BAD)
    lines = [f"{'file':48} {'tests':>6} " + " ".join(f"{c:>8}" for c in columns) + "   faults"]
    by_file: dict[str, list[Result]] = {}
    for result in list(race.results.values()):
        by_file.setdefault(result.test.partition("::")[0], []).append(result)
    for file, results in by_file.items():
        counts = [sum(r.outcomes.get(BRAID) == column for r in results) for column in columns]
        told = " ".join(f"{count:8}" for count in counts)
        lines.append(f"{file:48} {len(results):6} {told} {sum(r.is_fault for r in results):8}")
    lines.append(f"ranks of communicators taken over: {race.taken_over}")
    lines += [f"cannot be read with this torch: {file}: {why}" for file, why in race.unread.items()]
    for one in list(race.results.values()):
        said = f"{one.test}: {one.outcomes.get(BRAID, NOT_RUN)} with braid"
        if one.is_fault:
            lines.append(f"FAULT {said}, {one.outcomes[NCCL]} with NCCL")
        elif one.is_open:
            lines.append(f"OPEN {said}, NCCL was not asked")
        elif one.tries > 1:
            lines.append(f"AGAIN {said} when it was run again, alone")
    if race.not_begun:
        lines.append(f"the time was over before {race.not_begun} tests were begun")
    return "\n".join(lines)


@dataclass
class Record:
    """What was run, by test."""

    schema: str
    command: str
    date: str
    commit: str
    dirty: bool
    ranks: int
    torch: str
    source: str
    unread: list[str] = field(default_factory=list)
    taken_over: int = 0
    faults: int = 0
    tests: list[Result] = field(default_factory=list)


def begun(args: argparse.Namespace) -> Record:
    """Before anything was run."""
    from braid.bench import facts

    commit, dirty = facts.commit(args.commit)
    return Record(
        schema="braid.torch_tests/1",
        command=" ".join(["scripts/torch_tests.py", *sys.argv[1:]]),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        ranks=args.ranks,
        torch=_torch_version(),
        source=args.source,
    )


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def keeper(args: argparse.Namespace) -> Callable[[Race], None] | None:
    """Writes the record; nothing where none was asked for."""
    if not args.json:
        return None
    from braid import json_file

    record = begun(args)

    def keep(race: Race) -> None:
        record.unread, record.taken_over = list(race.unread), race.taken_over
        record.faults, record.tests = len(race.faults()), list(race.results.values())
        json_file.save(record, args.json)

    return keep


def _count(text: str) -> int:
    """argparse says the rest of what is wrong."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"asked for 1 or more, found '{text}'")
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", nargs="+", default=list(FILES), help="or FILE::CLASS::TEST")
    parser.add_argument(
        "--ranks", type=_count, default=2, help="WORLD_SIZE, where a test asks for it"
    )
    parser.add_argument("--workers", type=_count, default=4, help="pytests at a time")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="and no longer: what runs then is ended"
    )
    parser.add_argument("--logs", type=Path, help="keep what every pytest prints in this folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="", help="of braid, for the record")
    parser.add_argument("--source", default="", help="the version of CHECKOUT, for the record")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    setup = Setup(args.checkout / "test/distributed", args.ranks, args.logs)
    if not setup.folder.is_dir():
        print(f"{setup.folder}: no such folder; asked for PyTorch's source", file=sys.stderr)
        return 2
    if args.json and not args.json.parent.is_dir():
        print(f"--json: {args.json.parent}: no such folder", file=sys.stderr)
        return 2
    if args.logs:
        args.logs.mkdir(parents=True, exist_ok=True)
    race = Race(setup, args.workers, time.monotonic() + args.seconds, keeper(args))
    race.run(args.files)
    print(table(race))
    race.keep()
    is_settled = not any(one.is_fault or one.is_open for one in race.results.values())
    return 0 if is_settled and race.taken_over else 1


if __name__ == "__main__":
    sys.exit(main())

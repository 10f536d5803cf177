"""scripts/torch_tests.py on small files of tests, with a drop-in that only has its name."""

import contextlib
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import torch_tests  # noqa: E402
from torch_tests import BRAID, NCCL, Race, Result, Setup, outcomes_of, table  # noqa: E402

FILE = """
import os, time
import pytest

UNDER_BRAID = "libbraid" in os.environ.get("LD_PRELOAD", "")
if UNDER_BRAID:
    print("info nccl communicator of 2 ranks: taken over (rank 0, gpu 0)", flush=True)

def test_good(): pass
def test_bad_in_both(): assert False
def test_skipped(): pytest.skip("no")
def test_bad_with_braid(): assert not UNDER_BRAID
def test_bad_with_nccl(): assert UNDER_BRAID
def test_after(): pass
"""
ENDS = """
import os, time
UNDER_BRAID = "libbraid" in os.environ.get("LD_PRELOAD", "")

def test_crash():
    if UNDER_BRAID: os._exit(3)
def test_between(): pass
def test_hang():
    if UNDER_BRAID: time.sleep(60)
def test_last(): pass
"""
AT_THE_END = """
import os, atexit
if "libbraid" in os.environ.get("LD_PRELOAD", ""):
    atexit.register(os._exit, 11)

def test_first(): pass
def test_second(): pass
"""
AT_THE_START = """
import os
if "libbraid" in os.environ.get("LD_PRELOAD", ""): os._exit(11)

def test_first(): pass
def test_second(): pass
"""
FLAKY = """
import os
from pathlib import Path

def test_once():
    if "libbraid" not in os.environ.get("LD_PRELOAD", ""): return
    mark = Path(__file__).with_suffix(".mark")
    is_first = not mark.exists()
    mark.touch()
    assert not is_first
"""


def fill(path):
    """Makes it a checkout, with a folder of tests."""
    folder = path / "test/distributed"
    folder.mkdir(parents=True)
    for name, text in (("test_file.py", FILE), ("test_ends.py", ENDS), ("test_flaky.py", FLAKY)):
        (folder / name).write_text(text)
    (folder / "test_unread.py").write_text("import a_module_that_is_nowhere\n")
    (path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--nowhere'\n")
    return path


@pytest.fixture
def checkout(tmp_path):
    """With a folder of tests."""
    return fill(tmp_path)


@dataclass
class Ran:
    """The command on two files, one of which cannot be read."""

    code: int
    said: str
    race: Race
    folder: Path
    """With its record and its logs."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Once for all that look at it: a race starts ten pytests."""
    path = fill(tmp_path_factory.mktemp("checkout"))
    races = []

    class Kept(Race):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            races.append(self)

    words = ["--files", "test_file.py", "test_unread.py", "--json", path / "record.json"]
    words += ["--commit", "abc", "--source", "1.2", "--logs", path / "logs"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.chdir(path)  # where git has nothing to say
        patch.setattr(torch_tests, "Race", Kept)
        code = command(patch, path, *words)
    (race,) = races
    return Ran(code, said.getvalue(), race, path)


def race_of(checkout, *files):
    race = Race(Setup(checkout / "test/distributed", 2), 2, time.monotonic() + 100)
    race.run(list(files))
    return race


def test_what_fails_with_braid_alone_is_a_fault(ran):
    race = ran.race
    outcomes = {t.partition("::")[2]: r.outcomes for t, r in race.results.items()}
    assert outcomes["test_good"] == {BRAID: "passed"}
    assert outcomes["test_bad_in_both"] == {NCCL: "failed", BRAID: "failed"}
    assert outcomes["test_skipped"] == {BRAID: "skipped"}
    assert outcomes["test_bad_with_nccl"] == {BRAID: "passed"}
    assert [fault.test for fault in race.faults()] == ["test_file.py::test_bad_with_braid"]
    assert race.faults()[0].tries == 3
    why = "ModuleNotFoundError: No module named 'a_module_that_is_nowhere'"
    assert race.unread == {"test_unread.py": why}
    assert race.taken_over > 0
    assert "FAULT test_file.py::test_bad_with_braid: failed with braid" in table(race)
    assert f"cannot be read with this torch: test_unread.py: {why}" in table(race)


def test_a_part_of_a_file_may_be_named(checkout):
    setup = Setup(checkout / "test/distributed", 2)
    one = "test_file.py::test_bad_with_braid"
    assert torch_tests.collected(one, setup) == ([one], "")
    assert len(torch_tests.collected("test_ends.py", setup)[0]) == 4


def test_options_for_another_pytest_are_left_out(checkout, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nowhere")
    assert (
        len(torch_tests.collected("test_ends.py", Setup(checkout / "test/distributed", 2))[0]) == 4
    )


def test_what_pytest_calls_an_error_is_told(checkout, monkeypatch):
    setup = Setup(checkout / "test/distributed", 2)
    assert "not found: test_gone.py" in torch_tests.collected("test_gone.py", setup)[1]
    monkeypatch.setattr(torch_tests, "PYTEST", [*torch_tests.PYTEST, "--nowhere"])
    assert "--nowhere" in torch_tests.collected("test_file.py", setup)[1]


def test_a_crash_and_a_hang_are_named_and_what_is_behind_them_is_run(checkout, monkeypatch):
    monkeypatch.setattr(torch_tests, "START_S", 4.0)
    monkeypatch.setattr(torch_tests, "TEST_S", 0.5)
    monkeypatch.setattr(Race, "_again", lambda *_: None)  # a hang takes seconds each time
    race = race_of(checkout, "test_ends.py")
    under = {t.partition("::")[2]: r.outcomes[BRAID] for t, r in race.results.items()}
    assert under == {
        "test_crash": "crashed", "test_between": "passed", "test_hang": "hung",
        "test_last": "passed",
    }  # fmt: skip
    assert len(race.faults()) == 2


def under_braid(race):
    return {t.partition("::")[2]: r.outcomes[BRAID] for t, r in race.results.items()}


def test_a_crash_behind_the_last_test_is_a_fault_of_it(checkout):
    (checkout / "test/distributed/test_at.py").write_text(AT_THE_END)
    race = race_of(checkout, "test_at.py")
    assert under_braid(race) == {"test_first": "passed", "test_second": "crashed"}
    assert [fault.test for fault in race.faults()] == ["test_at.py::test_second"]


def test_a_crash_before_the_first_test_is_a_fault_of_all(checkout):
    (checkout / "test/distributed/test_at.py").write_text(AT_THE_START)
    race = race_of(checkout, "test_at.py")
    assert under_braid(race) == {"test_first": "crashed", "test_second": "crashed"}
    assert len(race.faults()) == 2


def test_a_crash_between_two_tests_is_the_first_ones():
    told = {"a": "passed"}
    assert torch_tests.with_the_end(told, ["a", "b"], "crashed") == {"a": "crashed"}
    assert torch_tests.with_the_end(told, ["a", "b"], "not run") == told
    assert torch_tests.with_the_end({"a": "failed"}, ["a"], "hung") == {"a": "failed"}
    assert torch_tests.with_the_end({"a": "crashed"}, ["a", "b"], "crashed") == {"a": "crashed"}


def test_a_fault_stays_one_where_the_time_ends_before_it_was_run_again(checkout, monkeypatch):
    race = Race(Setup(checkout / "test/distributed", 2), 1, time.monotonic() + 100)
    race.results["a"] = Result("a", {NCCL: "passed", BRAID: "failed"})
    monkeypatch.setattr(race, "_play", lambda _, tests, __: dict.fromkeys(tests, "not run"))
    race.run([])
    assert [fault.test for fault in race.faults()] == ["a"]


# Four tests that hung beside nineteen others were held against braid, since the time was over.
def test_time_is_kept_for_what_is_run_again(checkout, monkeypatch):
    monkeypatch.setattr(torch_tests, "KEPT", 0.8)
    race = Race(Setup(checkout / "test/distributed", 2), 1, time.monotonic() + 40)
    for test, outcomes in (
        ("test_file.py::test_good", {NCCL: "passed", BRAID: "hung"}),
        ("test_file.py::test_bad_in_both", {BRAID: "hung"}),
    ):
        race.results[test] = Result(test, outcomes)
    race.run(["test_ends.py"])  # the one that hangs takes all that it is given
    assert race.results["test_file.py::test_good"].outcomes == {NCCL: "passed", BRAID: "passed"}
    assert race.results["test_file.py::test_bad_in_both"].outcomes == {
        NCCL: "failed",
        BRAID: "failed",
    }
    assert "AGAIN test_file.py::test_good: passed with braid" in torch_tests.table(race)


def test_what_nccl_was_not_asked_for_is_told_and_is_no_success(checkout, monkeypatch, capsys):
    def run(race, _):
        race.results["a"] = Result("a", {BRAID: "failed"})
        race.taken_over, race.not_begun = 2, 7

    monkeypatch.setattr(Race, "run", run)
    assert command(monkeypatch, checkout) == 1
    said = capsys.readouterr().out
    assert "OPEN a: failed with braid, NCCL was not asked" in said
    assert "before 7 tests were begun" in said


def test_a_file_whose_reading_hangs_is_named(checkout, monkeypatch):
    monkeypatch.setattr(torch_tests, "COLLECT_S", 3.0)
    (checkout / "test/distributed/test_long.py").write_text("import time\ntime.sleep(60)\n")
    assert list(race_of(checkout, "test_long.py").unread) == ["test_long.py"]


@pytest.mark.parametrize(
    "words", [["--workers", "0"], ["--ranks", "-1"], ["--json", "/nowhere/at/all.json"]]
)
def test_bad_arguments_are_said_before_anything_runs(checkout, monkeypatch, words, capsys):
    try:
        code = command(monkeypatch, checkout, "--files", "test_none.py", *words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert words[0] in capsys.readouterr().err


def test_what_passes_when_it_is_run_again_is_no_fault(checkout):
    race = race_of(checkout, "test_flaky.py")
    (result,) = race.results.values()
    assert (result.tries, result.outcomes[BRAID], race.faults()) == (2, "passed", [])


def test_the_end_of_the_time_ends_what_runs(checkout):
    began = time.monotonic()
    race = Race(Setup(checkout / "test/distributed", 2), 1, began + 3)
    race.run(["test_ends.py::test_hang"])
    assert time.monotonic() - began < 30
    assert race.faults() == []


def test_a_failure_in_a_tests_end_counts():
    notes = "a\tstarted\na\tpassed\na\tfailed\nb\tstarted\nb\tpassed\nc\tstarted\n"
    assert outcomes_of(notes, "hung") == {"a": "failed", "b": "passed", "c": "hung"}


def test_what_was_not_run_is_no_fault():
    assert not Result("a", {NCCL: "passed"}).is_fault
    assert not Result("a", {NCCL: "passed", BRAID: "not run"}).is_fault
    assert not Result("a", {NCCL: "hung", BRAID: "hung"}).is_fault
    assert Result("a", {NCCL: "passed", BRAID: "hung"}).is_fault
    assert Result("a", {NCCL: "not run", BRAID: "hung"}).is_open
    assert Result("a", {BRAID: "failed"}).is_open
    assert not Result("a", {BRAID: "passed"}).is_open
    assert not Result("a", {NCCL: "hung", BRAID: "hung"}).is_open


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["torch_tests.py", *map(str, arguments)])
    return torch_tests.main()


def test_the_command_writes_a_record(ran):
    assert ran.code == 1
    record = json.loads((ran.folder / "record.json").read_text())
    assert (record["faults"], record["commit"], record["source"]) == (1, "abc", "1.2")
    assert len(record["tests"]) == 6
    assert list((ran.folder / "logs").glob("braid-*.log"))
    assert "FAULT" in ran.said


def test_nothing_taken_over_is_bad(checkout, monkeypatch):
    (checkout / "test/distributed/test_none.py").write_text("def test_none(): pass\n")
    assert command(monkeypatch, checkout, "--files", "test_none.py") == 1


def test_a_folder_that_is_not_there_is_one_line(monkeypatch, tmp_path, capsys):
    assert command(monkeypatch, tmp_path) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_way_by_nccl_has_no_drop_in(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert "LD_PRELOAD" not in torch_tests.environment(NCCL, 2, "x")
    assert "libbraid-nccl.so" in torch_tests.environment(BRAID, 2, "x")["LD_PRELOAD"]
    assert (
        torch_tests.environment(NCCL, 2, "x")["PYTHONPATH"].split(os.pathsep)[0].endswith("scripts")
    )

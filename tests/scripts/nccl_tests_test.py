"""scripts/nccl_tests.py: what its plan covers, what it makes of tables, and a run of programs that
only print."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts"), str(ROOT / "tests/python")]

import nccl_tests  # noqa: E402
from nccl_tests import Setup, command_of, play  # noqa: E402
from nccl_tests_plan import BRAID, HANDED_ON, NCCL, TAKEN, Step, plan  # noqa: E402
from nccl_tests_record import ratios, read  # noqa: E402
from saved_tables import of_2026, us_of  # noqa: E402

from braid import saved  # noqa: E402

SIZES = (1024, 1 << 20)
TAKEN_LINES = "".join(f"info nccl communicator of 2 ranks: taken over (rank {r})\n" for r in (0, 1))


def step(who=BRAID, program="all_reduce", arguments="-b 8", **more):
    return Step("check", program, arguments, who, **more)


def parts(name):
    return [one for one in plan(2, 2) if one.part == name]


def test_the_plan_has_every_program_type_size_and_way():
    assert [one.program for one in parts("check")] == [*TAKEN, *HANDED_ON]
    assert all("-d all -o all" in one.arguments for one in parts("check"))
    for name in ("large", "graph", "shared"):
        assert {one.program for one in parts(name)} == set(TAKEN)
    assert all("-e 4G" in one.arguments for one in parts("large"))
    assert all("-G 2" in one.arguments for one in parts("graph"))
    assert all(one.is_one_process and "-g 2" in one.arguments for one in parts("shared"))
    assert all(" -c 1" in one.arguments for one in plan(4, 1))


def test_nccl_and_braid_take_turns():
    who = [one.who for one in parts("time") if one.program == "broadcast"]
    assert who == [NCCL, BRAID, BRAID, NCCL]
    sizes = {
        one.program: one.arguments.split()[3] for one in parts("time") if "-G" not in one.arguments
    }
    assert (sizes["all_reduce"], sizes["all_gather"]) == ("1G", "2G")


def test_a_table_is_counted():
    outcome = read(step(), of_2026("all_reduce", SIZES, 2), TAKEN_LINES, 1.23, 0)
    assert (outcome.num_checked, outcome.wrong, outcome.taken_over) == (4, 0, 2)
    assert outcome.times_us == []
    assert outcome.failure(2) == ""


def test_wrong_values_are_found_and_named():
    outcome = read(step(), of_2026("all_reduce", SIZES, 2, wrong="3"), TAKEN_LINES, 1, 1)
    assert outcome.wrong == 12
    assert outcome.wrong_rows[0] == "1024 bfloat16 sum nccl: 3"
    assert outcome.wrong_rows[1] == "1024 bfloat16 sum nccl in place: 3"
    assert outcome.failure(2) == "12 wrong values, exit code 1"


@pytest.mark.parametrize(
    ("text", "log", "code", "words"),
    [
        ("", "", 1, "the program did not end: exit code 1"),
        ("# x\nh: Test NCCL failure a.cu:9 'y'\n .. h pid 1\n", "", 3, "code 3: h: Test NCCL"),
        (of_2026("all_reduce", SIZES, 2).partition("# Avg")[0], TAKEN_LINES, 124, "did not end"),
        (of_2026("all_reduce", SIZES, 2), "", 0, "braid took over 0 of 2 ranks' communicators"),
        (of_2026("all_reduce", SIZES, 2, wrong="N/A"), TAKEN_LINES, 0, "nothing was checked"),
        (of_2026("all_reduce", SIZES, 2), TAKEN_LINES, 134, "0 wrong values, exit code 134"),
    ],
)
def test_what_did_not_work_is_said(text, log, code, words):
    assert words in read(step(), text, log, 1, code).failure(2)


def test_what_goes_to_nccl_need_not_be_taken_over():
    table = of_2026("all_reduce", SIZES, 2)
    assert read(step(program="reduce"), table, "", 1, 0).failure(2) == ""
    assert read(step(who=NCCL), table, "", 1, 0).failure(2) == ""


def timed(who, text, arguments="-b 8"):
    return read(step(who, arguments=arguments, keeps_times=True), text, TAKEN_LINES, 1, 0)


def test_ratios_are_of_medians_and_of_right_results():
    fast, slow = of_2026("all_reduce", (1024,), 2), of_2026("all_reduce", (1 << 20,), 2)
    both = of_2026("all_reduce", SIZES, 2)
    (out, in_place) = ratios([timed(NCCL, both), timed(BRAID, fast)])
    assert (out.bytes, out.place, in_place.place) == (1024, "nccl", "nccl in place")
    assert (out.nccl_us, out.braid_us, out.ratio) == (us_of(1024), us_of(1024), 1.0)
    assert ratios([timed(NCCL, slow), timed(BRAID, fast)]) == []
    assert ratios([timed(NCCL, fast, "-G 5"), timed(BRAID, fast)]) == []
    wrong = timed(BRAID, of_2026("all_reduce", (1024,), 2, wrong="1"))
    assert ratios([timed(NCCL, both), wrong]) == []
    assert wrong.times_us


@pytest.fixture
def programs(tmp_path):
    """all_reduce_perf prints a table, of other times under braid; alltoall_perf never ends."""
    for name, sizes in (("nccl", SIZES), ("braid", SIZES[:1])):
        (tmp_path / name).write_text(of_2026("all_reduce", sizes, 2))
    (tmp_path / "all_reduce_perf").write_text(
        "#!/bin/sh\n"
        'test "$BRAID_LOG" = info && echo "communicator of 2 ranks: taken over (rank $RANK" >&2\n'
        'test "${RANK:-0}" = 0 || exit 0\n'
        f'test "$BRAID_LOG" = info && exec cat {tmp_path}/braid\n'
        f"exec cat {tmp_path}/nccl\n"
    )
    (tmp_path / "alltoall_perf").write_text("#!/bin/sh\nexec sleep 60\n")
    for name in ("all_reduce_perf", "alltoall_perf"):
        (tmp_path / name).chmod(0o755)
    return Setup(tmp_path, tmp_path / "lib/libnccl.so.2", 2, 20)


def test_braid_stands_where_the_program_looks_for_nccl(programs):
    shared = command_of(step(arguments="-g 2", is_one_process=True), programs)
    assert shared[0] == "env"
    assert "BRAID_NCCL_SHARED=on" in shared
    assert f"BRAID_NCCL_REAL={programs.nccl}" in shared
    assert any(word.startswith("LD_PRELOAD=") for word in shared)
    alone = command_of(step(NCCL), programs)
    assert not any(word.startswith(("LD_PRELOAD", "BRAID_")) for word in alone)
    assert alone[-2:] == ["-b", "8"]


def test_a_run_keeps_everything(programs, tmp_path, capsys):
    steps = [step(who, keeps_times=True) for who in (NCCL, BRAID)]
    assert nccl_tests.run(programs, steps, tmp_path / "r.json") == 0
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["schema"] == "braid.nccl_tests/1"
    assert [one["step"]["who"] for one in record["outcomes"]] == [NCCL, BRAID]
    assert record["outcomes"][1]["taken_over"] == 2
    assert {one["bytes"] for one in record["ratios"]} == {1024}
    (found,) = saved.load(tmp_path / "r.json")["results"]
    assert [(run["who"], run["median_us"]) for run in found["runs"]] == [
        ("nccl", us_of(1024)), ("braid", us_of(1024)),
        ("nccl in place", us_of(1024, in_place=True)),
        ("braid in place", us_of(1024, in_place=True)),
    ]  # fmt: skip
    assert "under braid: 2 results, 0 wrong values; 0 steps failed" in capsys.readouterr().out


def test_a_program_that_hangs_is_a_failure(programs, tmp_path):
    held = Setup(programs.programs, programs.nccl, 2, 1.5)
    outcome = play(step(program="alltoall"), held)
    assert outcome.failure(2) == "the program did not end: exit code 124"
    assert outcome.seconds < 15
    assert nccl_tests.run(held, [step(program="alltoall")], tmp_path / "r.json") == 1

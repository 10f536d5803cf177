"""Records of scripts/nccl_tests.py as braid.gpu/2: every reader takes them, and damage is one line.

Times follow from size, library and way, so that a wrong column, row or factor shows.
"""

import copy
import json
import random
from pathlib import Path

import pytest

from braid import saved
from braid.cli.plan import options
from braid.errors import InvalidArgument
from braid.plan import records
from braid.plan.formulas.collectives import bus_factor
from braid.plan.wrong import PlanError
from braid.probe import compare
from braid.record import gpu as gpu_record
from braid.report import runs
from braid.saved import drop_in
from braid.topo import measured
from braid.topo.errors import BadTopology

RECORDS = Path(__file__).parents[3] / "records"
PROGRAMS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall")
SIZES = (1 << 20, 1 << 26)
RANKS = 4
PLACES = {"nccl": "", "nccl in place": " in place"}
READERS = (
    (runs.load, InvalidArgument), (compare.load, InvalidArgument), (records.load, PlanError),
    (measured.load, BadTopology),
)  # fmt: skip


def us_of(program, nbytes, who):
    """10 us and 100 GB/s; each program, library and way has microseconds of its own."""
    ways = {"braid": 0.25, "in place": 0.5, "in windows": 32.0, "in a graph": 64.0}
    more = sum(us for way, us in ways.items() if way in who)
    return 10 + nbytes / 1e5 // 1 + PROGRAMS.index(program) + more


def ratio(program="all_reduce", nbytes=SIZES[0], place="nccl", **more):
    """A row; bfloat16."""
    way = place.removeprefix("nccl")
    way += " in windows" if more.get("is_in_windows") else ""
    way += " in a graph" if more.get("is_graph") else ""
    known = program if program in PROGRAMS else "all_reduce"
    nccl, braid = (us_of(known, nbytes, f"{who}{way}") for who in ("nccl", "braid"))
    redop = "sum" if program in ("all_reduce", "reduce_scatter", "reduce") else "none"
    return {
        "program": program, "bytes": nbytes, "dtype": "bfloat16", "redop": redop, "place": place,
        "is_graph": False, "nccl_us": nccl, "braid_us": braid, "ratio": round(nccl / braid, 4),
        **more,
    }  # fmt: skip


def outcome(program, arguments, who="braid", **more):
    """A program that was timed."""
    step = {"part": "time", "program": program, "arguments": arguments, "who": who}
    return {
        "step": {**step, "is_one_process": False, "keeps_times": True}, "stopped": "", "wrong": 0,
        "nccl": "2.28.9", "nccl_tests": "2.19.6", **more,
    }  # fmt: skip


def every_way():
    """All programs, sizes and places; an all_reduce in a graph and in windows, too."""
    found = [ratio(p, n, place) for p in PROGRAMS for n in SIZES for place in PLACES]
    found += [ratio(place=place, is_graph=True) for place in PLACES]
    return found + [ratio(place=place, is_in_windows=True) for place in PLACES]


def record(ratios, outcomes=()):
    """What scripts/nccl_tests.py writes."""
    return {
        "schema": "braid.nccl_tests/1", "command": "scripts/nccl_tests.py BUILT --ranks 4",
        "date": "2026-11-22T13:37:10+00:00", "commit": "8878623", "dirty": True,
        "gpu": "NVIDIA H200", "ranks": RANKS, "options": {"NCCL_NVLS_ENABLE": "0"},
        "outcomes": [outcome("all_reduce", "-b 1K -n 30"), *outcomes], "ratios": ratios,
    }  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """Writes a record."""

    def write(document, name="r.json"):
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


def test_every_row_is_a_time_of_nccl_and_one_of_braid(written):
    found = gpu_record.from_json(saved.load(written(record(every_way()))))
    times = {
        (one.op, one.total_bytes, one.mode, run.who): run.median_us
        for one in found.results
        for run in one.runs
    }
    expected = {
        (program.replace("alltoall", "all_to_all"), nbytes, "eager", f"{library}{way}"):
            us_of(program, nbytes, f"{library}{way}")
        for program in PROGRAMS for nbytes in SIZES
        for library in ("nccl", "braid") for way in PLACES.values()
    }  # fmt: skip
    for library in ("nccl", "braid"):
        for way in PLACES.values():
            who = f"{library}{way}"
            case = "all_reduce", SIZES[0]
            expected[*case, "graph", who] = us_of(*case, f"{who} in a graph")
            expected[*case, "eager", f"{who} in windows"] = us_of(*case, f"{who} in windows")
    assert times == expected
    assert len(found.results) == len(PROGRAMS) * len(SIZES) + 1
    assert {one.dtype for one in found.results} == {"bfloat16"}


def test_bandwidths_and_sizes_are_as_nccl_tests_counts(written):
    for one in gpu_record.from_json(saved.load(written(record(every_way())))).results:
        is_part = one.op in ("all_gather", "reduce_scatter")
        assert one.bytes * (RANKS if is_part else 1) == one.total_bytes
        for run in one.runs:
            gbps = one.total_bytes / run.median_us / 1e3 * bus_factor(one.op, RANKS)
            assert run.busbw_gbps == pytest.approx(gbps, abs=1e-3)
            assert (run.samples_us, run.wrong) == ([run.median_us], 0)


def test_where_it_is_from(written):
    source = record(every_way())
    found = gpu_record.from_json(saved.load(written(source)))
    for name in ("command", "date", "commit", "dirty", "gpu", "ranks", "options"):
        assert getattr(found, name) == source[name]
    assert (found.nccl, found.settings["nccl-tests"], found.stopped) == ("2.28.9", "2.19.6", "")
    assert "nobody registered" in found.settings["braid in place"]
    assert "drop-in" in found.settings["braid in place in windows"]
    assert "drop-in" not in found.settings["nccl in windows"]
    families = {run.who: run.family for one in found.results for run in one.runs}
    assert (families["nccl"], families["nccl in windows"]) == ("nccl", "nccl-best")
    assert {f for who, f in families.items() if "braid" in who} == {"braid"}


def test_calls_of_a_sample_are_those_of_the_arguments(written):
    rows = [ratio(), ratio(is_graph=True), ratio(is_in_windows=True, nbytes=1 << 22)]
    rows += [ratio("broadcast"), ratio("all_gather")]
    outcomes = [
        outcome("all_reduce", "-b 1K -G 7 -n 31"), outcome("all_reduce", "-R 2 -b 1M -n 32"),
        outcome("broadcast", "-r 3 -n 33 -N 2"),
    ]  # fmt: skip
    found = saved.load(written(record(rows, outcomes)))["results"]
    assert [(one["calls_per_sample"], one["launches"], one["root"]) for one in found] == [
        (30, None, None), (31, 7, None), (32, None, None), (33, None, 3), (20, None, None),
    ]  # fmt: skip


def test_what_was_left_out_is_said(written):
    outcomes = [
        outcome("alltoall", "-n 20", "nccl", stopped="the program did not end: exit code 124"),
        outcome("broadcast", "-n 20", wrong=12),
    ]
    assert saved.load(written(record([ratio()], outcomes)))["stopped"] == (
        "nccl, alltoall: the program did not end: exit code 124;"
        " braid, broadcast: 12 wrong values: its times are left out"
    )
    for one in outcomes:  # of a check there are no times
        one["step"]["keeps_times"] = False
    assert saved.load(written(record([ratio()], outcomes)))["stopped"] == ""


def test_programs_and_reductions_that_have_no_case_are_left_out(written):
    others = [ratio(name) for name in ("sendrecv", "gather", "hypercube", "reduce")]
    others.append(ratio(redop="max"))
    (one,) = saved.load(written(record([*others, ratio()])))["results"]
    assert (one["op"], len(one["runs"])) == ("all_reduce", 2)
    with pytest.raises(ValueError, match=r"times of 'all_reduce \(max\), .*; braid has all_reduce"):
        saved.load(written(record(others)))


def test_checks_alone_are_one_line(written):
    for path in (written(record([])), RECORDS / "nccl_tests_check_2.json"):
        for read, error in READERS:
            with pytest.raises(error, match="no times of NCCL and braid, only checks") as said:
                read(path)
            assert str(said.value).startswith(str(path))
            assert "\n" not in str(said.value)


def test_a_report_draws_them(written):
    run = runs.load(written(record(every_way())))
    assert (run.title, run.facts["commit"]) == ("4 x NVIDIA H200", "8878623, with changes")
    point = next(
        p for c in run.curves
        if (c.op, c.who, c.mode) == ("all_gather", "braid in place", "") for p in c.points
    )  # fmt: skip
    assert (point.nbytes, point.time_us) == (
        SIZES[0], us_of("all_gather", SIZES[0], "braid in place"),
    )  # fmt: skip
    assert {curve.who for curve in run.curves if curve.mode == "graph"} == {
        "nccl", "braid", "nccl in place", "braid in place",
    }  # fmt: skip


def test_compare_sees_what_became_slower(written):
    rows = every_way()
    rows[3]["braid_us"] *= 1.1
    rows[3]["ratio"] = rows[3]["nccl_us"] / rows[3]["braid_us"]
    old = compare.load(written(record(every_way()), "old.json"))
    new = compare.load(written(record(rows), "new.json"))
    found = [row.case for row in compare.rows(old, new, 0.05) if row.finding != "same"]
    assert found == [f"all_reduce {SIZES[1]} B bfloat16 eager, braid in place"]


def test_plan_takes_either_as_hardware(written):
    path = written(record(every_way()))
    for who in ("nccl", "braid", "braid in place"):
        machine = options.machine(str(path), None, who)
        curve = next(
            c for c in machine.paths[0].curves
            if path.name in c.origin and c.op == "all_to_all" and c.ranks == RANKS
        )  # fmt: skip
        assert curve.time_us(SIZES[1]) == pytest.approx(us_of("alltoall", SIZES[1], who))
    with pytest.raises(PlanError, match="no times of 'mscclpp'; the record has braid, braid in"):
        options.machine(str(path), None, "mscclpp")


def test_topo_takes_the_fastest_all_gather_of_nccl(written):
    rows = [r for r in every_way() if r["program"] == "all_gather"]
    (rate,) = measured.load(written(record(rows))).rates
    gbps = SIZES[1] / us_of("all_gather", SIZES[1], "nccl") / 1e3 * 0.75
    assert (rate.kind, rate.gbps) == ("nvlink", pytest.approx(gbps, abs=0.05))
    assert rate.how == "NCCL all_gather 16 MiB, 4 GPUs, 2026-11-22"


@pytest.mark.parametrize("path", sorted(RECORDS.glob("nccl_tests_*.json")), ids=lambda p: p.name)
def test_every_committed_record_is_taken_or_has_checks_alone(path):
    source = json.loads(path.read_text())
    if not source["ratios"]:
        with pytest.raises(ValueError, match="only checks"):
            saved.load(path)
        return
    found = gpu_record.from_json(saved.load(path))
    all_runs = [run for one in found.results for run in one.runs]
    assert len(all_runs) == 2 * len(source["ratios"])
    is_in_windows = {"windows" in run.who for run in all_runs}
    assert is_in_windows == {"windows" in path.name}
    for read, _ in READERS:
        assert read(path)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("bytes", 0, "all_reduce of 0 B: asked for 1 to"),
        ("bytes", 1 << 70, "asked for 1 to"),
        ("bytes", "1024", r"record.ratios\[1\].bytes: asked for int, found '1024'"),
        ("nccl_us", 0.0, "all_reduce of 1048576 B: 0 us"),
        ("braid_us", -3.0, "-3 us"),
        ("braid_us", float("nan"), "a finite number"),
        ("nccl_us", None, r"ratios\[1\].nccl_us: asked for float, found None"),
        ("ratio", 1.5, "20.5 us by 20.75 us are no 1.5: columns are mixed up"),
        ("place", "braid", "asked for nccl or nccl in place, found 'braid'"),
        ("place", "nccl", "all_reduce of 1048576 B: twice of nccl"),
        ("program", 7, "asked for str, found 7"),
        ("is_graph", "no", "asked for bool"),
        ("speed", 1, "asked for no other fields, found .'speed'."),
    ],
)
def test_a_damaged_row_is_one_line(written, field, value, complaint):
    document = record(every_way())
    document["ratios"][1][field] = value
    path = written(document)
    for read, error in READERS:
        with pytest.raises(error, match=complaint) as said:
            read(path)
        assert "\n" not in str(said.value)


@pytest.mark.parametrize("field", sorted(record([]).keys() - {"schema"}))
@pytest.mark.parametrize("value", ["gone", 7, None, ["x"]])
def test_a_damaged_record_is_one_line(written, field, value):
    document = record(every_way())
    if value == "gone":
        del document[field]
    else:
        document[field] = value
    path = written(document)
    for read, error in ((runs.load, InvalidArgument), (compare.load, InvalidArgument)):
        if (field, value) == ("ranks", 7):  # a count like any other
            continue
        with pytest.raises(error) as said:
            read(path)
        assert "\n" not in str(said.value)


@pytest.mark.parametrize("field", ["outcomes", "ratios", "gpu", "ranks", "options"])
def test_a_missing_field_is_named(written, field):
    document = record(every_way())
    del document[field]
    with pytest.raises(
        ValueError, match=rf"not a whole record of scripts/\S+: KeyError\('{field}'"
    ):
        saved.load(written(document))


def leaves(value, path=()):
    """Paths of all fields, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from leaves(item, (*path, key))


def complaint(document):
    """Why a record is refused; nothing else than a ValueError may come."""
    try:
        drop_in.read(document)
    except ValueError as error:
        return str(error)
    return ""


def test_damage_anywhere_is_read_or_refused_and_nothing_else():
    chosen = random.Random(11)
    whole = record(every_way()[:6], [outcome("all_gather", "-G 5 -n 20")])
    for place in leaves(whole):
        for _ in range(3):
            document = copy.deepcopy(whole)
            inside = document
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = chosen.choice([None, -1, 10**30, "\n", [], {}, [7], 1e300, True])
            assert "\n" not in complaint(document)

"""The GPU benchmark's cases: sizes, what results must be, who fits, how often is measured."""

import numpy as np
import pytest
from gpu_fakes import Alone, Runner

from braid.bench import fit, gpus, race
from braid.bench.contestant import Shelf
from braid.bench.crew import CommCrew
from braid.bench.request import Request, modes_for, parse_groups, tasks_for
from braid.cases.gpu import SUM, GpuCase, expected, pieces
from braid.cases.operations import OPS

MIB = 1 << 20


def test_sizes_are_of_the_ranks_own_part():
    gather = GpuCase.of("all_gather", 256 * MIB, "bfloat16", 4)
    assert (gather.own_bytes, gather.total_bytes) == (256 * MIB, 1024 * MIB)
    assert (gather.send_count, gather.out_count) == (128 * MIB, 512 * MIB)
    scatter = GpuCase.of("reduce_scatter", MIB, "float32", 4)
    assert (scatter.total_bytes, scatter.send_count, scatter.out_count) == (4 * MIB, MIB, MIB // 4)
    reduced = GpuCase.of("all_reduce", MIB, "float32", 4)
    assert (reduced.total_bytes, reduced.send_count, reduced.out_count) == (MIB, MIB // 4, MIB // 4)
    assert GpuCase.of("broadcast", MIB, "float32", 4).send_count == 0
    # 256 MiB in 1 ms: bus bandwidth as nccl-tests prints it
    assert gather.busbw_gbps(1000) == pytest.approx(1024 * MIB * 0.75 / 1e6)
    assert GpuCase.of("all_reduce", MIB, "int8", 2).busbw_gbps(1) == pytest.approx(MIB / 1e3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_cases_are_made_of_whole_blocks(op, ranks):
    for nbytes in (1, 17, 1000, 12345, MIB, 3 * MIB + 6):
        case = GpuCase.of(op, nbytes, "bfloat16", ranks)
        unit = 16 * (ranks if op == "all_to_all" else 1)
        assert case.own_bytes % unit == 0
        assert case.own_bytes == max(nbytes // unit, 1) * unit


def test_a_case_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no such case"):
        GpuCase.of("gather", 1, "int8", 2)
    with pytest.raises(ValueError, match="no such case"):
        GpuCase.of("all_gather", 1, "int8", 2, "lazy")


@pytest.mark.parametrize("op", OPS)
def test_expected_segments_are_what_the_cpu_case_expects(op):
    from braid.cases import host as cases

    ranks, count = 4, 24
    host = cases.Case(
        op, count if op != "all_to_all" else count // ranks, np.dtype("int32"), "sum", 2, ranks
    )
    sources = {r: cases.pattern(r, 4 * count, np.dtype("int32")) for r in range(ranks)}
    sources[SUM] = sum(sources.values())
    made = np.concatenate(
        [
            sources[s.source][s.source_start : s.source_start + s.count]
            for s in expected(GpuCase(op, count, "int32", ranks), 2)
        ]
    )
    assert (made == host.expected()).all()


def test_pieces_stay_within_a_period():
    (segment,) = expected(GpuCase("reduce_scatter", 10, "int8", 4), 3)
    assert (segment.source, segment.source_start, segment.count) == (SUM, 30, 10)
    assert pieces(segment, 7) == [(0, 2, 5), (5, 0, 5)]
    assert pieces(segment, 100) == [(0, 30, 10)]
    assert sum(count for _, _, count in pieces(segment, 3)) == 10


def test_who_fits_is_decided_by_shared_buffers():
    gib = 1 << 30
    needs = [{"send": 4 * gib, "out": 16 * gib}, {"send": 4 * gib, "out": 16 * gib}]
    assert fit.merged(needs) == {"send": 4 * gib, "out": 16 * gib}
    assert fit.fitting(needs, 24 * gib) == 2
    assert fit.fitting([*needs, {"window": 20 * gib}], 24 * gib) == 2
    assert fit.fitting([*needs, {"window": 20 * gib}], 50 * gib) == 3
    assert fit.fitting(needs, 10 * gib) == 0
    assert fit.fitting([], 0) == 0


def test_shelves_grow_and_give_back_in_order():
    class Buffer(bytearray):
        def numel(self):
            return len(self)

        def view(self, _dtype):
            return self

        def __getitem__(self, piece):
            return Buffer(bytearray.__getitem__(self, piece))

    log = []

    def make(nbytes):
        log.append(("make", nbytes))
        return Buffer(nbytes), lambda: log.append(("release", nbytes))

    shelf = Shelf(make)
    assert shelf.capacity == 0
    assert len(shelf.take(0, None)) == 0
    assert len(shelf.take(100, None)) == 100
    assert log == [("make", 2 * MIB)]
    shelf.take(3 * MIB, None)
    assert log[1:] == [("release", 2 * MIB), ("make", 3 * MIB)]
    shelf.drop()
    shelf.drop()
    assert log[3:] == [("release", 3 * MIB)]
    assert shelf.capacity == 0


def test_effort():
    assert race.calls_for(1.0) == 20  # in place sums grow: no more
    assert race.calls_for(250) == 8
    assert race.calls_for(800) == 5
    assert race.calls_for(1e6) == 3
    assert race.samples_for(10, 1, 15) == 10
    assert race.samples_for(0, 1, 15) == 3
    assert race.samples_for(1e9, 1, 15) == 15
    assert race.samples_for(0, 1, 2) == 2


def test_contestants_take_turns_and_the_first_round_does_not_count():
    order = []
    case = GpuCase.of("all_reduce", 1024, "int8", 2)
    names = ("a", "b", "c")

    def sample(contestant, _case, calls):
        assert calls == 7
        order.append(contestant.name)
        return float(len(order))

    ticks = []
    times = race.race(
        Alone(), [Runner(name) for name in names], sample, case, 7, 4, lambda: False, ticks.append
    )
    assert "".join(order) == "abcbcacababcbca"
    assert [len(row) for row in times] == [4, 4, 4]
    assert times[0] == [6, 8, 10, 15]
    assert ticks == [1, 2, 3, 4]


def test_an_interrupted_race_keeps_whole_rounds():
    rounds = iter([False, False, True])
    case = GpuCase.of("all_reduce", 1024, "int8", 2)
    runners = [Runner("a"), Runner("b")]
    times = race.race(Alone(), runners, lambda *_: 1.0, case, 1, 9, lambda: next(rounds), print)
    assert times == [[1.0, 1.0], [1.0, 1.0]]
    times = race.race(Alone(), runners, lambda *_: 1.0, case, 1, 9, lambda: True, print)
    assert times == [[], []]


def test_tasks_and_groups():
    assert parse_groups("all", "none") == {"nccl", "nccl-best", "symm"}
    assert parse_groups("none", "links, unregistered") == {"links", "unregistered"}
    with pytest.raises(ValueError, match="'gloo' is no baseline; braid has nccl, nccl-best, symm"):
        parse_groups("gloo", "none")
    with pytest.raises(ValueError, match="is no variant"):
        parse_groups("nccl", "fast")
    assert modes_for(4 * MIB, "auto") == ("graph",)
    assert modes_for(4 * MIB + 1, "auto") == ("eager",)
    assert modes_for(1, "both") == ("eager", "graph")
    tasks = tasks_for(OPS, (1024, 8 * MIB), "auto", {"nccl"})
    assert len(tasks) == 10
    assert {task.mode for task in tasks if task.own_bytes == 1024} == {"graph"}
    assert Request(tasks).groups == {"nccl"}


def test_the_root_that_was_asked_for():
    asked, plain = (GpuCase.of("broadcast", 1024, "int8", 4, root=root) for root in (1, None))
    assert (asked.root, plain.root) == (1, 3)
    assert [expected(one, 0)[0].source for one in (asked, plain)] == [1, 3]


def test_what_ranks_tell_each_other(ranks):
    def body(comm):
        crew = CommCrew(comm)
        crew.barrier()
        said = crew.first_words("" if comm.rank != 1 else "one:\n  it  failed " + "x" * 500)
        return (
            crew.agree(comm.rank + 5, 2),
            crew.total(comm.rank),
            crew.slowest([comm.rank, -comm.rank]),
            crew.least(comm.rank - 7),
            crew.rows([comm.rank, 2.5]),
            said,
            crew.first_words(""),
        )

    for numbers, total, slowest, least, rows, said, silence in ranks(3, body):
        assert rows == [[0, 2.5], [1, 2.5], [2, 2.5]]
        assert (numbers, total, slowest, least) == ([5, 2], 3, [2, 0], -7)
        assert said.startswith("one: it failed xxx")
        assert len(said) <= 240
        assert silence == ""


def test_gpus_are_looked_for_without_a_context(tmp_path, monkeypatch):
    driver = tmp_path / "driver"
    assert gpus.find(tmp_path, driver).why_none == "this machine has no NVIDIA GPU"
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    assert gpus.find(tmp_path, driver).why_none == "this machine has no NVIDIA GPU"
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "torch" in gpus.find(tmp_path, driver).why_none
    (tmp_path / "nvidia0").unlink()
    driver.touch()
    assert "torch" in gpus.find(tmp_path, driver).why_none

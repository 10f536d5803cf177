"""`braid bench`: the data it makes, what it calls wrong, its numbers, its record."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from braid import sizes
from braid.bench import facts
from braid.bench.host import measure, plot, table
from braid.bench.host.contestants import Braid
from braid.bench.host.session import Bench, Settings
from braid.cases import host as cases
from braid.cases import operations
from braid.record import bench as record
from braid.record import old_gpu as old_gpu_record
from braid.record import probe as probe_record
from braid.terminal.console import console
from braid.terminal.reporter import Lines, Reporter
from braid.topo import document as topo_document

REPOSITORY = Path(__file__).parents[2]


def case(op, rank, ranks, dtype="int32", redop="sum", count=1000):
    return cases.Case(op, count, np.dtype(dtype), redop, rank, ranks)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_patterns_differ_by_place_and_rank(dtype):
    mine = cases.pattern(0, 4096, np.dtype(dtype))
    assert mine.dtype == np.dtype(dtype)
    assert len(np.unique(mine)) == 8
    for shift in (1, 7, 64, 1024):
        assert (mine[shift:] != mine[:-shift]).mean() > 0.5
    assert (mine != cases.pattern(1, 4096, np.dtype(dtype))).mean() > 0.5


def test_expected_results_in_small():
    data = [case("all_to_all", r, 3).data(r) for r in range(3)]
    expected = case("all_to_all", 1, 3).expected()
    assert (expected == np.concatenate([d[1000:2000] for d in data])).all()
    total = sum(case("all_reduce", r, 3).data(r) for r in range(3))
    assert (case("all_reduce", 2, 3).expected() == total).all()
    whole = sum(case("reduce_scatter", r, 3).data(r) for r in range(3))
    assert (case("reduce_scatter", 2, 3).expected() == whole[2000:]).all()
    assert (case("broadcast", 0, 3).expected() == case("broadcast", 2, 3).data(2)).all()
    gathered = case("all_gather", 0, 3).expected()
    assert (gathered[1000:2000] == case("all_gather", 1, 3).data(1)).all()
    averaged = case("all_reduce", 0, 4, redop="avg").expected()
    exact = sum(case("all_reduce", r, 4).data(r) for r in range(4)) / 4
    assert (averaged == np.trunc(exact)).all()


def test_wrong_bytes_are_counted():
    buffers = cases.Buffers(case("all_gather", 0, 2))
    buffers.out[:] = buffers.expected
    assert buffers.wrong_bytes() == 0
    buffers.out.view(np.uint8)[[3, 500, 7999]] ^= 1
    assert buffers.wrong_bytes() == 3
    buffers.soil()
    assert buffers.wrong_bytes() > 7000


def test_bus_bandwidth_is_nccl_tests():
    assert operations.busbw_factor("all_reduce", 4) == 1.5
    assert [
        operations.busbw_factor(op, 4) for op in ("all_gather", "reduce_scatter", "all_to_all")
    ] == [0.75] * 3
    assert operations.busbw_factor("broadcast", 4) == 1.0
    assert operations.busbw_factor("all_reduce", 1) == 1.0


def test_sizes():
    assert sizes.parse_sizes("1KiB:64KiB:x4,3,1.5M") == [3, 1024, 4096, 16384, 65536, 3 << 19]
    assert [sizes.format_size(n) for n in (12, 1536, 64 << 20)] == ["12 B", "1.5 KiB", "64 MiB"]
    for text in ("", "-1", "4Q", "1:2", "1:2:x1", "0:8:x2", "8:4:x2", "4Kb b"):
        with pytest.raises(ValueError, match="is no"):
            sizes.parse_sizes(text)


def test_effort():
    assert measure.calls_for(64e6) == 1
    assert measure.calls_for(10_000) == 200
    assert measure.samples_for(1e9, 1e8, 20) == 10
    assert measure.samples_for(0, 1e8, 20) == 5
    assert measure.samples_for(0, 1e8, 2) == 2
    found = measure.summarise(np.arange(101.0))
    assert (found.median_us, found.p5_us, found.p95_us) == (50, 5, 95)
    assert len(found.samples_us) == 101


def settings(**changes):
    """Small and quick."""
    base = Settings(
        ops=list(operations.OPS),
        sizes=[1 << 16],
        dtype="float32",
        redop="sum",
        against="best-link",
        effort=measure.Effort(samples=3, warm_up_calls=1, checks=1),
        time_budget_s=5,
        options={},
        json_path=None,
        svg_path=None,
    )
    return replace(base, **changes)


@pytest.mark.parametrize("against", ["best-link", "fixed-shares", "none"])
def test_bench_finds_nothing_wrong(ranks, against):
    def body(comm):
        return Bench(settings(against=against), comm, Reporter()).run()

    for results in ranks(2, body):
        assert [result.op for result in results] == list(operations.OPS)
        for result in results:
            assert result.wrong_bytes == 0
            assert result.checked_bytes > 0
            assert len(result.times.samples_us) == 3
            assert (result.baseline is None) == (against == "none")
            assert sum(use.share for use in result.links) == pytest.approx(1)
            assert result.wire_gbps == pytest.approx(result.busbw_gbps, rel=0.05)  # two ranks
            if result.baseline:
                assert result.baseline.wrong_bytes == 0
                assert result.ratio == pytest.approx(
                    result.baseline.times.median_us / result.times.median_us, rel=1e-3, abs=1e-4
                )


def test_calls_and_root_as_asked(ranks):
    """Every byte of a broadcast from a rank that was named is checked like any other's."""
    effort = measure.Effort(samples=3, warm_up_calls=1, checks=1, calls=7)

    def body(comm):
        asked = settings(ops=["broadcast", "all_gather"], effort=effort, root=0)
        return Bench(asked, comm, Reporter()).run()

    for sent, gathered in ranks(3, body):
        assert (sent.root, gathered.root) == (0, None)
        assert sent.wrong_bytes == sent.baseline.wrong_bytes == 0
        assert (sent.calls_per_sample, gathered.calls_per_sample) == (7, 7)


def test_a_sample_is_the_slowest_rank_s(ranks):
    def body(comm):
        return measure.of_all(comm, [10.0 + comm.rank, 20.0 - comm.rank, 30.0])

    for found in ranks(3, body):
        assert found.samples_us == [12.0, 20.0, 30.0]
        assert found.by_rank_us == [20.0, 19.0, 18.0]
        assert [one.slowest for one in found.by_rank] == [1, 0, 1]


def test_ranks_of_an_enclosing_launch_check_the_root():
    """How many there are is known when they have met."""
    line = ["run", "-n", "2", "-m", "braid.cli", "bench", "--device", "cpu", "-r", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", *line, "--sizes", "1K", "--ops", "broadcast"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "bench: --root: asked for 2, ranks are 0 to 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_root_is_whose_data_all_have():
    made = [cases.Case("broadcast", 64, np.dtype("int32"), "sum", r, 3, 1) for r in range(3)]
    assert all((one.expected() == made[1].data(1)).all() for one in made)
    assert case("broadcast", 0, 3).root == 2


def test_bench_sees_one_wrong_byte(ranks, monkeypatch):
    honest = Braid.run

    def corrupting(self):
        honest(self)
        if self._comm.rank == 1 and self._buffers.case.op == "all_to_all" and self.shares is None:
            self._buffers.out.view(np.uint8)[77] ^= 0x10

    monkeypatch.setattr(Braid, "run", corrupting)

    def body(comm):
        return [result.wrong_bytes for result in Bench(settings(), comm, Reporter()).run()]

    # The checked call, the sample on a soiled result, the last one; every rank knows.
    assert ranks(2, body) == [[0, 0, 0, 3, 0]] * 2


@pytest.mark.parametrize("is_ours", [True, False])
def test_bench_sees_samples_that_do_nothing(ranks, monkeypatch, is_ours):
    """What the checked call left is right: only a result that is soiled behind it tells."""
    honest = Braid.run

    def lazy(self):
        if (self.shares is None) != is_ours or self._calls == 0:
            honest(self)
        self._calls += 1

    monkeypatch.setattr(Braid, "run", lazy)
    monkeypatch.setattr(Braid, "_calls", 0, raising=False)

    def body(comm):
        first = replace(settings(), ops=["all_reduce"])
        (result,) = Bench(first, comm, Reporter()).run()
        return result.wrong_bytes, result.baseline.wrong_bytes

    for ours, theirs in ranks(2, body):
        assert (ours > 1 << 15) == is_ours
        assert (theirs > 1 << 15) == (not is_ours)


@pytest.fixture(scope="module")
def bench_files(tmp_path_factory):
    """One run of the command: its output, record and plot."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["bench", "-n", "2", "--ops", "all_gather,all_reduce", "--sizes", "4KiB:64KiB:x16"]
    arguments += ["--links", "shm,staged", "--pace", "shm=400MB/s,staged=200MB/s", "--iters", "3"]
    arguments += ["--tune", "off", "--json", str(folder / "r.json"), "--svg", str(folder / "r.svg")]
    arguments += ["--by-rank"]
    done = subprocess.run(
        [sys.executable, "-m", "braid.cli", *arguments],
        capture_output=True, text=True, timeout=100, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    return done, folder


def test_command_writes_everything(bench_files):
    done, folder = bench_files
    assert done.returncode == 0, done.stderr
    assert "PACED" in done.stdout
    assert "all_gather 64 KiB, braid" in done.stdout
    assert done.stdout.count(" of 3 ") == 16  # 4 cases, with their baselines, of 2 ranks
    for word in ("all_gather", "all_reduce", "64 KiB", "busbw", "gain", "wrong", "shm", "staged"):
        assert word in done.stdout
    assert (folder / "r.svg").read_text().lstrip().startswith("<?xml")


def test_record_holds_what_it_must(bench_files):
    _, folder = bench_files
    made = record.load(folder / "r.json")
    assert made.ranks == 2
    assert made.paced
    assert made.command.startswith("braid bench -n 2")
    assert [(r.op, r.bytes) for r in made.results] == [
        (op, size) for op in ("all_gather", "all_reduce") for size in (4096, 65536)
    ]
    assert made.options["BRAID_PACE"] == "shm=400MB/s,staged=200MB/s"
    assert "BRAID_JOB_TOKEN" not in made.options
    assert made.fabric_hash
    assert [link.source for link in made.fabric] == ["paced", "paced"]
    assert made.host.cores > 0
    assert made.host.cpu
    for result in made.results:
        assert len(result.times.samples_us) == 3
        assert result.baseline is not None
        assert result.baseline.name.endswith(" alone")
        assert result.algbw_gbps == pytest.approx(
            result.bytes / result.times.median_us / 1e3, rel=0.02, abs=1e-4
        )


def test_record_round_trip_and_errors(bench_files, tmp_path):
    _, folder = bench_files
    made = record.load(folder / "r.json")
    made.save(tmp_path / "again.json")
    assert record.load(tmp_path / "again.json") == made
    document = json.loads((folder / "r.json").read_text())
    for change, words in (
        ({"ranks": "2"}, "record.ranks: asked for int"),
        ({"schema": "other/1"}, "record.schema"),
        ({"surprise": 1}, "no other fields, found .*surprise"),
        ({"results": [{}]}, r"record.results\[0\]: asked for the fields"),
        ({"host": None}, "record.host: asked for an object"),
    ):
        with pytest.raises(ValueError, match=words):
            record.from_json({**document, **change})
    del document["date"]
    with pytest.raises(ValueError, match="asked for the fields date"):
        record.from_json(document)


def test_published_schema_is_current():
    published = json.loads((REPOSITORY / "docs/record.schema.json").read_text())
    assert published == record.FORM.json_schema(), (
        "run: python -m braid.record.bench > docs/record.schema.json"
    )


# Records in their own scripts' form: what each says at least, whatever it measured.
_RANKS, _RUNS = frozenset({"dirty", "ranks"}), frozenset({"ranks", "runs"})
_OWN_FORMS = {
    "braid.control/1": _RANKS,
    "braid.drop_in_memory/1": _RUNS,
    "braid.engine_points/1": _RUNS,
    "braid.engine_soak/1": _RUNS,
    "braid.gpu_beside/1": _RANKS,
    "braid.gpu_tuning/1": _RANKS,
    "braid.kernels_beside/1": frozenset({"dirty", "rows"}),
    "braid.kills/1": frozenset({"dirty", "runs"}),
    "braid.kv_kills/1": _RUNS | {"dirty"},
    "braid.lines/1": frozenset({"dirty", "rows"}),
    "braid.make_test/1": frozenset({"dirty", "runs"}),
    "braid.make_test_designs/1": frozenset({"dirty", "runs"}),
    "braid.moe_calls/1": _RUNS,
    "braid.moe_two_hosts/1": _RUNS,
    "braid.nccl_tests/1": _RANKS,
    "braid.nodes_cpu/1": frozenset({"dirty", "rows"}),
    "braid.nodes_gpu/1": frozenset({"dirty", "ranks"}),
    "braid.nodes_gpu_costs/1": frozenset({"dirty", "rows"}),
    "braid.nodes_handed_on/1": frozenset({"dirty", "rows"}),
    "braid.nodes_rails/1": frozenset({"dirty", "rows"}),
    "braid.nodes_refused/1": frozenset({"dirty", "runs"}),
    "braid.nodes_programs/1": frozenset({"dirty", "programs"}),
    "braid.nodes_roll/1": frozenset({"dirty", "runs"}),
    "braid.overlap_block/1": _RANKS | {"blocks", "gpt", "faults"},
    "braid.overlap_choices/1": frozenset({"dirty", "rows", "faults"}),
    "braid.overlap_streams/1": frozenset({"dirty", "rows"}),
    "braid.single_writes/1": frozenset({"dirty", "rows"}),
    "braid.strangers/1": frozenset({"dirty", "runs"}),
    "braid.torch_messages/1": _RUNS,
    "braid.torch_tests/1": _RANKS,
    "braid.tuning/1": _RANKS,
    "braid.two_hosts/1": _RANKS,
    "braid.vllm/1": _RUNS,
    "braid.vllm_kills/1": _RUNS,
    "braid.watch/1": _RANKS,
    "braid.weights_plan/1": _RUNS,
}


def read_any_record(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    schema = document["schema"]
    if schema.startswith("braid.gpu/"):
        old_gpu_record.read(document)
    elif schema == "braid.probe/1":
        probe_record.from_json(document)
    elif schema == "braid.topo/1":
        topo_document.read(path.read_text(encoding="utf-8"))
    elif schema in _OWN_FORMS:
        assert {"command", "date", "commit"} | _OWN_FORMS[schema] <= document.keys(), path
    else:
        record.load(path)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "records").glob("**/*.json")), ids=lambda path: path.stem
)
def test_every_committed_record_fits(path):
    read_any_record(path)


def test_table_and_plot_of_any_record(bench_files, tmp_path, capsys):
    _, folder = bench_files
    made = record.load(folder / "r.json")
    bare = replace(made, paced=False, results=[replace(made.results[0], baseline=None, ratio=None)])
    assert "PACED" in table.title(made)
    assert "PACED" not in table.title(bare)
    table.show(bare, console())
    assert "all_gather" in capsys.readouterr().out
    plot.save(bare, tmp_path / "bare.svg")
    assert "paced" not in (tmp_path / "bare.svg").read_text()


def test_plain_progress(capsys):
    lines = Lines()
    for step in range(101):
        lines.tuning(step / 100, "shm")
    lines.start(2)
    lines.expect(7)
    lines.case_done()
    said = capsys.readouterr().err.splitlines()
    assert 4 <= len(said) <= 7
    assert said[-1] == "case 1 of 2: 7 samples"


def test_ctrl_c_keeps_the_cases_before(tmp_path):
    """The case at hand ends; the record says where."""
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "braid.cli", "bench", "--device", "cpu", "-n", "2"]
    command += ["-b", "1K", "-e", "64K", "-f", "4", "-d", "int32", "-o", "max", "-w", "1"]
    command += ["--links", "shm", "--tune", "off", "--against", "none", "--json", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if line.startswith("case 2 of 20"):
                break
        running.send_signal(signal.SIGINT)
        running.stderr.read()
        assert running.wait(30) == 128 + signal.SIGINT
    kept = record.load(path)
    assert kept.stopped.startswith("interrupted in case")
    assert 1 < len(kept.results) < 20
    times = kept.results[0].times
    assert times.median_us <= times.p99_us
    assert len(times.by_rank_us) == 2
    assert [one.p50_us for one in times.by_rank] == times.by_rank_us
    assert sum(one.slowest for one in times.by_rank) <= len(times.samples_us)


class Spread:
    """A comm whose ranks are on so many hosts."""

    def __init__(self, ranks, hosts):
        self.size, self._hosts = ranks, hosts

    def all_gather(self, mine):
        return np.concatenate([mine + rank % self._hosts for rank in range(self.size)])


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (4, 1), (4, 2), (6, 3)])
def test_a_record_says_on_how_many_hosts_its_ranks_were(ranks, hosts):
    assert facts.num_hosts(Spread(ranks, hosts)) == hosts
    assert facts.host(hosts).num_hosts == hosts


def test_a_record_says_what_paces_tcp():
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text()
    assert facts.host().tcp == control.strip() != ""

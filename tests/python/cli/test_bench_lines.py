"""`braid bench`, `run`, `demo`, `explain` with options that cannot be: one line, exit code 2."""

import shlex
import sys
from pathlib import Path

import pytest

import braid as braid_package
from braid.bench import gpus
from braid.bench.host import session as bench
from braid.cli import (
    app,
    bench_moe,
    bench_overlap,
    collectives,
    main,
    nccl_words,
    probe_calls,
    probe_options,
)
from braid.cli.compare import parse_tolerance
from braid.errors import InvalidArgument
from braid.probe import session


@pytest.fixture
def braid(monkeypatch, capsys, tmp_path):
    """Runs a command line that must not start anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(0, "there is none"))
    for module in (app, collectives):
        monkeypatch.setattr(module, "launch", lambda *_a, **_k: pytest.fail("ranks were started"))

    def run(line):
        monkeypatch.setattr(sys, "argv", ["braid", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return stop.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench --ops scatter", "bench: --ops: 'scatter' is no operation; braid has all_gather"),
        ("bench --ops all_gather,", "bench: --ops: '' is no operation"),
        ("bench --sizes 4X", "bench: --sizes: '4X' is no size"),
        ("bench --sizes 8:4:x2", "bench: --sizes: '8:4:x2' is no range"),
        ("bench --sizes 1K -b 1K", "bench: --sizes and -b, -e say the same"),
        ("bench --sizes 1K -e 1K", "bench: --sizes and -b, -e say the same"),
        ("bench -b 4K -e 1K", "bench: --sizes: '4K:1K:x2' is no range"),
        ("bench -b 4K -e 8K -f 1", "bench: --sizes: '4K:8K:x1' is no range"),
        ("bench -e 1M", "bench: --sizes: '32MiB:1M:x2' is no range"),
        ("bench -b 4K -e 8K -f 0", "bench: --sizes: '4K:8K:x0' is no range"),
        ("bench -b 4K -e 8K -i 0", "bench: --sizes: '4K:8K:+0' is no range; STEP"),
        ("bench -b 4K -e 8K -i 1K -f 2", "bench: -i and -f both say the next size"),
        ("bench -i 1K", "bench: -i: there is no range; write -b and -e"),
        ("bench --sizes 1K -i 1K", "bench: --sizes and -b, -e say the same"),
        ("bench --root 4", "bench: --root: asked for 4, ranks are 0 to 3"),
        ("bench -n 2 -r 2", "bench: --root: asked for 2, ranks are 0 to 1"),
        ("bench broadcast_perf -r -1", "bench: --root: asked for -1, ranks are 0 to 3"),
        ("bench --ops all_reduce -r 0", "bench: --root: only broadcast has one"),
        ("bench -m -1", "bench: --calls: asked for -1, it must be from 0 to 1000"),
        ("bench -m 1001", "bench: --calls: asked for 1001"),
        ("bench -G -1", "bench: --cudagraph: asked for -1, it must be from 0 to 1000"),
        ("bench -G 3", "bench: --cudagraph: graphs are for GPUs; leave it out between CPUs"),
        (
            "bench all_reduce_perf -b 8 -n 20 -g 2",
            "bench: -n means iterations to nccl-tests and ranks to braid; write --iters 20, or"
            " --ranks 20\n",
        ),
        ("bench all_reduce_perf -n20", "write --iters 20, or --ranks 20"),
        ("bench -n 20 -g 2", "bench: -n means iterations to nccl-tests and ranks to braid"),
        ("bench -g2 -n 20", "bench: -n means iterations to nccl-tests and ranks to braid"),
        ("bench -n 2 --minbytes 8", "bench: -n means iterations to nccl-tests"),
        ("bench all_reduce_perf -t 8", "bench: -t of nccl-tests is not here: ranks are processes"),
        ("bench all_reduce_perf -z1", "bench: -z of nccl-tests is not here: calls always run"),
        ("bench all_reduce_perf -J a.json", "bench: -J of nccl-tests is not here: write --json"),
        ("bench --average=1", "bench: --average of nccl-tests is not here: the slowest rank's"),
        ("bench -n 65", "--ranks: asked for 65, braid takes 1 to 64"),
        ("bench -n -1", "--ranks: asked for -1, braid takes 1 to 64"),
        ("bench --iters 0", "bench: --iters: asked for 0, at least 1 is needed"),
        ("bench --warmup 0", "bench: --warmup: asked for 0"),
        ("bench --check -3", "bench: --check: asked for -3"),
        ("bench --dtype float7", "bench: --dtype: 'float7' is no type; braid has int8"),
        (
            "bench --op xor",
            "bench: --op: 'xor' is no reduction; braid has sum, prod, min, max, avg",
        ),
        ("bench --against mpi", "bench: --against: 'mpi' is no baseline; braid has"),
        ("bench --device tpu", "bench: --device: 'tpu' is no device"),
        ("bench --device gpu", "bench: GPUs were asked for, but there is none"),
        ("bench --suite flexlink", "bench: GPUs were asked for, but there is none"),
        ("bench --suite flexlink --device cpu", "bench: --suite: the suites are for GPUs"),
        ("run -n 0 x.py", "--ranks: asked for 0"),
        ("run -n 65 x.py", "--ranks: asked for 65"),
        ("run x.py", "run: there is no file x.py"),
        ("demo -n 100", "--ranks: asked for 100"),
        ("demo --size big", "demo: --size: 'big' is no size"),
        ("explain all_gather 4X", "explain: SIZE: '4X' is no size"),
        ("explain gather 4K", "explain: OP: 'gather' is no operation"),
    ],
)
def test_refused_in_one_line(braid, line, said):
    code, out, err = braid(line)
    assert (code, out) == (2, "")
    assert err.startswith("braid: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_missing_library_of_the_drop_in(braid, monkeypatch):
    monkeypatch.setattr("braid.cli.nccl.library", lambda: None)
    code, out, err = braid("nccl-env")
    assert (code, out) == (2, "")
    assert err == "braid: nccl-env: libbraid-nccl.so is not beside the package\n"


def test_the_line_of_the_drop_in(braid, monkeypatch, tmp_path):
    monkeypatch.setattr("braid.cli.nccl.library", lambda: tmp_path / "libbraid-nccl.so")
    monkeypatch.setenv("LD_PRELOAD", "/old/libbraid-nccl.so:/lib/other.so:")
    code, out, _ = braid("nccl-env")
    assert code == 0
    assert out == f"LD_PRELOAD={tmp_path}/libbraid-nccl.so:/lib/other.so\n"


@pytest.mark.parametrize(
    ("begin", "end", "factor", "text"),
    [
        ("", "", 2, ""),
        ("8", "1M", 4, "8:1M:x4"),
        ("8", "", 2, "8:8:x2"),
        ("", "1G", 2, "32MiB:1G:x2"),
    ],
)
def test_sizes_as_nccl_tests_writes_them(begin, end, factor, text):
    assert collectives._range_text(begin, end, factor) == text


def test_steps_as_nccl_tests_writes_them():
    assert collectives._range_text("1M", "8M", None, "1M") == "1M:8M:+1M"
    assert collectives._range_text("8", "", None) == "8:8:x2"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("all_reduce_perf --minbytes 8 --maxbytes=1G", "--ops all_reduce -b 8 -e 1G"),
        ("alltoall_perf --stepbytes 1M --iters 7", "--ops all_to_all -i 1M --iters 7"),
        ("--stepfactor 4 --ngpus 2 --agg_iters 3", "-f 4 -g 2 -m 3"),
        ("--warmup_iters=9 --datatype half --check 2", "-w 9 -d half --check 2"),
        ("broadcast --root 1 --cudagraph 3 -n 4", "--ops broadcast --root 1 --cudagraph 3 -n 4"),
        ("-n 2 -b 8 --json=a=b.json", "-n 2 -b 8 --json=a=b.json"),
        ("p2p --minbytes 8 -t", "p2p --minbytes 8 -t"),
    ],
)
def test_long_names_of_nccl_tests(theirs, ours):
    line = ["braid", "bench", *theirs.split()]
    nccl_words.take(line)
    assert line == ["braid", "bench", *ours.split()]
    again = list(line)
    nccl_words.take(again)  # as ranks do
    assert again == line


def test_every_name_is_taken_or_explained():
    """All that nccl-tests' help had in 2.19.6 and braid knows is in the table of the docs."""
    table = (Path(__file__).parents[3] / "docs/bench.md").read_text().partition("nccl-tests has")[2]
    table = table.partition("\n## ")[0]
    for name in (*nccl_words.OURS, *nccl_words.OURS.values(), "--iters", "--root", "--cudagraph"):
        assert f"`{name}`" in table, name
    for names in nccl_words.NOT_HERE:
        for name in names:
            assert f"`{name}`" in table, name


def test_they_reach_the_measurement(braid, monkeypatch):
    """What the ranks get is what was written."""
    seen = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(bench, "run_rank", lambda settings: seen.append(settings) or 0)
    line = "bench broadcast_perf -b 1K -e 4K -i 1K -r 2 -m 7 --iters 3 -w 4 -d half"
    assert braid(line)[0] == 0
    (settings,) = seen
    assert settings.sizes == [1024, 2048, 3072, 4096]
    assert (settings.ops, settings.root, settings.dtype) == (["broadcast"], 2, "float16")
    effort = settings.effort
    assert (effort.calls, effort.samples, effort.warm_up_calls) == (7, 3, 4)


def test_version_and_options(braid):
    code, out, _ = braid("--version")
    assert code == 0
    assert out.split()[0] == "braid"
    assert out.split()[1].count(".") == 2
    code, out, _ = braid("options")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if line.startswith("BRAID_")]
    assert len(names) == len(set(names)) > 5
    assert "BRAID_TIMEOUT" in names
    described = [line for line in out.splitlines() if line.startswith("    ")]
    assert len(described) >= len(names)


def test_a_rank_s_errors_say_which_rank(braid, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    code, _, err = braid("bench p2p --size big")
    assert code == 2
    assert err.startswith("braid: rank 3: bench --size: 'big' is no size")


@pytest.mark.parametrize(
    ("ranks", "default", "least", "most", "found"),
    [(0, 4, 2, 8, 4), (8, 4, 2, 8, 8), (2, 4, 2, 8, 2), (9, 4, 2, 8, None), (0, 1, 2, 8, None)],
)
def test_how_many_ranks(ranks, default, least, most, found):
    if found is None:
        with pytest.raises(Exception, match=f"asked for {ranks}, it must be from 2 to 8"):
            probe_options.count(ranks, default, least, most)
    else:
        assert probe_options.count(ranks, default, least, most) == found


def test_ranks_of_kinds_that_make_calls():
    assert probe_options.ranks_for(0, 0) == 4
    assert probe_options.ranks_for(8, 0) == 8
    assert probe_options.ranks_for(0, 64) == 64
    with pytest.raises(Exception, match="from 2 to 8"):
        probe_options.ranks_for(8, 9)


@pytest.mark.parametrize(
    ("device", "there", "least", "found"),
    [("auto", 4, 2, 4), ("auto", 1, 2, 0), ("cpu", 4, 1, 0), ("gpu", 2, 2, 2), ("auto", 0, 1, 0)],
)
def test_which_device(monkeypatch, device, there, least, found):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(there))
    assert probe_options.gpus(device, least) == found


@pytest.fixture
def one_gpu_each(monkeypatch):
    """This process is a rank of four, whose launcher shows it its own GPU alone."""
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(1))
    for name, text in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, text)


@pytest.mark.parametrize("line", ["latency", "compute-overlap"])
@pytest.mark.parametrize(("device", "is_on_gpus"), [("auto", True), ("gpu", True), ("cpu", False)])
def test_ranks_of_a_launch_need_a_gpu_each(braid, monkeypatch, request, line, device, is_on_gpus):
    """With one in sight CPUs were measured without a word, and --device gpu was refused."""
    request.getfixturevalue("one_gpu_each")
    asked = []
    monkeypatch.setattr(session, "run_rank", lambda one: asked.append(one.on_gpus) or 0)
    assert braid(f"bench {line} --device {device}") == (0, "", "")
    assert asked == [is_on_gpus]


@pytest.fixture
def hopper(monkeypatch):
    """What torch says of GPUs, before it is asked how many."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return torch


def taken(monkeypatch, torch):
    """The GPU that this rank takes, where the run would begin."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)

    def begin(**_options):
        raise InvalidArgument(f"begins on {chosen.pop()}")

    monkeypatch.setattr(braid_package, "init", begin)


@pytest.mark.parametrize("line", ["moe --gpu", "overlap --rows 64"])
def test_a_rank_takes_the_only_gpu_that_it_is_shown(braid, monkeypatch, request, hopper, line):
    """Both asked for the second, or for one for each rank in every rank."""
    request.getfixturevalue("one_gpu_each")
    taken(monkeypatch, hopper)
    code, _, err = braid(f"bench {line}")
    assert (code, err.strip()) == (2, "braid: rank 1: begins on cuda:0")


@pytest.mark.parametrize("line", ["moe --gpu", "overlap --rows 64"])
def test_ranks_are_not_started_where_they_have_too_few_gpus(braid, monkeypatch, hopper, line):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(1))
    monkeypatch.setattr(hopper.cuda, "device_count", lambda: 1)
    for module in (bench_moe, bench_overlap):
        monkeypatch.setattr(module, "launch", lambda *_a, **_k: pytest.fail("ranks were started"))
    code, _, err = braid(f"bench {line} -n 2")
    assert code == 2
    assert "asked for 2 GPUs, one for each rank, but 1 is here" in err


@pytest.mark.usefixtures("one_gpu_each")
def test_rows_divide_among_the_ranks_of_the_launch(braid):
    """Not among the number that is used without one."""
    assert "--rows: 66 do not divide among 4 ranks" in braid("bench overlap --rows 66")[2]


@pytest.mark.usefixtures("one_gpu_each")
def test_ranks_of_a_launch_are_as_many_as_it_has():
    """Not as many as this rank sees GPUs, which cut a block for another number of ranks."""
    assert probe_options.ranks_for(1, 0) == probe_options.ranks_for(8, 0) == 4


@pytest.mark.usefixtures("one_gpu_each")
def test_copies_between_gpus_need_two_in_a_rank_too():
    with pytest.raises(Exception, match="this machine has 1, and 2 are needed"):
        probe_options.gpus("gpu", 2)


def test_too_few_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(gpus, "find", lambda: gpus.Gpus(1))
    with pytest.raises(Exception, match="this machine has 1, and 2 are needed"):
        probe_options.gpus("gpu", 2)


@pytest.mark.parametrize(
    ("text", "count", "found"),
    [("", 2, "nccl"), ("", 0, "none"), ("none", 2, "none"), ("nccl", 2, "nccl"),
     ("nccl", 0, None), ("gloo", 2, None), ("none", 0, "none")],
)  # fmt: skip
def test_baselines_of_a_device(text, count, found):
    if found is None:
        where = "on GPUs; write nccl" if count else "between CPUs; write gloo"
        with pytest.raises(Exception, match=f"--against: '{text}' is no baseline here, {where} or"):
            probe_calls.baseline(text, count)
    else:
        assert probe_calls.baseline(text, count) == found


def test_types_if_none_is_said():
    assert (probe_calls._dtype("", 2), probe_calls._dtype("", 0)) == ("bfloat16", "float32")
    assert probe_calls._dtype("uint16", 0) == "uint16"
    with pytest.raises(Exception, match="'uint16'"):
        probe_calls._dtype("uint16", 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [("0", 0.0), ("0%", 0.0), (" 12.5 % ", 0.125), ("99.9%", 0.999), ("1e-3", 1e-3)],
)
def test_tolerances(text, part):
    assert parse_tolerance(text) == pytest.approx(part)


def test_baselines_that_bench_knows():
    assert set(bench.AGAINST) == {"best-link", "fixed-shares", "gloo", "none"}


def test_a_size_that_is_cut_is_said_before_it_is_measured(braid, monkeypatch):
    monkeypatch.setattr(collectives, "launch", lambda *_a, **_k: 0)
    code, _, said = braid("bench --device cpu -n 2 --ops all_reduce -b 7 -e 7")
    assert code == 0
    assert said == "braid: all_reduce of 7 B is measured at 4 B, in whole elements\n"
    assert braid("bench --device cpu -n 2 --ops all_reduce -b 8 -e 8")[2] == ""

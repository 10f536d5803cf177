"""DeepEP as a baseline of `braid bench moe`: found, refused, checked and timed by its own calls, on
a package with the interface of v1.2.1 in host memory.
"""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import braid
from braid.bench.moe import contestants, deepep
from braid.bench.moe.routings import Shape, ids_of
from braid.cli import probe_options as options
from braid.cli.deepep import folder

torch = pytest.importorskip("torch")

from braid.bench.moe import arrivals, gpu, steps  # noqa: E402  they need torch
from braid.record.probe import Series, times_of  # noqa: E402

FIXTURE = Path(__file__).parents[1] / "fixtures/deepep"
SHAPE = Shape("small", 16, 4, 2048)  # the least width that its low-latency kernels take
TOKENS, SIZE = 10, 2


def on_path(*places):
    """What this process imports from; forget the one before."""
    sys.path[:] = [*map(str, places), *(each for each in sys.path if "deepep" not in each)]
    for name in [name for name in sys.modules if name.split(".")[0] == "deep_ep"]:
        del sys.modules[name]


@pytest.fixture
def path():
    kept = list(sys.path)
    yield on_path
    sys.path[:] = kept
    on_path(*kept)


def why_not():
    with pytest.raises(deepep._NotRacedError) as caught:
        deepep.find()
    return str(caught.value)


# ---- which package ----


def test_none(path):
    path()
    assert why_not() == "no package deep_ep is installed"


def test_stand_in(path):
    path(folder())
    assert why_not() == "the package deep_ep is braid's stand-in"


def test_one_that_does_not_load(path, monkeypatch):
    monkeypatch.setenv("FAKE_DEEPEP_BUILD", "broken")
    path(FIXTURE)
    assert why_not().startswith("ImportError: deep_ep_cpp.so: undefined symbol")


def test_version_is_of_the_distribution(path, tmp_path):
    path(FIXTURE)
    assert deepep.find().version == "of unknown version"
    about = tmp_path / "deepep_lib-1.2.1+9af0e0d.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: deepep-lib\nVersion: 1.2.1+9af0e0d\n")
    (about / "top_level.txt").write_text("deep_ep\ndeep_ep_cpp\n")
    path(FIXTURE, tmp_path)
    assert deepep.find().version == "deepep-lib 1.2.1+9af0e0d"


# ---- who takes part ----


def entered(ranks, mode="both", size=SIZE, shape=SHAPE, place=lambda _: FIXTURE, options=None):
    """What every rank's entry is: whether it is there, with low latency, what it says."""

    def body(comm):
        on_path(*([found] if (found := place(comm.rank)) else []))
        leave = contestants.join(comm)
        entry = deepep.enter(comm, mode, shape, [TOKENS, 4096])
        other = entry.deepep
        told = (other is not None, other is not None and other.has_low_latency(TOKENS))
        assert other is None or not other.has_low_latency(4096)
        if other is not None:
            other.close()
        leave()
        return (*told, entry.said, entry.versions)

    return ranks(size, body, options or {})


def test_all(ranks):
    versions = {"deep_ep": "of unknown version"}
    assert entered(ranks) == [(True, True, "normal mode, low latency", versions)] * SIZE


def test_normal_mode_alone(ranks):
    assert [each[:3] for each in entered(ranks, "normal")] == [(True, False, "normal mode")] * SIZE


def test_not_asked_for(ranks):
    assert entered(ranks, "no") == [(False, False, "not raced: not asked for", {})] * SIZE


def test_width_without_low_latency_kernels(ranks):
    told = entered(ranks, shape=Shape("narrow", 16, 4, 256))
    assert [each[:3] for each in told] == [(True, False, "normal mode")] * SIZE


def test_three_ranks(ranks):
    for there, _, said, _ in entered(ranks, size=3):
        assert not there
        assert said == "not raced: rank 0: it has kernels for 2, 4 or 8 ranks, not for 3"


def test_one_rank_without_it(ranks):
    """Nobody waits for buffers of a rank that has none."""
    told = entered(ranks, place=lambda rank: None if rank == 1 else FIXTURE)
    said = "not raced: rank 1: no package deep_ep is installed"
    assert told == [(False, False, said, {})] * SIZE


def test_built_without_nvshmem(ranks):
    for there, low, said, _ in entered(ranks, options={"FAKE_DEEPEP_BUILD": "plain"}):
        assert there
        assert not low
        assert said.startswith("normal mode; low latency not raced: rank 0: RuntimeError: Asser")
        assert "NVSHMEM is disabled" in said


# ---- what is checked, and how it is timed ----


def captured(low):
    """In place of graphs: what a call left, and a replay that takes the half of DeepEP's buffer
    which the call had.
    """

    def capture(call):
        low.is_capturing, low.half = True, None
        left = call()
        low.is_capturing = False
        half = low.half

        def replay():
            if half is not None:
                low.use(half)

        return replay, left

    return capture


class Race:
    """One rank's run in host memory: all that is checked and timed, but for times and graphs."""

    def __init__(self, comm, other, buffer):
        self.bench = bench = gpu._Bench(comm, SHAPE, TOKENS, "uniform", False, other)
        ids = ids_of(SHAPE, "uniform", TOKENS, comm.rank)
        bench.case = contestants.Case(SHAPE, ids, SIZE, comm.rank)
        bench.buffer, local = buffer, SHAPE.num_experts // SIZE
        bench.y = bench.case.x.new_zeros((local, TOKENS * SIZE, SHAPE.hidden))
        steps.captured = captured(other.low)
        torch.cuda.synchronize = lambda: None
        other.begin(TOKENS)

    def wrong(self):
        """Names of what has wrong bytes."""
        found = self.bench._check([each for each, _ in self.bench._both()])
        made, refused = self.bench._steps()
        assert not refused
        found |= self.bench._check_steps(made)
        assert all(wrong == 0 or "DeepEP" in name for name, wrong in found.items())
        return {name for name, wrong in found.items() if wrong}


def raced(ranks, body, wrong=""):
    def rank(comm):
        on_path(FIXTURE)
        leave = contestants.join(comm)
        other = deepep.enter(comm, "both", SHAPE, [TOKENS]).deepep
        hint = braid.moe.Buffer.get_low_latency_rdma_size_hint(
            TOKENS, SHAPE.hidden, SIZE, SHAPE.num_experts
        )
        with braid.moe.Buffer(comm, 1 << 20, hint, low_latency_mode=True) as buffer:
            found = body(Race(comm, other, buffer))
        other.close()
        leave()
        return found

    return ranks(SIZE, rank, {"FAKE_DEEPEP_WRONG": wrong})


def names_of(prefix, sms):
    return [
        f"{prefix}normal {call}, {n} SMs, {how}"
        for n in sms
        for call, how in [
            ("dispatch", "graph"),
            ("dispatch fp8", "graph"),
            ("combine", "graph"),
            ("dispatch", "eager, exact sizes"),
        ]
    ]


OWN = [
    *names_of("", ("all", 24, 20)),
    "low latency dispatch fp8, graph",
    "low latency combine bf16, graph",
    "low latency combine by rank bf16, graph",
]
LOW, LOW_COMBINE = (f"DeepEP {name}" for name in OWN[-3:-1])
STEPS = [*names_of("DeepEP ", (24, 20)), LOW, LOW_COMBINE]
FP8 = {name for name in STEPS if "normal dispatch fp8" in name}
COMBINES = {name for name in STEPS if "normal combine" in name}
BOTH_NORMAL, BOTH_LOW = (f"{name}, {gpu.BOTH}" for name in ("DeepEP", "DeepEP low latency"))


def test_all_right(ranks):
    assert raced(ranks, Race.wrong) == [set()] * SIZE


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("rows", {name for name in STEPS if "normal" in name} | {BOTH_NORMAL}),
        ("scales", FP8),
        ("sums", COMBINES | {BOTH_NORMAL, BOTH_LOW}),
        ("low", {LOW, BOTH_LOW}),
        ("source", {LOW}),
    ],
)
def test_wrong_bytes_are_named(ranks, wrong, named):
    for found in raced(ranks, Race.wrong, wrong):
        assert found == named


def test_steps_and_their_order(ranks):
    """Whatever is replayed after whatever: no captured call finds flags of an earlier one."""

    def body(race):
        made, _ = race.bench._steps()
        theirs = [each for each in made if each.name in STEPS]
        for first, second in itertools.product(theirs, repeat=2):
            for each in (first, first, second):
                each.whole()
        alone = theirs[STEPS.index(LOW)]
        alone.call()
        try:
            alone.call()
        except AssertionError as error:
            return [each.name for each in made], str(error)
        return "a dispatch that was replayed alone went through"

    told = raced(ranks, body)
    assert told == [(OWN + STEPS, "flags of an earlier call are still there")] * SIZE


def test_calls_that_it_refuses(ranks):
    """Its normal calls end in an error of its own: they are left out, with the words."""

    def body(race):
        made, refused = race.bench._steps()
        return [each.name for each in made], refused

    for names, refused in raced(ranks, body, "refused"):
        assert names == [*OWN, LOW, LOW_COMBINE]
        assert refused == {"DeepEP normal": "Assertion error: dispatch"}


def test_rows_that_are_said_to_be_others(ranks):
    def rank(comm):
        hint = braid.moe.Buffer.get_low_latency_rdma_size_hint(
            TOKENS, SHAPE.hidden, SIZE, SHAPE.num_experts
        )
        ids = ids_of(SHAPE, "uniform", TOKENS, comm.rank)
        case = contestants.Case(SHAPE, ids, SIZE, comm.rank)
        come = arrivals.Arrivals(SHAPE, "uniform", TOKENS, SIZE, comm.rank)
        with braid.moe.Buffer(comm, 1 << 20, hint, low_latency_mode=True) as buffer:
            got = buffer.low_latency_dispatch(case.x, case.ids, TOKENS, SHAPE.num_experts)
            found = [come.wrong_low_latency(got)]
            got[2][0][:, :2] = got[2][0][:, :2].flip(1)
            found.append(come.wrong_low_latency(got))
            got[1][0] += 1
            return [*found, come.wrong_low_latency(got)]

    for right, swapped, more in ranks(SIZE, rank):
        assert right == 0
        assert swapped > 0
        assert more == swapped + SHAPE.hidden


def test_rows_it_takes():
    package = deepep.Package(SimpleNamespace(Buffer=None), "")
    taken = {
        size: [deepep.DeepEp(package, SHAPE, size, None).rows_for(n) for n in (1, 2, 3, 128)]
        for size in (2, 4, 8)
    }
    assert taken == {2: [2, 2, 4, 128], 4: [1, 2, 3, 128], 8: [1, 2, 3, 128]}


def test_figures():
    def one(case, us):
        return Series("g", case, 1, times_of([us]), None)

    found = gpu.ratios_of(
        [
            one(f"braid, {gpu.BOTH}", 10),
            one(f"DeepEP, {gpu.BOTH}", 15),
            one("normal combine, 20 SMs, graph", 4),
            one("DeepEP normal combine, 20 SMs, graph", 6),
            one("DeepEP normal combine, 24 SMs, graph", 5),
        ]
    )
    assert found == {
        f"g, DeepEP, {gpu.BOTH}": 1.5,
        "g, DeepEP normal combine, 20 SMs, graph": 1.5,
    }


def test_cast_is_the_projects(ranks):
    """E4M3 and scales as the low-latency dispatch makes them, to the bit."""

    def body(comm):
        x = torch.randn(6, 512, generator=torch.Generator().manual_seed(comm.rank)).bfloat16()
        ids = torch.zeros(6, 1, dtype=torch.int64)
        hint = braid.moe.Buffer.get_low_latency_rdma_size_hint(6, 512, 1, 1)
        with braid.moe.Buffer(comm, 0, hint, low_latency_mode=True) as buffer:
            (rows, scales), count, *_ = buffer.low_latency_dispatch(x, ids, 6, 1)
            assert int(count[0]) == 6
            wanted = arrivals.cast(x)
            return [
                bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))
                for a, b in ((rows[0], wanted[0]), (scales[0].contiguous(), wanted[1]))
            ]

    assert ranks(1, body) == [[True, True]]


def test_the_command_takes_every_mode():
    """Words that mean all of something, or none, are no modes to it."""
    for mode in deepep.MODES:
        options.word(mode, deepep.MODES, "moe: --deepep", "mode")

"""`braid bench moe --beside-gemm`: turns, what follows from their times, and who is raced, between
processes and with a clock of the host in place of a GPU's events.
"""

import contextlib
import functools
import json
import sys
import time
from pathlib import Path

import pytest

import braid
from braid.bench.moe import contestants, deepep
from braid.bench.moe.routings import Shape
from braid.cli import bench_moe
from braid.probe.effort import Effort
from braid.probe.publish import Output
from braid.record import probe

torch = pytest.importorskip("torch")

from braid.bench.moe import beside, clock, gpu, launches  # noqa: E402  they need torch

FIXTURE = Path(__file__).parents[1] / "fixtures/deepep"
SHAPE = Shape("small", 16, 4, 2048)  # the least width that DeepEP's low-latency kernels take
TOKENS, SIZE = 10, 2
GROUP = f"small {TOKENS} tokens uniform"
DISPATCH, COMBINE = "low latency dispatch fp8, hooked", "low latency combine bf16, hooked"
CALLS = (DISPATCH, COMBINE, f"DeepEP {DISPATCH}", f"DeepEP {COMBINE}")


class Event:
    """Of the host's clock: whatever it is recorded behind is done."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_s = time.perf_counter()

    def query(self):
        return False

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at_s - self.at_s) * 1e3


class Properties:
    multi_processor_count = 132


def stand_in():
    """For torch.cuda, in a rank's own process."""
    cuda = torch.cuda
    cuda.Event, cuda.synchronize, cuda._sleep = Event, lambda: None, lambda _: None
    cuda.current_device, cuda.get_device_properties = lambda: 0, lambda _: Properties
    clock._FLUSH_BYTES, beside.GEMM = 4096, (8, 16, 4)


def raced(ranks, body, wrong=""):
    """body(comm, deepep) of every rank."""

    def rank(comm):
        stand_in()
        sys.path.insert(0, str(FIXTURE))
        leave = contestants.join(comm)
        other = deepep.enter(comm, "both", SHAPE, [TOKENS]).deepep
        found = body(comm, other)
        other.close()
        leave()
        return found

    return ranks(SIZE, rank, {"FAKE_DEEPEP_WRONG": wrong})


def series_of(comm, other, samples=2):
    jobs = beside.jobs(comm, SHAPE, [TOKENS, 4096], ["uniform"], other, "cpu")
    ticks = []
    found = [one for job in jobs for one in job.run(Effort(samples, 60, 1), ticks.append)]
    assert ticks == [*range(1, samples + 1), 1]
    return found


# ---- the clock ----


class Log(list):
    """Of everything that a clock makes happen."""

    def call(self, name):
        return lambda *_, **__: self.append(name)

    barrier = property(lambda self: self.call("ranks"))
    all_reduce = property(lambda self: self.call("GPUs"))


@pytest.fixture
def log(monkeypatch):
    log = Log()

    class LoggedEvent(Event):
        def record(self):
            super().record()
            log.append("mark")

        def query(self):
            return "late" in log

    monkeypatch.setattr(torch.cuda, "Event", LoggedEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", log.call("done"))
    monkeypatch.setattr(torch.cuda, "_sleep", log.call("sleep"))
    monkeypatch.setattr(clock, "_FLUSH_BYTES", 4096)
    return log


def test_calls_of_one_measurement_are_enqueued_without_a_wait(log):
    watch = clock.Clock(log, 100, "cpu")
    times = watch.time_us([log.call("send"), log.call("GEMM"), log.call("hook")])
    assert len(times) == 3
    marked = ["mark", "send", "mark", "GEMM", "mark", "hook", "mark"]
    assert log == ["done", "ranks", "sleep", "GPUs", *marked]
    assert watch.num_late == 0


def test_all_is_done_everywhere_before_a_call_that_waits_for_nobody(log):
    watch = clock.Clock(log, 100, "cpu")
    assert watch.time_met_us(log.call("hook")) > 0
    assert log == ["done", "ranks", "sleep", "mark", "hook", "mark"]


def test_a_late_host_is_counted(log):
    watch = clock.Clock(log, 100, "cpu")
    watch.time_us([log.call("late"), log.call("GEMM")])
    watch.time_met_us(log.call("hook"))
    assert watch.num_late == 2


# ---- what follows ----


def part(call, name, *us):
    """Medians of two ranks."""
    by_rank = {f"rank {rank}": each for rank, each in enumerate(us)}
    return probe.Series(
        GROUP, f"{call}: {name}", 0, probe.times_of([max(us)]), None, by_rank_us=by_rank
    )


def test_figures_are_of_the_rank_where_they_are_most():
    series = [
        part(DISPATCH, beside.ALONE, 300, 310),
        part(DISPATCH, beside.SEND, 20, 20),
        part(DISPATCH, beside.BETWEEN, 303, 316.2),
        part(DISPATCH, beside.HOOK, 18, 11),
        part(DISPATCH, beside.WHOLE, 341, 347.2),
        part(DISPATCH, beside.MET_HOOK, 12, 10),
        part(DISPATCH, beside.OWN, 32, 30),
    ]
    other = probe.Series(GROUP, "normal combine, 20 SMs, graph", 1, probe.times_of([4]), None)
    assert beside.figures_of([*series, other]) == {
        f"{GROUP}, {DISPATCH}: GEMM slowed, of its time alone": 0.02,  # rank 1
        f"{GROUP}, {DISPATCH}: exposed wait, us": 9.0,  # rank 0: 3 of the GEMM, 6 of the hook
        f"{GROUP}, {DISPATCH}: of it in the hook, us": 6.0,
    }


def test_others_parts_stand_beside_braids():
    series = [part(DISPATCH, beside.WHOLE, 340), part(f"DeepEP {DISPATCH}", beside.WHOLE, 374)]
    assert gpu.ratios_of(series) == {f"{GROUP}, DeepEP {DISPATCH}: whole": 1.1}


# ---- a run ----


def test_parts_samples_and_ranks(ranks):
    def body(comm, other):
        return [(one.case, one.verdict, one.note) for one in check(series_of(comm, other))]

    def check(series):
        for one in series:
            if one.times is not None:
                assert len(one.times.samples_us) == 2
                assert one.times.p50_us > max(one.by_rank_us.values()) - 0.01  # of the slowest
                assert list(one.by_rank) == list(one.by_rank_us) == ["rank 0", "rank 1"]
        return series

    parts = [(f"{call}: {part}", "ok", "") for call in CALLS for part in beside.PARTS]
    for found in raced(ranks, body):
        assert found[: len(parts)] == parts
        blocks = {case: note for case, _, note in found[len(parts) :]}
        assert list(blocks) == [f"{call}: blocks of the send half" for call in CALLS]
        for note in blocks.values():  # no profiler for a GPU here
            assert note.startswith("not seen: ")
            assert note.endswith("; the GPU has 132 multiprocessors")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("low", {f"DeepEP {DISPATCH}: whole", f"DeepEP {COMBINE}: whole"}),
        ("source", {f"DeepEP {DISPATCH}: whole"}),
        ("sums", {f"DeepEP {COMBINE}: whole"}),
    ],
)
def test_wrong_bytes_are_named(ranks, wrong, named):
    def body(comm, other):
        found = {one.case: one for one in series_of(comm, other, 1) if one.wrong_bytes}
        assert all(one.verdict == "wrong data" for one in found.values())
        return set(found)

    assert raced(ranks, body, wrong) == [named] * SIZE


def test_a_call_that_it_refuses(ranks):
    def body(comm, other):
        found = {one.case: one for one in series_of(comm, other, 1)}
        one = found[f"DeepEP {DISPATCH}"]
        return one.verdict, one.note, sorted(case for case in found if DISPATCH in case)

    ours = [f"{DISPATCH}: {part}" for part in (*beside.PARTS, "blocks of the send half")]
    told = ("unsupported", "Assertion error: hook", sorted([f"DeepEP {DISPATCH}", *ours]))
    assert raced(ranks, body, "hooks") == [told] * SIZE


def test_a_hook_that_brings_nothing_shows(ranks):
    """Also where memory has what came before."""

    def rank(comm):
        stand_in()

        class Lazy(beside.HookedDispatch):
            num_hooks = 0

            def send(self):
                c = self._case
                before = self._side.low.low_latency_dispatch(
                    c.x, c.ids, self._side.rows, c.shape.num_experts
                )
                super().send()
                for each, right in zip(self._got[0], before[0], strict=True):
                    each.copy_(right)

            def hook(self):
                kept = [each.clone() for each in self._got[0]]
                super().hook()
                self.num_hooks += 1
                if self.num_hooks == 1:
                    for each, before in zip(self._got[0], kept, strict=True):
                        each.copy_(before)

        beside.HookedDispatch = Lazy
        job, _ = beside.jobs(comm, SHAPE, [TOKENS], ["uniform"], None, "cpu")
        return {one.case for one in job.run(Effort(1, 60, 1), lambda _: None) if one.wrong_bytes}

    assert ranks(SIZE, rank) == [{f"{DISPATCH}: whole"}] * SIZE


LATE_S = 0.2


def test_what_a_hook_waits_for_a_late_rank_is_exposed(ranks):
    """And is none of its own work; rows that it copies are none of the wait."""

    def rank(comm):
        stand_in()

        class Late(beside.HookedDispatch):
            def send(self):
                if comm.rank == 1:
                    time.sleep(LATE_S)
                super().send()

            def hook(self):
                super().hook()
                time.sleep(LATE_S / 4)

        beside.HookedDispatch = Late
        job, _ = beside.jobs(comm, SHAPE, [TOKENS], ["uniform"], None, "cpu")
        series = job.run(Effort(3, 60, 1), lambda _: None)
        by_case = {one.case: one.by_rank_us["rank 0"] for one in series}
        return by_case, beside.figures_of(series)

    for by_case, figures in ranks(SIZE, rank):
        late_us = LATE_S * 1e6
        assert by_case[f"{DISPATCH}: hook"] > 1.2 * late_us
        assert late_us / 4 < by_case[f"{DISPATCH}: hook, met"] < 0.8 * late_us
        assert by_case[f"{DISPATCH}: own work"] < 0.9 * late_us
        for figure in ("exposed wait, us", "of it in the hook, us"):
            assert 0.7 * late_us < figures[f"{GROUP}, {DISPATCH}: {figure}"] < 1.3 * late_us
            assert figures[f"{GROUP}, {COMBINE}: {figure}"] < 0.5 * late_us


def test_the_command(ranks, tmp_path, capfd):
    """Its record and its table, on what stands in for GPUs, without the other cases."""
    path = tmp_path / "moe.json"

    def rank(comm):
        stand_in()
        sys.path.insert(0, str(FIXTURE))
        cuda, join = torch.cuda, contestants.join
        cuda.device_count, cuda.set_device = lambda: SIZE, lambda _: None
        cuda.get_device_name = lambda: "no GPU"
        contestants.join = lambda comm, _: join(comm)
        gpu.jobs = lambda *_: []
        beside.jobs = functools.partial(beside.jobs, device="cpu")
        braid.init = lambda **_: contextlib.nullcontext(comm)
        return bench_moe._on_gpus(
            SHAPE, [TOKENS, 4096], ["uniform"], Output(2, 60, path), "both", True
        )

    assert ranks(SIZE, rank) == [0] * SIZE
    record = probe.load(path)
    assert record.settings == {
        "shape": "small",
        "deep_ep": "normal mode, low latency",
        "beside_gemm": "8 x 16 by 16 x 4, bf16",
    }
    assert len(record.series) == len(CALLS) * (len(beside.PARTS) + 1)
    assert len(record.figures) == 3 * len(CALLS) + 2 * len(beside.PARTS)
    said = " ".join(capfd.readouterr().out.split())
    for words in (
        "GEMM slowed, of its time alone: ",
        "exposed wait, us: ",
        "of it in the hook, us: ",
    ):
        assert said.count(words) == len(CALLS)
    assert said.count("132 multiprocessors") == len(CALLS)


# ---- blocks ----


def test_blocks_are_those_of_kernels(monkeypatch):
    events = [
        {"cat": "kernel", "name": "send", "args": {"grid": [113, 1, 1], "block": [1024, 1, 1]}},
        {"cat": "gpu_memset", "args": {}},
        {"name": "process_name"},
        {"cat": "kernel", "args": {"grid": [2, 3, 4]}},
    ]
    called = []

    class Profile:
        def __init__(self, activities):
            assert activities == [launches.ProfilerActivity.CUDA]

        def __enter__(self):
            called.append("begin")
            return self

        def __exit__(self, *_):
            called.append("end")

        def export_chrome_trace(self, path):
            Path(path).write_text(json.dumps({"traceEvents": events}))

    monkeypatch.setattr(launches, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: called.append("done"))
    assert launches.blocks_of(lambda: called.append("call")) == [113, 24]
    assert called == ["begin", "call", "done", "end"]

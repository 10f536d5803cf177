"""examples/recipes between CPUs: the whole programs, and each part that must find what is wrong."""

import itertools
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from braid.probe import compare
from braid.record.probe import Series, from_json, times_of
from braid.saved import load

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"
sys.path.insert(0, str(RECIPES))
import sheet  # noqa: E402
import steps  # noqa: E402
import tp_llama  # noqa: E402
import train_gpt  # noqa: E402
from bits import Bits  # noqa: E402
from contest import Contest, Contestant, turned  # noqa: E402
from exact import make_deterministic  # noqa: E402
from llama import Cache, Layer, parts_of, random, run_layers  # noqa: E402
from traffic import Call, Replay, Tap, expected, numbers  # noqa: E402

CPU = torch.device("cpu")
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


# ---- the programs ----


def run_on_two(ranks, program, *arguments) -> list[int]:
    """The exit codes of a recipe's ranks."""

    def body() -> int:
        sys.argv = [program.__file__, "--cpu", *arguments]
        return program.main()

    return ranks.collect(ranks.start(2, body))


def cases(record) -> set[str]:
    return {f"{one.group}: {one.case}" for one in record.series}


@pytest.mark.parametrize(("visible", "place"), [(1, 0), (2, 1)])
def test_a_rank_takes_the_only_gpu_that_it_is_shown(monkeypatch, visible, place):
    """Not the one at its place on the node, which a launcher may hide."""
    taken = []

    def begin(_backend):
        raise ConnectionError

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: taken.append(torch.device(one).index))
    monkeypatch.setattr(dist, "init_process_group", begin)
    steps.device_of(Namespace(cpu=False))
    with pytest.raises(ConnectionError):
        Contest(on_cpus=False)
    assert taken == [place, place]


def test_fsdp2_has_gloos_losses_and_times_of_both(ranks, tmp_path):
    path = tmp_path / "fsdp2.json"
    assert run_on_two(ranks, train_gpt, "--json", str(path)) == [0, 0]
    record = from_json(load(path))
    assert (record.kind, record.ranks, record.is_bad) == ("fsdp2-step", 2, False)
    figures = record.figures
    assert figures["largest gap of a loss"] == 0
    assert figures["steps with losses equal to the bit on all ranks"] == figures["steps"] == 11
    assert figures["braid: last loss"] < 0.9 * figures["first loss"]
    curves = [record.settings[f"losses, {name}"].split() for name in ("braid", "gloo")]
    assert curves[0] == curves[1]
    assert len(set(curves[0])) == 11
    # Two layers and the rest: gathered forward, the layers again backward; all reduced once.
    assert figures["collectives of a step"] == 3 + 2 + 3
    steps = [one for one in record.series if one.group == "step"]
    assert [len(one.times.samples_us) for one in steps] == [6, 6]
    assert all(set(one.by_rank_us) == {"rank 0", "rank 1"} for one in record.series)
    assert cases(record) == {
        f"{what}: {who}"
        for what in ("step", "collectives in a step", "collectives alone")
        for who in ("braid", "gloo")
    }
    assert "collectives alone: gloo / braid" in figures
    assert compare.load(path).points.keys()  # braid bench compare reads it


def test_ddp_has_gloos_losses_too(ranks, tmp_path):
    path = tmp_path / "ddp.json"
    words = ("--how", "ddp", "--steps", "2", "--json", str(path))
    assert run_on_two(ranks, train_gpt, *words) == [0, 0]
    record = from_json(load(path))
    assert record.kind == "ddp-step"
    assert record.figures["largest gap of a loss"] == 0
    alone = next(one for one in record.series if one.group == "collectives alone")
    assert alone.bytes == record.figures["parameters"] * 4  # every gradient once, in float32
    assert {one.group for one in record.series} == {"step", "collectives alone"}


def test_tensor_parallel_inference_gives_the_same_bits(ranks, tmp_path):
    path = tmp_path / "tp.json"
    assert run_on_two(ranks, tp_llama, "--json", str(path)) == [0, 0]
    record = from_json(load(path))
    claims = {name: value for name, value in record.figures.items() if "agree" in name}
    assert claims == {
        "a layer cut and whole agree": 1,
        "prefill: both agree": 1,
        "decode: both agree": 1,
    }
    assert record.figures["prefill: braid gives the same bits"] == 1
    assert record.figures["prefill: mlp alone gives the same bits"] == 1
    assert record.figures["decode: attention alone gives the same bits"] == 1
    assert 0 <= record.figures["a layer cut and whole: largest gap"] < 1e-5
    assert "prefill: collectives alone: gloo" in cases(record)
    sizes = {one.group: one.bytes for one in record.series}
    hidden, layers, element_bytes = 64, 2, 4
    assert sizes["prefill: collectives"] == 2 * layers * 16 * hidden * element_bytes
    assert sizes["decode: collectives"] == 2 * layers * 2 * hidden * element_bytes


def test_a_backend_that_is_wrong_is_found(ranks):
    """One element of one gathered parameter, in one rank: losses differ, and the exit code."""

    def body():
        real = dist.all_gather_into_tensor

        def wrong(output_tensor, input_tensor, group=None, async_op=False):
            work = real(output_tensor, input_tensor, group, async_op)
            if dist.get_backend(group) == "braid":
                output_tensor[-1] += 1
            return work

        dist.all_gather_into_tensor = wrong
        sys.argv = ["train_gpt.py", "--cpu", "--steps", "1"]
        return train_gpt.main()

    assert ranks.collect(ranks.start(2, body)) == [1, 1]


@pytest.mark.parametrize(
    ("gap", "last", "limit", "right"),
    [(0.0, 1.0, 0.0, True), (0.01, 1.0, 0.0, False), (0.01, 1.0, 0.02, True), (0.0, 5.0, 1, False)],
)
def test_losses_must_fall_and_agree(gap, last, limit, right):
    figures = {"largest gap of a loss": gap, "first loss": 5.0, "braid: last loss": 1.0}
    assert train_gpt.is_right({**figures, "nccl: last loss": last}, limit) is right


# ---- traffic ----


def test_a_tap_notes_the_collectives_of_fsdp2_and_lets_go(torch_ranks):
    def body():
        model = torch.nn.Linear(6, 4, bias=False)
        fully_shard(model)
        real = dist.all_gather_into_tensor
        with Tap(CPU) as tap:
            model(torch.ones(2, 6)).sum().backward()
        assert dist.all_gather_into_tensor is real
        assert tap.busy_us() > 0
        dist.all_reduce(torch.ones(3))
        return [(call.op, call.sent, call.received, call.nbytes) for call in tap.calls]

    gathered = ("all_gather_into_tensor", 12, 24, 96)
    assert torch_ranks(2, body) == [[gathered, ("reduce_scatter_tensor", 24, 12, 96)]] * 2


def test_a_tap_lets_go_after_an_error():
    real = dist.all_reduce
    with pytest.raises(ZeroDivisionError), Tap(CPU):
        dist.all_reduce(1 // 0)
    with Tap(CPU):
        assert dist.all_reduce is not real
    assert dist.all_reduce is real


class FakeEvent:
    """An event of a GPU whose clock goes on by 2 ms with every event."""

    now_ms = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        FakeEvent.now_ms += 2
        self.at_ms = FakeEvent.now_ms

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_on_a_gpu_a_call_lies_between_two_events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)

    def all_reduce(tensor, op=SUM):
        assert (len(tensor), op) == (4, AVG)
        FakeEvent.now_ms += 5

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with Tap(torch.device("cuda", 0)) as tap:
        for _ in range(3):
            dist.all_reduce(torch.ones(4, dtype=torch.bfloat16), op=AVG)
    assert tap.busy_us() == 3 * 7_000
    assert tap.calls == [Call("all_reduce", 4, 4, torch.bfloat16, AVG)] * 3


CALLS = [
    Call("all_gather_into_tensor", 5, 15, torch.bfloat16),
    Call("all_reduce", 7, 7, torch.bfloat16, SUM),
    Call("reduce_scatter_tensor", 12, 4, torch.float32, AVG),
]


def test_calls_again_are_checked_to_the_byte(torch_ranks):
    """On three ranks, where an average is exact only because the numbers divide by three."""

    def body():
        replay = Replay(CALLS, CPU)
        assert replay.nbytes == 15 * 2 + 7 * 2 + 12 * 4
        right = replay.wrong_bytes(None)
        for _ in range(3):
            replay.run(None)
        real = dist.reduce_scatter_tensor

        def wrong(out, mine, op=SUM, group=None):
            real(out, mine, op=op, group=group)
            out[2] += 1

        dist.reduce_scatter_tensor = wrong
        return right, replay.wrong_bytes(None)

    for right, wrong in torch_ranks(3, body):
        assert right == 0
        assert 1 <= wrong <= 4


def test_what_must_come_out(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    a, b = (numbers(4, torch.float32, rank, CPU) for rank in (0, 1))
    assert a.tolist() == [0, 14, 6, 20]
    assert b.tolist() == [10, 2, 16, 8]
    gathered = Call("all_gather_into_tensor", 4, 8, torch.float32)
    assert expected(gathered, CPU).tolist() == [*a.tolist(), *b.tolist()]
    scattered = Call("reduce_scatter_tensor", 4, 2, torch.float32, AVG)
    assert expected(scattered, CPU).tolist() == [11, 14]
    assert expected(Call("all_reduce", 4, 4, torch.float32, SUM), CPU).tolist() == [10, 16, 22, 28]


# ---- layers ----


@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_a_layer_add_up(size):
    shape = replace(tp_llama.TINY, kv_heads=4, heads=8)
    whole = Layer(shape, 0, 1, CPU, torch.float64, seed=3)
    parts = [Layer(shape, rank, size, CPU, torch.float64, seed=3) for rank in range(size)]
    x = random((2, 5, shape.hidden), 1, CPU, torch.float64)
    summed = sum(part.attention(x, Cache(part, 2, 5), 0) for part in parts)
    assert torch.allclose(summed, whole.attention(x, Cache(whole, 2, 5), 0))
    assert torch.allclose(sum(part.mlp(x) for part in parts), whole.mlp(x))
    assert not torch.allclose(parts[0].mlp(x), whole.mlp(x))


def test_layers_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="does not divide over 3 ranks"):
        Layer(tp_llama.TINY, 0, 3, CPU, torch.float32, seed=0)


def test_a_token_decoded_is_the_prefills_last():
    layers = [Layer(tp_llama.TINY, 0, 1, CPU, torch.float64, seed) for seed in (0, 1)]
    x = random((1, 9, 64), 1, CPU, torch.float64)

    def caches(batch):
        return [Cache(layer, batch, 9) for layer in layers]

    whole = run_layers(layers, caches(1), x, 0, lambda _: None)
    filled, shared = caches(1), caches(3)
    run_layers(layers, filled, x[:, :8], 0, lambda _: None)
    for one, many in zip(filled, shared, strict=True):
        many.take(one)
    last = x[:, 8:].expand(3, 1, 64)
    decoded = run_layers(layers, shared, last, 8, lambda _: None)
    assert torch.allclose(decoded, whole[:, 8:].expand(3, 1, 64))


def test_parts_of_a_pass_leave_the_next_one_as_it_was():
    """They fill the places of the cache that a pass fills again."""
    layers = [Layer(tp_llama.TINY, 0, 1, CPU, torch.float32, seed) for seed in (0, 1)]
    prompt, token = (random((1, n, 64), 1, CPU, torch.float32) for n in (8, 1))
    caches = [Cache(layer, 1, 9) for layer in layers]

    def decoded():
        return run_layers(layers, caches, token, 8, lambda _: None)

    run_layers(layers, caches, prompt, 0, lambda _: None)
    before = decoded()
    parts = {name: part() for name, part in parts_of(layers, caches, token, 8).items()}
    assert {name: len(each) for name, each in parts.items()} == {"attention": 2, "mlp": 2}
    assert torch.equal(decoded(), before)


# ---- bits ----


def test_what_is_compared_is_deterministic(ranks):
    def body():
        make_deterministic()
        contest = Contest(on_cpus=True)
        contest.close()
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            os.environ["CUBLAS_WORKSPACE_CONFIG"],
        )

    assert ranks.collect(ranks.start(1, body)) == [(True, False, True, ":4096:8")]


def test_a_part_that_changes_by_itself_is_named():
    bits, runs = Bits(Told()), itertools.count()
    bits.alone("decode: mlp alone", lambda: ONES.clone())
    assert bits.are_right
    bits.alone("decode: attention alone", lambda: ONES + (next(runs) == 7) * 1e-6)
    bits.alone("nothing", lambda: ONES * 0)
    assert bits.failed == [
        "decode: attention alone gives the same bits",
        "nothing gives the same bits",
    ]


class Told:
    """An contest whose other rank says what the test wants."""

    size = 2
    contestants = (Contestant("braid", None), Contestant("gloo", None))

    def __init__(self, other=None):
        self.other = other

    def told(self, value):
        return [value, value if self.other is None or isinstance(value, bool) else self.other]


ONES = torch.ones(4)


def noted(contest, *results):
    bits = Bits(contest)
    for ours, theirs in results:
        bits.note("x", {"braid": lambda t=ours: t, "gloo": lambda t=theirs: t})
    return bits


def test_equal_bits_are_right():
    assert noted(Told(), (ONES, ONES), (ONES.clone(), ONES.clone())).are_right


@pytest.mark.parametrize(
    ("contest", "results"),
    [
        (Told(), [(ONES, ONES), (ONES + 1e-6, ONES)]),
        (Told("another print"), [(ONES, ONES)]),
        (Told(), [(ONES, ONES + 1e-6)]),
        (Told(), [(ONES * torch.inf, ONES * torch.inf)]),
        (Told(), [(ONES * 0, ONES * 0)]),
    ],
    ids=["another time", "another rank", "the other contestant", "infinite", "nothing computed"],
)
def test_other_bits_are_wrong(contest, results):
    assert not noted(contest, *results).are_right


def test_what_failed_once_stays_failed():
    bits = noted(Told(), (ONES, ONES), (ONES * 2, ONES), (ONES, ONES))
    assert bits.figures["x: braid gives the same bits"] == 0
    assert bits.figures["x: gloo gives the same bits"] == 1


# ---- measuring ----


def test_the_slowest_rank_counts(ranks):
    def body():
        contest = Contest(on_cpus=True)
        own_us = [10.0, 20.0] if contest.rank == 0 else [15.0, 5.0]
        series = contest.series("step", "braid", own_us, nbytes=30_000)
        seen = []
        both = {name: lambda name=name: seen.append(name) for name in ("a", "b")}
        taken = contest.measure("x", both, samples=3, wrong={"b": 7})
        contest.close()
        return series, seen, [(one.case, len(one.times.samples_us), one.verdict) for one in taken]

    for series, seen, taken in ranks.collect(ranks.start(2, body)):
        assert series.times.samples_us == [15, 20]
        assert series.by_rank_us == {"rank 0": 15, "rank 1": 10}
        assert series.gbps == pytest.approx(30_000 / 17.5 / 1e3, rel=1e-3)
        assert seen == ["a", "b", "b", "a", "a", "b", "b", "a"]
        assert taken == [("a", 3, "ok"), ("b", 3, "wrong data")]


def test_turns():
    assert [turned("abc", i)[0] for i in range(4)] == ["a", "b", "c", "a"]


def test_ratios_say_who_is_faster():
    def series(what, case, us):
        return Series(what, case, 0, times_of([us]), None)

    rows = [series("step", "nccl", 30.0), series("step", "braid", 20.0)]
    assert sheet.ratios(rows) == {"step: nccl / braid": 1.5}


def test_a_record_of_a_tree_without_git(ranks, tmp_path):
    def body():
        os.chdir(tmp_path)
        contest = Contest(on_cpus=True)
        made = sheet.record_of("x", contest, [], {}, {"commit": "abc", "json": None, "steps": 3})
        contest.close()
        return made.commit, made.settings

    assert ranks.collect(ranks.start(1, body)) == [("abc", {"steps": "3"})]


def test_sizes_of_a_run_on_cpus_are_small(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", "--cpu"])
    args = train_gpt.arguments()
    assert isinstance(args, Namespace)
    assert (args.layers, args.width, args.steps) == (2, 64, 6)

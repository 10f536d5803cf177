"""Pages from prefillers to decoders: right bytes in right places, and when they are free."""

import random
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from kv_peers import LAYOUT, PAGES, Side, fill, is_right

import braid
from braid import kv

LIMIT_S = 30


@pytest.fixture
def sides():
    """make(role, layout, ...) -> Side; closed at the end, decoders first."""
    made = []

    def make(role, layout=LAYOUT, **settings):
        side = Side(role, layout, f"{role.__name__} {len(made)}", **settings)
        made.append(side)
        return side

    yield make
    for side in sorted(made, key=lambda side: isinstance(side.role, kv.Prefiller)):
        side.close()


def groups(sides, there, here):
    """Prefillers and decoders, all ranks of each, and what each decoder connects to."""
    prefillers = [sides(kv.Prefiller, replace(LAYOUT, tp=there, rank=r)) for r in range(there)]
    decoders = [sides(kv.Decoder, replace(LAYOUT, tp=here, rank=r)) for r in range(here)]
    addresses = [side.engine.address for side in prefillers]
    return prefillers, decoders, [d.role.connect(addresses, LIMIT_S) for d in decoders]


@pytest.mark.parametrize(("there", "here"), [(1, 1), (2, 1), (1, 2), (2, 4), (8, 2), (4, 8)])
@pytest.mark.parametrize("is_push", [True, False])
def test_ranks_of_any_degrees_exchange_heads(sides, there, here, is_push):
    prefillers, decoders, prefills = groups(sides, there, here)
    rng = random.Random(there * 10 + here)
    theirs, ours = (rng.sample(range(PAGES), 5) for _ in range(2))
    for side in prefillers:
        for page in theirs:
            fill(side.layers, side.layout, page)
    tokens = 5 * LAYOUT.page_tokens - 3
    handovers = [s.role.begin("r", theirs, tokens, is_computed=True) for s in prefillers]
    loads = [
        d.role.want("r", p, ours, tokens) if is_push else d.role.pull("r", p, theirs, ours)
        for d, p in zip(decoders, prefills, strict=True)
    ]
    for ending in (*loads, *handovers):
        ending.wait(LIMIT_S)
    for side in decoders:
        for page, source in zip(ours, theirs, strict=True):
            assert is_right(side.layers, side.layout, page, source)
        untouched = sorted(set(range(PAGES)) - set(ours))
        assert not any(layer[untouched].any() for layer in side.layers)


@pytest.mark.parametrize("way", ["local", "tcp"])
def test_chunks_go_layer_by_layer(sides, way):
    """After each bump of the word exactly that layer's full pages are on their way."""
    prefill = sides(kv.Prefiller, way=way)
    decode = sides(kv.Decoder, way=way)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    theirs, ours, tokens = [5, 9, 2, 7], [1, 0, 3, 2], 29
    handover = prefill.role.begin("r", theirs[:2], tokens)
    load = decode.role.want("r", there, ours, tokens)
    for page in theirs:
        fill(prefill.layers, LAYOUT, page)
    landed = 0
    for end, full in ((13, 1), (21, 2), (29, 4)):
        if end == 21:
            prefill.role.grow("r", theirs[2:])
        prefill.role.declare([kv.Part("r", end)])
        for layer in range(LAYOUT.layers):
            assert not load.done()
            prefill.role.layer_done()
            landed += full - (0, 1, 2)[(13, 21, 29).index(end)]
            until = time.monotonic() + LIMIT_S
            while prefill.role.counters["pages"] < landed and time.monotonic() < until:
                time.sleep(0.001)
            assert prefill.role.counters["pages"] == landed
            del layer
    load.wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert all(is_right(decode.layers, LAYOUT, o, t) for o, t in zip(ours, theirs, strict=True))
    assert set(load.times) >= {"queued", "last page", "ended"}
    assert "first page" in handover.timeline()


def test_values_that_the_watcher_passes_over_are_made_up_for(sides):
    prefill, decode = sides(kv.Prefiller), sides(kv.Decoder)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    loads = []
    for number in range(3):
        fill(prefill.layers, LAYOUT, number)
        prefill.role.begin(str(number), [number], 8)
        loads.append(decode.role.want(str(number), there, [40 + number], 8))
    prefill.role.declare([kv.Part("0", 8), kv.Part("2", 4)])
    prefill.role.declare([kv.Part("1", 8), kv.Part("2", 8)])
    prefill.role.layer_done(5)
    loads[0].wait(LIMIT_S)
    assert not loads[1].done()
    prefill.role.layer_done()
    for number, load in enumerate(loads):
        load.wait(LIMIT_S)
        assert is_right(decode.layers, LAYOUT, 40 + number, number)


def test_pages_that_the_decoder_has_already_do_not_move(sides):
    prefill, decode = sides(kv.Prefiller), sides(kv.Decoder)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    for page in range(3):
        fill(prefill.layers, LAYOUT, page)
    handover = prefill.role.begin("r", [0, 1, 2], 20, is_computed=True)
    decode.role.want("r", there, [7], 20, first_page=2).wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 7, 2)
    handover.wait(LIMIT_S)
    assert prefill.role.counters["pages"] == LAYOUT.layers
    begun = prefill.role.begin("all here", [3], 8, is_computed=True)
    decode.role.want("all here", there, [], 8, first_page=1).wait(LIMIT_S)
    begun.wait(LIMIT_S)


def test_pages_may_be_read_before_the_prefiller_has_said_that_it_holds_them(sides):
    """A router is told of the pages by the scheduler, the prefiller's rank a step later."""
    prefill, decode = sides(kv.Prefiller), sides(kv.Decoder)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    fill(prefill.layers, LAYOUT, 3)
    load = decode.role.pull("r", there, [3], [9])
    time.sleep(0.3)
    assert not load.done()
    handover = prefill.role.begin("r", [3], 8, is_computed=True)
    load.wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 9, 3)


def test_the_tail_comes_behind_all_pages(sides):
    layout = replace(LAYOUT, tail_bytes=6)
    prefill, decode = sides(kv.Prefiller, layout), sides(kv.Decoder, layout)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    handover = prefill.role.begin("r", [4], 5, is_computed=True)
    load = decode.role.want("r", there, [6], 5)
    time.sleep(0.1)
    assert not load.done()
    with pytest.raises(braid.InvalidArgument, match="tail: asked for 6 bytes, found 5"):
        prefill.role.tail("r", b"short")
    prefill.role.tail("r", b"logits")
    load.wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert load.tail == b"logits"


def test_a_stage_of_layers_gets_what_it_holds(sides):
    stages = [(0, 1), (1, 2)]
    prefillers = [
        sides(kv.Prefiller, replace(LAYOUT, first_layer=first, layers_here=count))
        for first, count in stages
    ]
    decode = sides(kv.Decoder)
    there = decode.role.connect([side.engine.address for side in prefillers], LIMIT_S)
    for side in prefillers:
        fill(side.layers, side.layout, 3)
        side.role.begin("r", [3], 8, is_computed=True)
    decode.role.want("r", there, [9], 8).wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 9, 3)


def test_a_hundred_requests_from_many_threads(sides):
    prefill, decode = sides(kv.Prefiller), sides(kv.Decoder)
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    for page in range(PAGES):
        fill(prefill.layers, LAYOUT, page)
    wrong = []

    def one(thread):
        pages = range(thread * 8, thread * 8 + 8)
        for number in range(13):
            name = f"{thread}.{number}"
            count = 1 + number % 4
            rng = random.Random(name)
            theirs, ours = rng.sample(pages, count), rng.sample(pages, count)
            order = [
                partial(prefill.role.begin, name, theirs, count * 8, is_computed=True),
                partial(decode.role.want, name, there, ours, count * 8),
            ]
            for ending in [call() for call in (order if number % 2 else order[::-1])]:
                ending.wait(LIMIT_S)
            wrong.extend(
                name
                for o, t in zip(ours, theirs, strict=True)
                if not is_right(decode.layers, LAYOUT, o, t)
            )

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert wrong == []
    assert prefill.role.counters["done"] == decode.role.counters["done"] == 104
    assert 'braid_kv_done_total{engine="Prefiller 0"} 104' in prefill.role.counters.prometheus()


def test_pages_may_lie_apart(sides):
    """A cache of all layers in one memory, page by page: every layer's pages have a stride."""
    engine = braid.Engine("apart", nics="none", token="a token of tests", hosts="127.0.0.1")
    memory = np.zeros((PAGES, LAYOUT.layers, 4, 8, 16), np.uint8)
    layers = [memory[:, layer] for layer in range(LAYOUT.layers)]
    prefill = sides(kv.Prefiller)
    fill(prefill.layers, LAYOUT, 11)
    with engine, kv.PagedCache(engine, layers, LAYOUT) as cache, kv.Decoder(engine, cache) as role:
        there = role.connect([prefill.engine.address], LIMIT_S)
        prefill.role.begin("r", [11], 8, is_computed=True)
        role.want("r", there, [2], 8).wait(LIMIT_S)
        assert is_right(layers, LAYOUT, 2, 11)
        assert not memory[np.setdiff1d(np.arange(PAGES), 2)].any()


def test_tensors_are_as_good_as_arrays():
    torch = pytest.importorskip("torch")
    memory = torch.zeros((LAYOUT.layers, 4, 4, 8, 4), dtype=torch.float32)
    with braid.Engine("t", nics="none") as engine:
        with kv.PagedCache(engine, list(memory), LAYOUT) as cache:
            assert cache.pages == 4
            assert cache.places[0].stride == LAYOUT.page_bytes
        wrong = memory.transpose(2, 3)
        with pytest.raises(braid.InvalidArgument, match=r"layer 0: asked for \[pages, 4, 8, 16"):
            kv.PagedCache(engine, list(wrong), LAYOUT)
        tokens_first = torch.zeros((4, 8, 4, 4)).transpose(1, 2)
        with pytest.raises(braid.InvalidArgument, match="heads before tokens"):
            kv.PagedCache(engine, [tokens_first] * LAYOUT.layers, LAYOUT)

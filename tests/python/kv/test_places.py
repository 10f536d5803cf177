"""Layers go in one call, wherever they lie, each page to where it belongs."""

import random

import numpy as np
import pytest
from kv_peers import LAYOUT, PAGES, Side, fill, is_right

import braid
from braid import kv
from braid.kv.cache import LayerMemory, blocks_of
from braid.kv.places import MOST_PAGES, MOST_PLANES, Place, moves, places_from, regions_of

LIMIT_S = 30
IDS = np.array([5, 0, 3], np.uint64)


def expected(places, layers, ids):
    return [places[n].offset + int(k) * places[n].stride for n in layers for k in ids]


BEHIND = [Place(0, n * 10 * 64, 64) for n in range(4)]
BY_PAGE = [Place(0, n * 64, 4 * 64) for n in range(4)]
APART = [Place(n, 0, 64) for n in range(4)]
ODD = [Place(0, n * 1000, 64) for n in range(4)]


OTHER = [Place(0, n * 10 * 80, 80) for n in range(4)]


@pytest.mark.parametrize(
    ("ours", "theirs", "calls"),
    [
        (BEHIND, BEHIND, 1),
        (BEHIND, BY_PAGE, 1),
        (BY_PAGE, BEHIND, 1),
        (BEHIND, APART, 1),
        (APART, BY_PAGE, 1),
        (APART, APART, 1),
        (BEHIND, ODD, 1),
        (BEHIND, list(reversed(BEHIND)), 1),
        (BEHIND, [*BEHIND[:2], *APART[2:]], 1),
        (BEHIND, [*BEHIND[:2], *OTHER[2:]], 2),  # a call has one stride on each side
        ([*APART[:1], *OTHER[1:]], [*BEHIND[:3], *OTHER[3:]], 3),
    ],
)
def test_every_page_of_every_layer_is_moved_once(ours, theirs, calls):
    pairs = list(zip(ours, theirs, strict=True))
    found = list(moves(pairs, IDS, IDS[::-1].copy()))
    assert len(found) == calls
    assert [n for move in found for n in move.layers] == list(range(len(pairs)))
    assert sum(move.pages for move in found) == len(pairs) * IDS.size
    for move in found:
        for side, places, ids in ((move.ours, ours, IDS), (move.theirs, theirs, IDS[::-1])):
            begins = [int(o) + int(n) * side.stride for o in side.offsets for n in side.ids]
            assert begins == expected(places, move.layers, ids)
            named = regions_of(side, "0123")
            regions = [str(places[n].region) for n in move.layers]
            assert named == regions or regions == [named] * len(regions)


def test_a_call_takes_only_so_many_pages():
    many = np.arange(MOST_PAGES // 2, dtype=np.uint64)
    places = [Place(0, n * MOST_PAGES * 8, 8) for n in range(5)]
    found = list(moves(list(zip(places, places, strict=True)), many, many))
    assert [len(move.layers) for move in found] == [1, 2, 2]
    assert max(move.pages for move in found) <= MOST_PAGES


def test_a_call_takes_only_so_many_planes():
    places = [Place(n, 0, 8) for n in range(2 * MOST_PLANES + 1)]
    found = list(moves(list(zip(places, places, strict=True)), IDS, IDS))
    assert [len(move.layers) for move in found] == [MOST_PLANES, MOST_PLANES, 1]


def test_the_first_call_may_be_shorter(monkeypatch):
    monkeypatch.setattr("braid.kv.places.FIRST_PAGES", 2 * IDS.size + 1)
    places = [Place(0, n * 64 * 8, 8) for n in range(7)]
    found = list(moves(list(zip(places, places, strict=True)), IDS, IDS))
    assert [move.layers for move in found] == [range(2), range(2, 7)]


def memory(*begins, stride=64, pages=10, device=None):
    return [LayerMemory(begin, pages, stride, device) for begin in begins]


@pytest.mark.parametrize(
    ("layers", "blocks"),
    [
        (memory(0, 640, 1280), [range(3)]),
        (memory(0, 640, 1281), [range(2), range(2, 3)]),
        (memory(0, 64, 128, stride=192), [range(3)]),
        (memory(0, 64, stride=192), [range(1), range(1, 2)]),  # another one's pages lie between
        (memory(0, 64, 128, 5000, stride=192), [range(3), range(3, 4)]),
        (memory(0, 800, stride=80), [range(1), range(1, 2)]),  # what pads pages is not ours
        (memory(0, stride=32, pages=1), [range(1)]),
        (memory(640, 0), [range(1), range(1, 2)]),
        (memory(0) + memory(640, device=0), [range(1), range(1, 2)]),
        (memory(0) + memory(640, pages=9), [range(1), range(1, 2)]),
    ],
)
def test_what_lies_together(layers, blocks):
    assert blocks_of(layers, 64) == blocks


@pytest.mark.parametrize(
    "found", [None, [], [[0, 0, 64]], [[0, 0, 64], [0, 0]], [[0, 0, 64], [1, 0, 64]],
              [[0, 0, 64], [0, -1, 64]], [[0, 0, 64], [0, 0, "64"]], [[0, 0, 64], 5]]
)  # fmt: skip
def test_places_of_a_peer_that_are_none(found):
    with pytest.raises(braid.InvalidArgument, match=r"kv: |asked for"):
        places_from(found, 2, 1)


def cut(shape_first):
    """Layers of one array, the axis of layers first or second; or of one each, with room behind."""
    page = (LAYOUT.heads, LAYOUT.page_tokens, LAYOUT.token_bytes)
    if shape_first == "apart":
        return [np.zeros((PAGES + n, *page), np.uint8)[:PAGES] for n in range(LAYOUT.layers)]
    if shape_first == "layers":
        return list(np.zeros((LAYOUT.layers, PAGES, *page), np.uint8))
    whole = np.zeros((PAGES, LAYOUT.layers, *page), np.uint8)
    return [whole[:, layer] for layer in range(LAYOUT.layers)]


@pytest.fixture
def cut_sides(monkeypatch):
    """make(role, which axis): its layers are of one array."""
    made = []

    def make(role, axis):
        monkeypatch.setattr("kv_peers.memory", lambda *_: cut(axis))
        made.append(Side(role, LAYOUT, role.__name__))
        return made[-1]

    yield make
    for side in reversed(made):
        side.close()


@pytest.mark.parametrize("is_push", [True, False])
@pytest.mark.parametrize("there", ["layers", "pages", "apart"])
@pytest.mark.parametrize("here", ["layers", "pages", "apart"])
def test_all_layers_of_a_request_are_one_transfer(cut_sides, there, here, is_push):
    prefill, decode = cut_sides(kv.Prefiller, there), cut_sides(kv.Decoder, here)
    for side, axis in ((prefill, there), (decode, here)):
        assert len(side.cache.regions) == (LAYOUT.layers if axis == "apart" else 1)
    prefill_from = decode.role.connect([prefill.engine.address], LIMIT_S)
    theirs, ours = (random.Random(seed).sample(range(PAGES), 20) for seed in (1, 2))
    for page in theirs:
        fill(prefill.layers, LAYOUT, page)
    mover = prefill.engine if is_push else decode.engine
    begun = []
    whole = mover.write_pages if is_push else mover.read_pages
    name = "write_pages" if is_push else "read_pages"
    offsets = ("src_offset", "dst_offset")

    def note(*given, **named):
        begun.append((len(given[3]), *(len(named[each]) for each in offsets)))
        return whole(*given, **named)

    setattr(mover, name, note)
    tokens = 20 * LAYOUT.page_tokens
    handover = prefill.role.begin("r", theirs, tokens, is_computed=True)
    if is_push:
        load = decode.role.want("r", prefill_from, ours, tokens)
    else:
        load = decode.role.pull("r", prefill_from, theirs, ours)
    load.wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert begun == [(20, LAYOUT.layers, LAYOUT.layers)]
    for page, source in zip(ours, theirs, strict=True):
        assert is_right(decode.layers, LAYOUT, page, source)
    rest = np.setdiff1d(np.arange(PAGES), ours)
    assert not any(layer[rest].any() for layer in decode.layers)


@pytest.mark.parametrize("page", [PAGES, 2 * PAGES - 1, 10**6])
def test_a_page_that_there_is_not_is_no_page_of_the_next_layer(cut_sides, page):
    prefill, decode = cut_sides(kv.Prefiller, "layers"), cut_sides(kv.Decoder, "layers")
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    prefill.role.begin("r", [0], 8, is_computed=True)
    for layer in prefill.layers:
        layer[...] = 7
    load = decode.role.pull("r", there, [page], [3])
    with pytest.raises(braid.InvalidArgument, match=f"page {page}: the cache has {PAGES} pages"):
        load.wait(LIMIT_S)
    assert not any(layer.any() for layer in decode.layers)


def test_one_that_is_told_of_pages_that_it_has_not(cut_sides):
    """As a decoder that lies would say: nothing is written."""
    prefill, decode = cut_sides(kv.Prefiller, "layers"), cut_sides(kv.Decoder, "layers")
    there = decode.role.connect([prefill.engine.address], LIMIT_S)
    prefill.role.begin("r", [0], 8, is_computed=True)
    decode.cache.ids = lambda pages, _: np.asarray(pages, np.uint64)
    with pytest.raises(braid.Cancelled, match=f"page {PAGES}: the cache has {PAGES} pages"):
        decode.role.want("r", there, [PAGES], 8).wait(LIMIT_S)
    assert not any(layer.any() for layer in decode.layers)


def test_pages_that_overlap_are_named():
    page = LAYOUT.page_bytes
    layers = [LayerMemory(0, 4, page // 2)] * LAYOUT.layers
    with (
        braid.Engine("e", nics="none") as engine,
        pytest.raises(
            braid.InvalidArgument, match=f"layer 0: pages of {page} bytes {page // 2} bytes apart"
        ),
    ):
        kv.PagedCache(engine, layers, LAYOUT)


def test_layers_of_the_host_and_of_a_gpu_are_no_cache():
    layers = [LayerMemory(4096 * n, 4, LAYOUT.page_bytes) for n in range(LAYOUT.layers)]
    layers[1] = LayerMemory(4096, 4, LAYOUT.page_bytes, 0)
    with (
        braid.Engine("e", nics="none") as engine,
        pytest.raises(
            braid.InvalidArgument, match="layer 1 is memory of GPU 0, layer 0 of the host"
        ),
    ):
        kv.PagedCache(engine, layers, LAYOUT)


def test_neighbours_that_no_one_region_can_hold(monkeypatch):
    """Two allocations of a GPU may be neighbours."""
    layers = cut("layers")
    with braid.Engine("e", nics="none") as engine:
        whole = engine.register

        def of_one_allocation(memory):
            if memory[1] > layers[0].nbytes:
                raise braid.InvalidArgument("reaches over the end of its allocation")
            return whole(memory)

        monkeypatch.setattr(engine, "register", of_one_allocation)
        with kv.PagedCache(engine, layers, LAYOUT) as cache:
            assert [place.region for place in cache.places] == list(range(LAYOUT.layers))
            assert len(cache.regions) == LAYOUT.layers

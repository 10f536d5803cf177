"""Peers that die and stop: an error in time, no wrong page, none used again too early."""

import random
import re
import time

import numpy as np
import pytest
from kv_peers import LAYOUT, PAGES, Process, Side, fill, is_right

import braid
from braid import kv
from braid.kv.flying import LONGEST_S

LIMIT_S = 60
SILENCE_S = 1.5


@pytest.fixture(params=["local", "tcp"])
def way(request):
    return request.param


@pytest.fixture
def decode(way):
    with Side(
        kv.Decoder, LAYOUT, "decode", way, silence=SILENCE_S, beat=0.2, engine_lease=SILENCE_S
    ) as side:
        yield side


@pytest.mark.parametrize("way", ["tcp"], indirect=True)
def test_a_killed_prefiller_ends_its_loads_and_its_heir_serves(decode, way):
    with Process(way=way, engine_lease=SILENCE_S, lease=3) as prefill:
        there = decode.role.connect([prefill.address], LIMIT_S)
        prefill("begin", "well", [1], 8)
        decode.role.want("well", there, [2], 8).wait(LIMIT_S)
        load = decode.role.want("never", there, [3], 8)
        pulled = decode.role.want("also", there, [4], 8)
        prefill.kill()
        for ending in (load, pulled):
            with pytest.raises((braid.PeerLost, braid.Cancelled), match=r"said nothing|is lost"):
                ending.wait(LIMIT_S)
        with pytest.raises(braid.PeerLost):
            decode.role.want("later", there, [5], 8).wait(LIMIT_S)
    with Process(way=way) as heir:
        there = decode.role.connect([heir.address], LIMIT_S)
        heir("begin", "well", [1], 8, 5)
        decode.role.want("well", there, [3], 8).wait(LIMIT_S)
        assert is_right(decode.layers, LAYOUT, 3, 1, salt=5)


@pytest.mark.parametrize("way", ["local"], indirect=True)
def test_a_killed_prefiller_ends_what_is_read_from_it(decode, way):
    """Nothing was ever written from there: the read fails first, the silence is noticed later."""
    with Process(way=way, engine_lease=SILENCE_S, lease=3) as prefill:
        there = decode.role.connect([prefill.address], LIMIT_S)
        prefill("begin", "well", [1], 8)
        decode.role.pull("well", there, [1], [2]).wait(LIMIT_S)
        prefill.kill()
        pulled = decode.role.pull("never", there, [1], [4])
        with pytest.raises((braid.PeerLost, braid.Cancelled)):
            pulled.wait(LIMIT_S)


def test_a_stopped_prefiller_writes_nothing_when_it_goes_on(decode, way):
    with Process(way=way, engine_lease=SILENCE_S, lease=3) as prefill:
        there = decode.role.connect([prefill.address], LIMIT_S)
        prefill("begin", "first", [1], 8)
        decode.role.want("first", there, [2], 8).wait(LIMIT_S)
        pages = list(range(8, 40))
        load = decode.role.want("r", there, pages, 8 * len(pages))
        prefill.begin("begin_slowly", "r", list(range(32)), 8 * len(pages), 0, 0.01)
        time.sleep(0.015)
        prefill.stop()
        try:
            load.wait(LIMIT_S)
            assert all(is_right(decode.layers, LAYOUT, 8 + n, n) for n in range(32))
        except (braid.PeerLost, braid.Cancelled):
            for layer in decode.layers:
                layer[pages] = 0x11  # they are somebody else's now
        held = [layer[pages].copy() for layer in decode.layers]
        prefill.resume()
        assert prefill.answer() is None
        prefill("ended", "r")
        time.sleep(0.2)
        for layer, before in zip(decode.layers, held, strict=True):
            assert np.array_equal(layer[pages], before)


@pytest.mark.parametrize(("way", "is_kill"), [("tcp", True), ("local", False)], indirect=["way"])
def test_a_lost_decoder_frees_the_prefillers_pages(way, is_kill):
    with Side(kv.Prefiller, LAYOUT, "p", way, silence=SILENCE_S, engine_lease=SILENCE_S) as prefill:
        handover = prefill.role.begin("r", [0], 8)
        settings = {"prefiller": prefill.engine.address, "engine_lease": SILENCE_S}
        with Process(way=way, silence=SILENCE_S, **settings) as decode:
            decode.begin("want", "r", [3], 8)
            until = time.monotonic() + LIMIT_S
            while "wanted" not in handover.times and time.monotonic() < until:
                time.sleep(0.002)
            decode.kill() if is_kill else decode.stop()
            with pytest.raises(braid.PeerLost, match=r"'decode' (has said nothing|is lost)"):
                handover.wait(LIMIT_S)
            if not is_kill:  # it wakes up, and is told in time that nothing will come
                decode.resume()
                assert re.search("said nothing|is lost", decode.answer())
        with Process(way=way, prefiller=prefill.engine.address) as heir:
            again = prefill.role.begin("again", [0], 8, is_computed=True)
            assert heir("want", "again", [1], 8) == "well"
            again.wait(LIMIT_S)


def kill_or_stop_once(decode, way, seed):
    """One prefiller that is killed or stopped when a random number of pages has landed.

    How many loads went well; every one that did is right, every one that did not ended in time, and
    its pages do not change afterwards.
    """
    rng = random.Random(seed)
    with Process(way=way, engine_lease=SILENCE_S, lease=3) as prefill:
        there = decode.role.connect([prefill.address], LIMIT_S)
        loads, shuffled = [], rng.sample(range(PAGES), PAGES)
        for number in range(6):
            theirs = shuffled[number * 8 : number * 8 + 8]
            ours = list(range(number * 8, number * 8 + 8))
            loads.append((decode.role.want(str(number), there, ours, 64), ours, theirs))
        for number, (_, _, theirs) in enumerate(loads):
            prefill.begin("begin_slowly", str(number), theirs, 64, seed * 100 + number, 0.003)
        pages, until = rng.randrange(6 * 8 * LAYOUT.layers), time.monotonic() + 5
        while decode.engine.stats()["counts_arrived"] < pages and time.monotonic() < until:
            time.sleep(0.0005)
        is_kill = rng.random() < 0.5
        prefill.kill() if is_kill else prefill.stop()
        good = 0
        for number, (load, ours, theirs) in enumerate(loads):
            try:
                load.wait(LIMIT_S)
                good += 1
                for o, t in zip(ours, theirs, strict=True):
                    assert is_right(decode.layers, LAYOUT, o, t, salt=seed * 100 + number)
            except (braid.PeerLost, braid.Cancelled):
                for layer in decode.layers:
                    layer[ours] = 0x22
        held = [layer.copy() for layer in decode.layers]
        if not is_kill:
            prefill.resume()
            for _ in loads:
                prefill.answer()
            time.sleep(0.1)
        for layer, before in zip(decode.layers, held, strict=True):
            assert np.array_equal(layer, before)
        return good


@pytest.mark.parametrize("seed", [1])
def test_killed_or_stopped_at_a_random_moment(decode, way, seed):
    kill_or_stop_once(decode, way, seed)


def kill_or_stop_a_decoder_once(prefill, way, seed):
    """One decoder that is killed or stopped while six requests go to it, half of them pulled.

    How many went well by the prefiller. Each ends in time; its pages are somebody else's at once,
    and a decoder that wakes up says of none of them that it came well unless it is right.
    """
    rng = random.Random(seed)
    prefiller, salts = prefill.role, [seed * 100 + number for number in range(6)]
    shuffled = rng.sample(range(PAGES), PAGES)
    orders = [
        (str(salts[n]), shuffled[n * 8 : n * 8 + 8], list(range(n * 8, n * 8 + 8)), n % 2 == 1)
        for n in range(6)
    ]
    settings = {"prefiller": prefill.engine.address, "engine_lease": SILENCE_S}
    with Process(way=way, silence=SILENCE_S, beat=0.2, **settings) as decode:
        handovers = []
        for (request, theirs, ours, is_pull), salt in zip(orders, salts, strict=True):
            for page in theirs:
                fill(prefill.layers, LAYOUT, page, salt)
            tokens = 8 * len(ours)
            handovers.append(prefiller.begin(request, theirs, tokens, is_computed=is_pull))
            if not is_pull:
                prefiller.declare([kv.Part(request, tokens)])
        decode("fetch", orders)
        layers = rng.randrange(3 * LAYOUT.layers + 1)
        for _ in range(layers):
            time.sleep(0.003)
            prefiller.layer_done()
        is_kill = rng.random() < 0.5
        decode.kill() if is_kill else decode.stop()
        for _ in range(3 * LAYOUT.layers - layers):
            prefiller.layer_done()
        good = 0
        for handover, (_, theirs, _, _) in zip(handovers, orders, strict=True):
            try:
                handover.wait(LIMIT_S)
                good += 1
            except (braid.PeerLost, braid.Cancelled, braid.Timeout):
                assert handover.done(), "it does not end"
            for layer in prefill.layers:
                layer[theirs] = 0x33  # they are somebody else's now
        if not is_kill:
            decode.resume()
            assert not [e for e in decode("fetched_ended", salts) if "pages are wrong" in e]
        return good


@pytest.mark.parametrize("seed", [2, 3])
def test_a_decoder_is_killed_or_stopped_at_a_random_moment(way, seed):
    with Side(
        kv.Prefiller, LAYOUT, "p", way, silence=SILENCE_S, engine_lease=SILENCE_S, lease=3
    ) as prefill:
        kill_or_stop_a_decoder_once(prefill, way, seed)


def test_more_loads_than_the_engine_takes_transfers_all_come(way):
    """Reads wait for room as writes do: they are no fault of the load's."""
    most = {"most_transfers": 16}
    with (
        Side(kv.Prefiller, LAYOUT, "p", way, **most) as p,
        Side(kv.Decoder, LAYOUT, "d", way, **most) as d,
    ):
        there = d.role.connect([p.engine.address], LIMIT_S)
        for ask in (d.role.pull, d.role.want):
            names = [f"{ask.__name__} {i}" for i in range(PAGES)]
            for page in range(PAGES):
                fill(p.layers, LAYOUT, page, salt=page)
            handovers = [p.role.begin(n, [i], 8, is_computed=True) for i, n in enumerate(names)]
            where = (([i], [i]) if ask == d.role.pull else ([i], 8) for i in range(PAGES))
            loads = [
                ask(name, there, *pages, timeout=LIMIT_S)
                for name, pages in zip(names, where, strict=True)
            ]
            for ending in (*loads, *handovers):
                ending.wait(LIMIT_S)
            assert all(is_right(d.layers, LAYOUT, page, page, page) for page in range(PAGES))


def test_pages_have_no_deadline_but_the_loads(way, monkeypatch):
    """An engine's own, 30 s, would end healthy requests behind a long queue."""
    given = []
    for call in ("write_pages", "read_pages"):
        plain = getattr(braid.Engine, call)

        def noted(*args, _plain=plain, **settings):
            given.append(settings.get("timeout"))
            return _plain(*args, **settings)

        monkeypatch.setattr(braid.Engine, call, noted)
    with Side(kv.Prefiller, LAYOUT, "p", way) as p, Side(kv.Decoder, LAYOUT, "d", way) as d:
        there = d.role.connect([p.engine.address], LIMIT_S)
        for request in ("pushed", "pulled"):
            p.role.begin(request, [1], 8, is_computed=True)
        d.role.want("pushed", there, [2], 8).wait(LIMIT_S)
        d.role.pull("pulled", there, [1], [3]).wait(LIMIT_S)
    assert given
    assert set(given) == {LONGEST_S}

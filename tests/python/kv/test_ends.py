"""Loads and handovers end whatever fails around them, and of peers that went nothing is kept."""

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import engine_peers
import pytest
from kv_peers import LAYOUT, LIMIT_S, Process, Side, fill, memory, until

import braid
from braid import kv, letters
from braid.engine.region import Region
from braid.kv.door import Door, ask
from braid.kv.flying import Flying

TAILED = replace(LAYOUT, tail_bytes=8)


@contextmanager
def ends(layout=LAYOUT, **decoder):
    """A prefiller and a decoder that have met."""
    with Side(kv.Prefiller, layout, "p") as p, Side(kv.Decoder, layout, "d", **decoder) as d:
        yield p, d, d.role.connect([p.engine.address], LIMIT_S)


def refuse(monkeypatch, engine, kind, times=1):
    """The engine has too much under way, just when letters of a kind are to leave."""
    real, left = engine.send, [times]

    def send(peer, data, **more):
        if f'"kind":"{kind}"'.encode() in data and left[0]:
            left[0] -= 1
            raise braid.Exhausted("send: as many are under way as may be")
        return real(peer, data, **more)

    monkeypatch.setattr(engine, "send", send)
    return left


# --- what cannot be begun ---


def test_letters_that_find_no_room_wait_and_no_load_is_lost(monkeypatch):
    with braid.Engine(**engine_peers.options("local", "p")) as engine:
        cache = kv.PagedCache(engine, memory(LAYOUT), LAYOUT)
        with Side(kv.Decoder, LAYOUT, "d") as d:
            refused = [refuse(monkeypatch, d.engine, kind) for kind in ("hello", "offer", "want")]
            there = d.role.connect([engine.address])
            loads = [d.role.want(f"r{n}", there, [n], 8) for n in range(3)]
            refused += [refuse(monkeypatch, d.engine, kind, 3) for kind in ("took", "cancel")]
            with kv.Prefiller(engine, cache) as prefiller:
                for n in range(4):
                    prefiller.begin(f"r{n}", [n], 8, is_computed=True)
                for load in [*loads, d.role.pull("r3", there, [3], [3])]:
                    load.wait(LIMIT_S)
                taken_back = d.role.want("never", there, [5], 8)
                taken_back.cancel()
                with pytest.raises(braid.Cancelled):
                    taken_back.wait(LIMIT_S)
                assert refused == [[0]] * 5
                assert not d.role._outbox
        cache.close()


@pytest.mark.parametrize("kind", ["welcome", "cancelled", "failed", "held"])
def test_an_answer_that_finds_no_room_waits(monkeypatch, kind):
    with Side(kv.Prefiller, LAYOUT, "p") as p, Side(kv.Decoder, LAYOUT, "d") as d:
        refused = refuse(monkeypatch, p.engine, kind, 3)
        there = d.role.connect([p.engine.address], LIMIT_S)
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.pull("r", there, [1], [1]).wait(LIMIT_S)
        late = d.role.pull("r", there, [1], [1])  # it is over
        never = d.role.want("never", there, [2], 8)
        never.cancel()
        for load in (late, never):
            with pytest.raises(braid.Error):
                load.wait(LIMIT_S)
            assert not isinstance(load.error(), braid.Exhausted)
        assert refused == [0]


def test_a_letter_whose_begin_has_left_is_no_end_of_it(monkeypatch):
    """The engine has room for one frame of it, and then for none."""
    with ends() as (p, d, there):
        real, sent = d.engine.send, []

        def send(peer, data, **more):
            sent.append(data)
            if len(sent) in (2, 3, 4):
                raise braid.Exhausted("send: as many are under way as may be")
            return real(peer, data, **more)

        monkeypatch.setattr(d.engine, "send", send)
        d.role._send(p.engine.address, {"kind": "beat", "requests": []}, bytes(100_000))
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("r", there, [1], 8).wait(LIMIT_S)
        assert p.role.counters["refused"] == 0


def test_what_fails_before_anybody_knows_of_the_pages_moves_nothing(monkeypatch):
    with ends(TAILED) as (p, d, there):
        fill(p.layers, TAILED, 7)
        handover = p.role.begin("r", [7], 8, is_computed=True)
        p.role.tail("r", bytes(8))
        with monkeypatch.context() as patch:

            def expect(*_, **__):
                raise braid.InvalidArgument("it is expected already")

            patch.setattr(d.engine, "expect", expect)
            load = d.role.want("r", there, [20], 8)
            until(lambda: load.failure is not None)
        with pytest.raises(braid.InvalidArgument, match="it is expected already"):
            load.wait(LIMIT_S)
        with pytest.raises(braid.Cancelled):
            handover.wait(LIMIT_S)
        assert not any(layer[20].any() for layer in d.layers)
        assert len(d.cache.tails._free) == d.cache.tails.SLOTS


def test_a_letter_of_which_a_part_has_left_is_forgotten():
    joiner = letters.Joiner()
    (begun, _), (whole,) = (
        letters.frames({"kind": "a"}, bytes(60_000)),
        letters.frames({"kind": "b"}),
    )
    assert joiner.add(b"x", begun) is None
    assert joiner.add(b"x", whole) == ({"kind": "b"}, b"")


def test_a_head_that_is_nested_too_deep_is_no_letter():
    deep = b"[" * 50_000 + b"]" * 50_000
    frame = letters.frames({"kind": "a"})[0][:8] + struct.pack("<I", len(deep)) + deep
    with pytest.raises(braid.InvalidArgument, match="whose head is no JSON: maximum recursion"):
        letters.Joiner().add(b"x", frame)


def test_a_load_that_failed_leaves_no_count():
    with ends() as (p, d, there):
        p.role.begin("r", [0, 1], 16)
        load = d.role.want("r", there, [2, 3], 16)
        p.role.computed("r", 8)
        until(lambda: d.engine.count(load.tag))
        load.cancel()
        with pytest.raises(braid.Cancelled):
            load.wait(LIMIT_S)
        assert d.engine.count(load.tag) == 0


# --- a closed engine ---


@pytest.mark.parametrize("is_pull", [False, True])
def test_an_engine_that_closes_ends_what_is_under_way(is_pull):
    with ends() as (p, d, there):
        handover = p.role.begin("other", [1], 8)
        waits = d.role.connect([p.engine.address])
        load = (
            d.role.pull("r", waits, [1], [1]) if is_pull else d.role.want("r", waits, [1], 8)
        )  # fmt: skip
        d.engine.close()
        p.engine.close()
        for ending in (load, handover):
            with pytest.raises(braid.Cancelled, match="is closed"):
                ending.wait(LIMIT_S)
        for begun in (d.role.want("later", there, [1], 8), p.role.begin("later", [1], 8)):
            with pytest.raises(braid.Cancelled, match="is closed"):
                begun.wait(LIMIT_S)


def test_nothing_begins_behind_close():
    with ends(TAILED) as (p, d, there):
        d.role.close()
        p.role.close()
        for begun in (d.role.want("r", there, [1], 8), p.role.begin("r", [1], 8)):
            with pytest.raises(braid.Cancelled, match="is closed"):
                begun.wait(LIMIT_S)
        assert len(d.cache.tails._free) == d.cache.tails.SLOTS


def test_an_engine_closes_while_a_decoder_registers_what_it_offers(monkeypatch):
    """Its close() waits for the end of another load, which waits for the decoder's lock."""
    with Side(kv.Prefiller, LAYOUT, "p 1") as one, Side(kv.Prefiller, LAYOUT, "p 2") as two:
        d = Side(kv.Decoder, LAYOUT, "d")
        first, second = (d.role.connect([p.engine.address], LIMIT_S) for p in (one, two))
        waits = d.role.want("r", first, [1], 8)
        until(lambda: waits.expected is not None)
        register, begun = d.engine.register, threading.Event()

        def slowly(memory):
            made = register(memory)
            begun.set()
            until(lambda: d.engine.closed)
            return made

        monkeypatch.setattr(d.engine, "register", slowly)
        loads = [waits]
        asks = threading.Thread(
            target=lambda: loads.append(d.role.want("other", second, [2], 8)), daemon=True
        )
        asks.start()
        assert begun.wait(LIMIT_S)
        closes = threading.Thread(target=d.engine.close, daemon=True)
        closes.start()
        for thread in (closes, asks):
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        for load in loads:
            with pytest.raises(braid.Error, match="closed"):
                load.wait(LIMIT_S)
        d.close()


@contextmanager
def registering(monkeypatch, look):
    """A decoder `d` that knows one prefiller that it was given pages by, and one that it was not:
    look() is called before it makes the regions for that one.
    """
    with (
        Side(kv.Prefiller, LAYOUT, "p 1") as one,
        Side(kv.Prefiller, LAYOUT, "p 2") as two,
        Side(kv.Decoder, LAYOUT, "d", silence=2.0) as d,
    ):
        first, second = (d.role.connect([p.engine.address], LIMIT_S) for p in (one, two))
        for p in (one, two):
            p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("r", first, [1], 8).wait(LIMIT_S)
        real = d.cache.register_layers

        def register_layers():
            look()
            return real()

        monkeypatch.setattr(d.cache, "register_layers", register_layers)
        yield one, two, d, first, second


def test_nobody_waits_while_regions_are_made_for_another_prefiller(monkeypatch):
    """Of much memory, for some NICs, that takes a second; all other loads waited for the lock."""
    begun, go_on = threading.Event(), threading.Event()

    def look():
        begun.set()
        assert go_on.wait(LIMIT_S)

    with registering(monkeypatch, look) as (one, _, d, first, second):
        loads = []
        asks = threading.Thread(
            target=lambda: loads.append(d.role.want("r", second, [2], 8)), daemon=True
        )
        try:
            asks.start()
            assert begun.wait(LIMIT_S)
            asks.join(5)
            assert loads
            one.role.begin("later", [1], 8, is_computed=True)
            d.role.want("later", first, [3], 8).wait(LIMIT_S)
            with pytest.raises(braid.Timeout):
                loads[0].wait(0)
            assert len(d.role.loads()) == 1
        finally:
            go_on.set()
        loads[0].wait(LIMIT_S)


def test_regions_that_cannot_be_made_end_what_waits_for_them_alone(monkeypatch):
    failures = [braid.Exhausted("no memory to register"), RuntimeError("odd")]

    def look():
        if failures:
            raise failures.pop(0)

    with registering(monkeypatch, look) as (one, two, d, first, second):
        for name in ("odd", "well"):
            two.role.begin(name, [1], 8, is_computed=True)
        with pytest.raises(braid.Exhausted, match="no memory to register"):
            d.role.want("r", second, [2], 8).wait(LIMIT_S)
        with pytest.raises(braid.InternalError, match="odd"):
            d.role.want("odd", second, [2], 8).wait(LIMIT_S)
        d.role.want("well", second, [2], 8).wait(LIMIT_S)
        one.role.begin("later", [1], 8, is_computed=True)
        d.role.want("later", first, [3], 8).wait(LIMIT_S)


@pytest.mark.parametrize("how", ["lost", "closed", "cancelled"])
def test_regions_for_one_that_is_gone_meanwhile_are_taken_back(monkeypatch, how):
    begun, go_on = threading.Event(), threading.Event()

    def look():
        begun.set()
        assert go_on.wait(LIMIT_S)

    with registering(monkeypatch, look) as (_, two, d, _, second):
        handover = two.role.begin("never", [1], 8)
        load = d.role.want("never", second, [2], 8)
        assert begun.wait(LIMIT_S)
        (source,) = second.sources
        closing = threading.Thread(target=d.role.close, daemon=True)
        if how == "lost":
            lose(source)
        elif how == "closed":
            closing.start()
        else:
            load.cancel()
        with pytest.raises(braid.Error, match={"lost": "said nothing"}.get(how)):
            load.wait(LIMIT_S)
        go_on.set()
        if how == "closed":
            closing.join(LIMIT_S)
            assert not closing.is_alive()
        until(lambda: not d.role._offering)
        if how == "cancelled":  # the prefiller is there, and was told
            with pytest.raises(braid.Cancelled, match="its decoder took it back"):
                handover.wait(LIMIT_S)
            d.role.want("r", second, [2], 8).wait(LIMIT_S)
            assert source.offered
        else:
            assert not source.offered
            own = 1 if how == "lost" else 0  # of the other prefiller
            assert len(d.engine._regions) == (1 + own) * len(d.cache.regions)


# --- peers that come and go ---


def test_prefillers_that_went_are_forgotten_and_one_that_is_idle_is_not():
    with ends() as (p, d, there):
        regions = len(d.engine._regions)
        with Side(kv.Prefiller, LAYOUT, "gone") as other:
            gone = d.role.connect([other.engine.address], LIMIT_S)
            other.role.begin("r", [1], 8, is_computed=True)
            d.role.want("r", gone, [1], 8).wait(LIMIT_S)
            d.role.renew("never", gone)
            d.role._renewed.clear()
        assert d.role.connect([p.engine.address]) is there
        gone.sources[0].heard_at -= 200
        there.sources[0].heard_at -= 40  # it is asked whether it is there
        until(lambda: len(d.engine._regions) == regions)
        until(lambda: not d.role._lost)
        assert list(d.role._sources.values()) == there.sources
        assert list(d.role._by_sender.values()) == there.sources
        assert d.role._prefills == [there]
        until(lambda: there.sources[0].heard_at > time.monotonic() - 30)
        with pytest.raises(braid.PeerLost, match="'gone' has said nothing"):
            d.role.want("later", gone, [1], 8).wait(LIMIT_S)
        d.role.renew("later", gone)
        assert not d.role._renewed


def test_decoders_that_went_are_forgotten_and_one_that_is_idle_is_not():
    with ends() as (p, d, there):
        other = Side(kv.Decoder, LAYOUT, "gone")
        other.role.connect([p.engine.address], LIMIT_S)
        other.role._send = lambda *_: None  # it says no farewell
        other.close()
        (link,) = [link for link in p.role._links.values() if link.name == "d"]
        for each in p.role._links.values():
            each.heard_at -= 40 if each is link else 200
        until(lambda: len(p.role._links) == 1)
        until(lambda: link.heard_at > time.monotonic() - 30)
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("r", there, [1], 8).wait(LIMIT_S)


def test_silence_counts_from_when_something_is_wanted():
    """And not from some moment of the idle time before, behind which no word is owed."""
    with ends(silence=5, beat=60) as (_, d, there):
        there.sources[0].heard_at = time.monotonic() - 4.9
        time.sleep(0.1)
        load = d.role.want("r", there, [1], 8)
        time.sleep(0.5)
        assert not load.done()
        load.cancel()


def test_a_pull_that_waits_for_its_ranks_is_not_over_when_another_one_is_lost():
    with ends() as (p, d, there), braid.Engine(**engine_peers.options("local", "deaf")) as deaf:
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("r", there, [1], 8).wait(LIMIT_S)
        waits = d.role.pull("other", d.role.connect([deaf.address]), [1], [2])
        lost = d.role.want("never", there, [3], 8)
        there.sources[0].heard_at = there.sources[0].unwanted_at = -100
        p.role._send = lambda *_: None
        with pytest.raises(braid.PeerLost):
            lost.wait(LIMIT_S)
        assert not waits.done()
        waits.cancel()


def test_a_prefiller_that_died_is_lost_as_soon_as_the_engine_knows_it():
    with Side(kv.Decoder, LAYOUT, "d", silence=600, beat=0.1) as d, Process(way="local") as p:
        there = d.role.connect([p.address], LIMIT_S)
        p("begin", "well", [1], 8)
        d.role.want("well", there, [1], 8).wait(LIMIT_S)
        p.kill()
        with pytest.raises(braid.PeerLost, match="'prefill' is lost"):
            d.role.want("r", there, [2], 8).wait(LIMIT_S)


def test_a_decoder_that_died_is_lost_as_soon_as_the_engine_knows_it():
    """Nothing is computed yet, so nothing is written to it."""
    with Side(kv.Prefiller, LAYOUT, "p", silence=4, lease=600) as p:
        p.role._silence = 600
        handover = p.role.begin("r", [0], 8)
        with Process(way="local", prefiller=p.engine.address) as d:
            d.begin("want", "r", [3], 8)
            until(lambda: "wanted" in handover.times)
            d.kill()
            (link,) = p.role._links.values()
            link.heard_at -= 200  # it is asked whether it is there
            with pytest.raises(braid.PeerLost, match="'decode' is lost"):
                handover.wait(LIMIT_S)


def test_a_tick_does_not_look_at_every_load():
    """Thousands wait for prefillers that are slow, and each tick holds up all others."""
    with (
        Side(kv.Decoder, LAYOUT, "d") as d,
        braid.Engine(**engine_peers.options("local", "p")) as p,
    ):
        there = d.role.connect([p.address])
        loads = [d.role.want(str(n), there, [n % 64], 8, timeout=LIMIT_S) for n in range(1000)]
        with d.role._lock:
            looked, d.role._loads = d.role._loads, _Counting(d.role._loads)
            d.role._beaten_at = time.monotonic() + 1000
            d.role._tick(time.monotonic())
            assert d.role._loads.looked == 0
            d.role._loads = looked
        for load in loads:
            load.cancel()


class _Counting(dict):
    looked = 0

    def values(self):
        self.looked += 1
        return super().values()


def test_a_beat_renews_what_the_decoder_gets_without_its_name(monkeypatch):
    said = []
    with (
        Side(kv.Prefiller, LAYOUT, "p", lease=1.0) as p,
        Side(kv.Decoder, LAYOUT, "d", beat=0.1) as d,
    ):
        there, send = d.role.connect([p.engine.address], LIMIT_S), d.role._send
        monkeypatch.setattr(d.role, "_send", lambda *a: (said.append(a[1]), send(*a)))
        handover = p.role.begin("r", [1], 8)
        load = d.role.want("r", there, [1], 8)
        time.sleep(1.5)
        assert not handover.done()
        assert not load.done()
        assert {str(head["requests"]) for head in said if head["kind"] == "beat"} == {"[]"}
        load.cancel()


@pytest.mark.parametrize("slices", [None, 3, {}])
def test_a_want_without_slices_is_refused(slices):
    with ends() as (p, d, there):
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("before", there, [9], 8)
        head = {"kind": "want", "request": "r", "tag": 1, "consumers": 1, "first_page": 0}
        body = (3).to_bytes(4, "little")
        d.role._send(p.engine.address, {**head, "tokens_pages": 1, "slices": slices}, body)
        until(lambda: p.role.counters["refused"])
        d.role.want("r", there, [1], 8).wait(LIMIT_S)


def test_tails_that_are_all_taken_are_waited_for():
    with ends(TAILED) as (_, d, there):
        d.cache.tails._free.clear()
        with pytest.raises(braid.Exhausted, match="all 256 tails are taken"):
            d.role.want("r", there, [1], 8)


# --- regions that are not taken away at once ---


def unregistering(monkeypatch, look):
    real = Region.unregister

    def unregister(region, timeout=30.0):
        look(region)
        return real(region, timeout)

    monkeypatch.setattr(Region, "unregister", unregister)


def failing_once(error):
    """What raises it for the first region alone that it sees."""
    seen = []

    def look(region):
        seen.append(region.id)
        if len(seen) == 1:
            raise error

    return look


@contextmanager
def lost_source():
    """A load that goes when its source, which knows our pages, is revoked."""
    with ends() as (p, d, there):
        p.role.begin("r", [1], 8, is_computed=True)
        d.role.want("r", there, [1], 8).wait(LIMIT_S)
        load = d.role.want("never", there, [2], 8)
        p.role._send = lambda *_: None
        yield d, there.sources[0], load


def lose(source):
    source.heard_at = source.unwanted_at = -100


@pytest.mark.parametrize("error", [braid.Timeout("not yet"), RuntimeError("can't start a thread")])
def test_a_region_that_fails_once_is_taken_away_later(monkeypatch, error, caplog):
    caplog.set_level(logging.WARNING)
    with lost_source() as (d, source, load):
        unregistering(monkeypatch, failing_once(error))
        lose(source)
        with pytest.raises(braid.PeerLost):
            load.wait(LIMIT_S)
        assert source.is_gone
        assert not source.offered
        assert str(error) in caplog.text
        assert len(d.engine._regions) == len(d.cache.regions)


def test_a_thread_that_cannot_be_had_is_asked_for_again(monkeypatch):
    with lost_source() as (_, source, load):
        real, refused = threading.Thread.start, []

        def start(thread):
            if not refused and "_revoke" in str(thread._target):
                refused.append(thread)
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        lose(source)
        with pytest.raises(braid.PeerLost):
            load.wait(LIMIT_S)
        assert refused


def test_close_waits_for_what_is_being_revoked(monkeypatch):
    with lost_source() as (d, source, load):
        is_going, go_on = threading.Event(), threading.Event()

        def look(region):
            if region in source.offered:
                is_going.set()
                go_on.wait(LIMIT_S)

        unregistering(monkeypatch, look)
        lose(source)
        assert is_going.wait(LIMIT_S)
        d.role._silence = 0.05  # close() waits for the load only so long
        closing = threading.Thread(target=d.role.close)
        closing.start()
        time.sleep(0.3)
        assert closing.is_alive()
        go_on.set()
        closing.join(LIMIT_S)
        assert not source.offered
        with pytest.raises(braid.PeerLost):
            load.wait(0)
        assert len(d.engine._regions) == len(d.cache.regions)


def test_a_cache_that_could_not_close_closes_later(monkeypatch):
    with braid.Engine(**engine_peers.options("local", "e")) as engine:
        apart = [layer.copy() for layer in memory(TAILED)]
        cache = kv.PagedCache(engine, apart, TAILED)
        with monkeypatch.context() as patch:
            unregistering(patch, failing_once(braid.Timeout("not yet")))
            with pytest.raises(braid.Timeout):
                cache.close()
        assert len(engine._regions) == 1
        cache.close()
        assert not engine._regions


# --- beside ---


class _Slow(Flying):
    """Another consumer comes while somebody looks whether these are under way."""

    def __init__(self, by, comes):
        super().__init__()
        self._by, self._comes = by, comes

    def __bool__(self):
        if threading.current_thread() is self._by:
            comes, self._comes = self._comes, lambda: None
            coming = threading.Thread(target=comes)
            coming.start()
            coming.join(0.2)
        return False


def test_a_consumer_may_come_while_a_request_is_paused():
    with ends() as (p, d, there), Side(kv.Decoder, LAYOUT, "other") as other:
        handover = p.role.begin("r", [1], 8)
        d.role.want("r", there, [1], 8)
        other.role.want("r", other.role.connect([p.engine.address], LIMIT_S), [1], 8)
        until(lambda: len(handover.consumers) == 2)

        def comes():
            with p.role._lock:
                handover.consumers[b"third"] = next(iter(handover.consumers.values()))

        next(iter(handover.consumers.values())).flying = _Slow(threading.current_thread(), comes)
        p.role.pause("r", LIMIT_S)
        until(lambda: len(handover.consumers) == 3)


def test_who_pulls_a_request_reads_it_until_it_says_that_it_is_through():
    with ends() as (p, d, there):
        said, send = [], d.role._send

        def hold(peer, head, body=b""):
            said.append((peer, head)) if head["kind"] == "took" else send(peer, head, body)

        d.role._send = hold
        p.role.begin("r", [1], 8, is_computed=True)
        load = d.role.pull("r", there, [1], [1])
        until(lambda: said)
        with pytest.raises(braid.Timeout, match="read still"):
            p.role.pause("r", 0.05)
        send(*said[0])
        p.role.pause("r", LIMIT_S)
        load.wait(LIMIT_S)


class _Short:
    """A socket of a process that has no descriptors left for a while."""

    def __init__(self, socket):
        self._socket, self.times = socket, 0

    def accept(self):
        self.times += 1
        if self.times <= 2:
            raise OSError(24, os.strerror(24))
        return self._socket.accept()

    def close(self):
        self._socket.close()


def test_a_door_that_says_a_byte_now_and_then_is_given_up_in_time():
    drips = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        guest, _ = drips.accept()
        with guest, contextlib.suppress(OSError):
            guest.sendall(struct.pack("<I", 1000))
            for _ in range(100):
                time.sleep(0.1)
                guest.sendall(b" ")

    with drips:
        threading.Thread(target=drip, daemon=True).start()
        started = time.monotonic()
        with pytest.raises(braid.Unavailable, match=r"of 1000 bytes came in time|timed out"):
            ask("127.0.0.1", drips.getsockname()[1], 0.5)
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("host", ["", "a..b", "x" * 70, "\ud800", "[::1"])
def test_a_door_at_no_host_is_refused(host):
    with pytest.raises((braid.InvalidArgument, braid.Unavailable), match="door"):
        ask(host, 1)


def test_a_door_that_answers_nonsense_is_refused():
    for text in (b"[" * 100_000, b"{}", b"\xff", b"9" * 5000, b'{"version": 1, "ranks": 5}'):
        with socket.create_server(("127.0.0.1", 0)) as door:
            data = struct.pack("<I", len(text)) + text
            thread = threading.Thread(target=answer_once, args=(door, data), daemon=True)
            thread.start()
            with pytest.raises(braid.InvalidArgument, match=r"door .*127\.0\.0\.1"):
                ask("127.0.0.1", door.getsockname()[1])
            thread.join()


def answer_once(door, data):
    guest, _ = door.accept()
    with guest:
        guest.sendall(data)


def test_a_door_that_was_short_of_descriptors_opens_again(caplog):
    with Door("127.0.0.1", 0, "an id", []) as door:
        door._socket = short = _Short(door._socket)
        until(lambda: short.times > 2)
        assert ask("127.0.0.1", door.port) == ("an id", [])
    assert caplog.text.count(os.strerror(24)) == 1

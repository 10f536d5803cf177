"""What a prefiller takes for computed, and who reads its pages: bytes from before these were
computed never end a load well, whatever was declared or read before; and each asker is answered.
"""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from kv_peers import LAYOUT, LIMIT_S, Process, Side, fill, is_right, until

import braid
from braid import kv


@contextmanager
def ends(**prefiller):
    """A prefiller and a decoder that have met."""
    with Side(kv.Prefiller, LAYOUT, "p", **prefiller) as p, Side(kv.Decoder, LAYOUT, "d") as d:
        yield p, d, d.role.connect([p.engine.address], LIMIT_S)


# --- passes from before pause() ---


class Told:
    """Counts the layers that the word's watcher has told a prefiller of."""

    def __init__(self, prefiller):
        self.layers, self._tell = 0, prefiller._progress._computed
        prefiller._progress._computed = self

    def __call__(self, parts, layers):
        self._tell(parts, layers)
        self.layers += len(layers)


@pytest.mark.parametrize("is_through", [True, False])
def test_a_pass_from_before_pause_counts_for_none_of_the_new_pages(is_through):
    """Its watcher tells of it later; or it is under way, on a GPU."""
    with ends() as (p, d, there):
        told = Told(p.role)
        handover = p.role.begin("r", [0, 1], 16)
        other = p.role.begin("other", [2], 8)
        fill(p.layers, LAYOUT, 2)
        p.role.declare([kv.Part("r", 16), kv.Part("other", 8)])
        with p.role._lock:  # the watcher, too, takes it before it tells
            if is_through:
                p.role.layer_done(LAYOUT.layers)
            p.role.pause("r", LIMIT_S)
            p.role.grow("r", [5, 6])
        if not is_through:
            p.role.layer_done(LAYOUT.layers)
        load = d.role.want("r", there, [8, 9], 16)
        d.role.want("other", there, [10], 8).wait(LIMIT_S)  # which was not paused
        other.wait(LIMIT_S)
        until(lambda: told.layers == LAYOUT.layers and "wanted" in handover.times)
        assert p.role.counters["pages"] == LAYOUT.layers
        assert not handover.is_computed()
        for page in (5, 6):
            fill(p.layers, LAYOUT, page)
        p.role.declare([kv.Part("r", 16)])
        p.role.layer_done(LAYOUT.layers)
        load.wait(LIMIT_S)
        handover.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 8, 5)
        assert is_right(d.layers, LAYOUT, 9, 6)


# --- who reads what is taken away ---


class Stuck:
    """A write to one who does not take it, until it is taken back."""

    def __init__(self):
        self.is_back, self.callbacks = False, []

    def done(self):
        return self.is_back

    def error(self):
        return braid.Cancelled("taken back") if self.is_back else None

    def then(self, callback):
        self.callbacks.append(callback)
        return True

    def cancel(self):
        self.is_back = True

    def wait(self, timeout=None):
        del timeout


def test_pause_does_without_a_decoder_that_takes_too_long(monkeypatch):
    with ends() as (p, d, there), Side(kv.Decoder, LAYOUT, "other") as other:
        other_there = other.role.connect([p.engine.address], LIMIT_S)
        handover = p.role.begin("r", [0, 1], 16)
        well = p.role.begin("well", [2], 8)
        load, goes_on = (
            side.role.want(name, to, list(range(8, 8 + pages)), 8 * pages)
            for side, to, name, pages in ((d, there, "r", 2), (other, other_there, "well", 1))
        )
        until(lambda: "wanted" in handover.times and "wanted" in well.times)
        with monkeypatch.context() as patch:
            patch.setattr(p.engine, "write_pages", lambda *_, **__: Stuck())
            p.role.computed("r", 8)
        with pytest.raises(braid.Timeout, match=r"read still after 0\.05 s"):
            p.role.pause("r", 0.05)
        began = time.monotonic()
        p.role.pause("r", LIMIT_S, patience=0.05)
        assert 0.05 <= time.monotonic() - began < LIMIT_S / 2
        for ending in (load, handover):
            with pytest.raises(braid.Error, match="'d' read pages that were needed"):
                ending.wait(LIMIT_S)
        p.role.grow("r", [5, 6])  # as one that is over
        p.role.computed("well")
        goes_on.wait(LIMIT_S)
        well.wait(LIMIT_S)


def test_pause_does_without_one_that_pulls_for_too_long():
    with ends() as (p, d, there):
        said, send = [], d.role._send

        def hold(peer, head, body=b""):
            said.append((peer, head)) if head["kind"] == "took" else send(peer, head, body)

        d.role._send = hold
        handover = p.role.begin("r", [1], 8, is_computed=True)
        load = d.role.pull("r", there, [1], [1])
        # Reads need no word of 'p', so they may be over before it has looked at the pull.
        until(lambda: said and "wanted" in handover.times)
        p.role.pause("r", LIMIT_S, patience=0)
        for ending in (load, handover):
            with pytest.raises(braid.Error, match="'d' read pages that were needed"):
                ending.wait(LIMIT_S)
        send(*said[0])
        until(lambda: d.role.counters["repeated"])  # `held` of a load that is over
        assert load.error() is not None


def test_pause_waits_for_no_lease_of_a_stopped_decoder_on_one_host():
    with Side(kv.Prefiller, LAYOUT, "p", silence=600) as p:
        handover = p.role.begin("r", [0, 1], 16)
        with Process(way="local", prefiller=p.engine.address) as decode:
            decode.begin("want", "r", [3, 4], 16)
            until(lambda: "wanted" in handover.times)
            decode.stop()
            p.role.computed("r", 8)
            began = time.monotonic()
            p.role.pause("r", LIMIT_S, patience=0.2)
            assert time.monotonic() - began < 10  # the engine's lease is 20 s
            decode.resume()
            assert "'decode' read pages that were needed" in decode.answer()
            with pytest.raises(braid.Timeout, match="read pages that were needed"):
                handover.wait(LIMIT_S)


# --- pulls from before begin() ---


def kinds(p):
    """The letters that wait for their requests to begin."""
    return [head["kind"] for early in p.role._early.values() for head, _ in early.letters]


def computed_behind_the_read(p, page):
    until(lambda: kinds(p) == ["pull", "took"])
    fill(p.layers, LAYOUT, page)


def test_what_was_pulled_before_begin_is_read_again():
    with ends() as (p, d, there):
        load = d.role.pull("r", there, [3], [9])
        computed_behind_the_read(p, 3)
        assert not d.layers[0][9].any()
        handover = p.role.begin("r", [3], 8, is_computed=True)
        load.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 9, 3)
        handover.wait(LIMIT_S)
        assert d.role.counters["pages"] == 2 * LAYOUT.layers


def test_a_read_that_ends_behind_begin_and_was_begun_before_is_done_again():
    with ends() as (p, d, there):
        said, send = [], d.role._send

        def hold(peer, head, body=b""):
            said.append((peer, head)) if head["kind"] == "took" else send(peer, head, body)

        d.role._send = hold
        load = d.role.pull("r", there, [3], [9])
        until(lambda: said and kinds(p) == ["pull"])
        fill(p.layers, LAYOUT, 3)
        handover = p.role.begin("r", [3], 8, is_computed=True)
        d.role._send = send
        send(*said[0])
        load.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 9, 3)
        handover.wait(LIMIT_S)


def test_what_was_computed_before_anybody_was_told_is_read_once():
    """As vLLM's scheduler tells a router of pages, and its worker a step later."""
    with ends() as (p, d, there):
        fill(p.layers, LAYOUT, 3)
        load = d.role.pull("r", there, [3], [9])
        until(lambda: kinds(p) == ["pull", "took"])
        p.role.begin("r", [3], 8, is_computed=True, was_computed_when_told=True).wait(LIMIT_S)
        load.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 9, 3)
        assert d.role.counters["pages"] == LAYOUT.layers


def test_nothing_is_read_again_where_nothing_was_wanted():
    with ends() as (p, d, there):
        load = d.role.pull("r", there, [], [])
        until(lambda: kinds(p) == ["pull", "took"])
        p.role.begin("r", [3], 8, is_computed=True).wait(LIMIT_S)
        load.wait(LIMIT_S)
        assert d.role.counters["pages"] == 0


def test_each_rank_has_read_again_what_it_began_too_late():
    """One has begun, one does now, and one when the other one's pages were read again."""
    layouts = [replace(LAYOUT, first_layer=n, layers_here=1) for n in range(LAYOUT.layers)]
    sides = [Side(kv.Prefiller, layout, f"p{n}") for n, layout in enumerate(layouts)]
    with sides[0] as first, sides[1] as now, sides[2] as late, Side(kv.Decoder, LAYOUT, "d") as d:
        there = d.role.connect([side.engine.address for side in sides], LIMIT_S)
        fill(first.layers, layouts[0], 3)
        first.role.begin("r", [3], 8, is_computed=True)
        load = d.role.pull("r", there, [3], [9])
        for number, side in ((1, now), (2, late)):
            assert not load.done()
            until(lambda side=side: kinds(side) == ["pull", "took"])
            fill(side.layers, layouts[number], 3)
            side.role.begin("r", [3], 8, is_computed=True)
            until(lambda number=number: d.role.counters["pages"] == LAYOUT.layers + number)
        load.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 9, 3)
        assert not first.role.counters["repeated"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_load_that_ends_while_it_reads_again_ends(monkeypatch, is_lost):
    with ends() as (p, d, there):
        load = d.role.pull("r", there, [3], [9])
        until(lambda: kinds(p) == ["pull", "took"])

        def read_pages(*_, **__):
            raise braid.PeerLost("gone")

        if is_lost:
            monkeypatch.setattr(d.engine, "read_pages", read_pages)
        else:
            monkeypatch.setattr(d.role, "_read_again", lambda load, _: load.cancel())
        handover = p.role.begin("r", [3], 8, is_computed=True)
        for ending in (load, handover):
            with pytest.raises(braid.PeerLost if is_lost and ending is load else braid.Cancelled):
                ending.wait(LIMIT_S)


# --- one decoder that asks twice ---


def test_a_pull_beside_a_want_of_one_decoder_ends_and_the_want_goes_on():
    """As a fallback that comes too soon."""
    with ends() as (p, d, there):
        for page in (1, 2):
            fill(p.layers, LAYOUT, page)
        handover = p.role.begin("r", [1, 2], 16)
        p.role.computed("r", 8)
        load = d.role.want("r", there, [21, 22], 16)
        until(lambda: "wanted" in handover.times)
        with pytest.raises(braid.Cancelled, match="it goes to 'd' already"):
            d.role.pull("r", there, [1], [23]).wait(LIMIT_S)
        time.sleep(0.1)  # its `took` is there, too
        assert not handover.done()
        assert not load.done()
        p.role.computed("r")
        load.wait(LIMIT_S)
        handover.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 22, 2)


def test_a_second_pull_of_one_decoder_ends_no_reads_of_the_first_one():
    with ends() as (p, d, there):
        said, send = [], d.role._send

        def hold(peer, head, body=b""):
            said.append((peer, head)) if head["kind"] == "took" else send(peer, head, body)

        handover = p.role.begin("r", [1], 8, is_computed=True)
        d.role._send = hold
        first = d.role.pull("r", there, [1], [21])
        until(lambda: said)  # it goes on reading, as far as the prefiller knows
        d.role._send = send
        with pytest.raises(braid.Cancelled, match="it goes to 'd' already"):
            d.role.pull("r", there, [1], [22]).wait(LIMIT_S)
        time.sleep(0.1)
        assert not handover.done()
        send(*said[0])
        first.wait(LIMIT_S)
        handover.wait(LIMIT_S)


def test_all_that_waited_for_a_request_that_never_begins_are_told():
    with ends(lease=0.5) as (_, d, there):
        loads = [d.role.want("r", there, [1], 8), d.role.pull("r", there, [1], [2])]
        for load in loads:
            with pytest.raises(braid.Cancelled, match=r"has not begun within 0.5 s"):
                load.wait(LIMIT_S)


def test_one_that_is_taken_back_before_begin_takes_no_other_one_back():
    with ends() as (p, d, there):
        fill(p.layers, LAYOUT, 1)
        pulled = d.role.pull("r", there, [1], [2])
        load = d.role.want("r", there, [3], 8)
        until(lambda: sorted(kinds(p)) == ["pull", "took", "want"])
        pulled.cancel()
        with pytest.raises(braid.Cancelled, match="taken back"):
            pulled.wait(LIMIT_S)
        p.role.begin("r", [1], 8, is_computed=True).wait(LIMIT_S)
        load.wait(LIMIT_S)
        assert is_right(d.layers, LAYOUT, 3, 1)

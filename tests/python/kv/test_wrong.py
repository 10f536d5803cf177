"""Bad input: an error on both sides that names it, and both go on serving others."""

import itertools
import json
import logging
import re
import struct
import time
from dataclasses import replace

import numpy as np
import pytest
from kv_peers import LAYOUT, LIMIT_S, PAGES, Side, fill, is_right, memory, until

import braid
from braid import kv, letters
from braid.kv.post import VERSION
from braid.kv.progress import Progress

_numbers = itertools.count()


@pytest.fixture
def ends():
    """A prefiller and a decoder that have met."""
    with Side(kv.Prefiller, LAYOUT, "prefill") as prefill, Side(kv.Decoder, LAYOUT, "decode") as d:
        yield prefill, d, d.role.connect([prefill.engine.address], LIMIT_S)


def still_serves(prefill, decode, there):
    """Another request goes well."""
    name = f"after {next(_numbers)}"
    fill(prefill.layers, LAYOUT, 33)
    handover = prefill.role.begin(name, [33], 8, is_computed=True)
    decode.role.want(name, there, [44], 8).wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 44, 33)


OTHERS = [
    ({"model": "other"}, "layout: model: 'm' at 'prefill', 'other' at 'stranger'"),
    ({"dtype": "bfloat16"}, "layout: dtype: 'float32' at 'prefill', 'bfloat16' at 'stranger'"),
    ({"page_tokens": 16}, "layout: page_tokens: 8 at 'prefill', 16 at 'stranger'"),
    ({"heads": 2}, "layout: heads: 4 at 'prefill', 2 at 'stranger'"),
    ({"token_bytes": 32}, "layout: token_bytes: 16 at 'prefill', 32 at 'stranger'"),
    ({"layers": 4, "layers_here": 4}, "layout: layers: 3 at 'prefill', 4 at 'stranger'"),
    ({"tail_bytes": 8}, "layout: tail_bytes: 0 at 'prefill', 8 at 'stranger'"),
]


@pytest.mark.parametrize(("other", "words"), OTHERS)
def test_other_layouts_are_refused_on_both_sides(ends, caplog, other, words):
    prefill, decode, there = ends
    caplog.set_level(logging.WARNING)
    with (
        Side(kv.Decoder, replace(LAYOUT, **other), "stranger") as stranger,
        pytest.raises(braid.InvalidArgument, match=words),
    ):
        stranger.role.connect([prefill.engine.address], LIMIT_S)
    assert words in caplog.text
    assert prefill.role.counters["refused"] == 1
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("peers", [[b"junk"], "host:1", [], [None]])
def test_what_is_no_address_is_refused(ends, peers):
    _, decode, _ = ends
    with pytest.raises(braid.InvalidArgument, match="the addresses of a prefiller's engines"):
        decode.role.connect(peers, LIMIT_S)


def test_another_version_is_refused_on_both_sides(ends, caplog, monkeypatch):
    prefill, decode, there = ends
    caplog.set_level(logging.WARNING)
    whole = letters.frames

    def of_version_7(head, body=b""):
        if head["kind"] != "hello":  # the prefiller's, of this process, too, may answer by now
            return whole(head, body)
        return [frame[:3] + bytes([7]) + frame[4:] for frame in whole(head, body)]

    with Side(kv.Decoder, LAYOUT, "newer") as newer:
        with monkeypatch.context() as patch:
            patch.setattr(letters, "frames", of_version_7)
            source = newer.role._source(prefill.engine.address)
        until = time.monotonic() + LIMIT_S
        while source.error is None and time.monotonic() < until:
            time.sleep(0.01)
    words = f"version {VERSION} of the protocol at 'prefill', 7 at 'newer'"
    assert words in str(source.error)
    assert words in caplog.text
    still_serves(prefill, decode, there)


def test_the_version_before_is_refused_by_name(ends, monkeypatch):
    """Its letters are as ours; what its offer says of regions is not."""
    prefill, decode, there = ends
    monkeypatch.setattr("braid.kv.sources.VERSION", VERSION - 1)
    words = f"version {VERSION} of the protocol at 'prefill', {VERSION - 1} at 'older'"
    with (
        Side(kv.Decoder, LAYOUT, "older") as older,
        pytest.raises(braid.InvalidArgument, match=words),
    ):
        older.role.connect([prefill.engine.address], LIMIT_S)
    still_serves(prefill, decode, there)


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ([0, PAGES], f"request 'r': page {PAGES}: the cache has {PAGES} pages"),
        ([-1, 0], "request 'r': asked for whole numbers from 0 on, found -1 at place 0"),
        ([5, 5], "request 'r': page 5 is named twice"),
        ([1], "request 'r': 16 tokens take 2 pages; found 1 from page 0 on"),
    ],
)
def test_pages_that_are_none_are_refused_at_the_call(ends, pages, words):
    prefill, decode, there = ends
    with pytest.raises(braid.InvalidArgument, match=words):
        decode.role.want("r", there, pages, 16)
    if "tokens" not in words:
        with pytest.raises(braid.InvalidArgument, match=words):
            prefill.role.begin("r", pages, 16)
    still_serves(prefill, decode, there)


def test_pages_out_of_the_peers_range_end_both_sides(ends):
    """A router's remote_block_ids, and a decoder that lies about its own pages."""
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0], 8, is_computed=True)
    load = decode.role.pull("r", there, [PAGES + 3], [1])
    with pytest.raises(braid.InvalidArgument, match=rf"page {PAGES + 3}: the cache has {PAGES}"):
        load.wait(LIMIT_S)
    with pytest.raises(
        braid.InvalidArgument, match=rf"for pages \[{PAGES + 3}\], 'prefill' has \[0"
    ):
        handover.wait(LIMIT_S)
    handover = prefill.role.begin("lie", [0], 8, is_computed=True)
    decode.cache.pages = 2 * PAGES
    load = decode.role.want("lie", there, [PAGES + 3], 8)
    until(lambda: there.sources[0].offered)  # by another thread
    decode.cache.pages = PAGES
    with pytest.raises(braid.Cancelled, match=r"request 'lie' at 'prefill': .*outside of region"):
        load.wait(LIMIT_S)
    with pytest.raises(braid.InvalidArgument, match=r"outside of region .* of 'decode'"):
        handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_a_pull_of_pages_of_another_request_ends_both_sides(ends):
    """A router's mistake: the pages are there, and hold what somebody else asked."""
    prefill, decode, there = ends
    fill(prefill.layers, LAYOUT, 7)
    other = prefill.role.begin("other", [7], 8, is_computed=True)
    handover = prefill.role.begin("r", [2, 4], 16, is_computed=True)
    words = re.escape("request 'r': 'decode' asked for pages [4, 7, 9], 'prefill' has [2, 4] of it")
    load = decode.role.pull("r", there, [4, 7, 9], [0, 1, 2])
    with pytest.raises(braid.Cancelled, match=words):
        load.wait(LIMIT_S)
    with pytest.raises(braid.InvalidArgument, match=words):
        handover.wait(LIMIT_S)
    decode.role.pull("other", there, [7], [8]).wait(LIMIT_S)
    other.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 8, 7)
    still_serves(prefill, decode, there)


def test_a_pull_of_some_of_a_requests_pages_goes_well(ends):
    """The decoder has the others already; in any order."""
    prefill, decode, there = ends
    for page in (5, 6, 7):
        fill(prefill.layers, LAYOUT, page)
    handover = prefill.role.begin("r", [5, 6, 7], 24, is_computed=True)
    decode.role.pull("r", there, [7, 6], [1, 2]).wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 1, 7)
    assert is_right(decode.layers, LAYOUT, 2, 6)


def test_a_pull_of_the_wrong_pages_that_came_before_its_request(ends):
    prefill, decode, there = ends
    load = decode.role.pull("r", there, [3], [1])
    until = time.monotonic() + LIMIT_S
    while not prefill.role._early and time.monotonic() < until:
        time.sleep(0.002)
    handover = prefill.role.begin("r", [2], 8, is_computed=True)
    for ending in (load, handover):
        with pytest.raises(braid.Error, match=r"asked for pages \[3\], 'prefill' has \[2\]"):
            ending.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_a_pull_of_pages_that_are_not_computed_ends_both_sides(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [2, 4], 16)
    prefill.role.computed("r", 8)
    words = re.escape("request 'r': 'decode' asked for pages [2, 4], of which [4] are not computed")
    load = decode.role.pull("r", there, [2, 4], [1, 2])
    for ending in (load, handover):
        with pytest.raises(braid.Error, match=words):
            ending.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_another_length_of_the_prompt_is_told_on_both_sides(ends, caplog):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0, 1], 16, is_computed=True)
    load = decode.role.want("r", there, [0], 8)
    with pytest.raises(braid.Cancelled, match="2 pages at 'prefill', 1 at 'decode'"):
        load.wait(LIMIT_S)
    assert "'prefill': refused a want: request 'r': 2 pages at 'prefill', 1 at" in caplog.text
    assert prefill.role.counters["refused"] == 1
    decode.role.want("r", there, [3, 4], 16).wait(LIMIT_S)  # the right one may still come
    handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_cancelled_before_it_moves(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0], 8)  # nothing is computed
    load = decode.role.want("r", there, [1], 8)
    until(lambda: "wanted" in handover.times)
    load.cancel()
    with pytest.raises(braid.Cancelled, match="request 'r': taken back"):
        load.wait(LIMIT_S)
    with pytest.raises(braid.Cancelled, match="'decode' took it back"):
        handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_a_pass_of_a_request_that_was_never_begun(ends):
    """And the pass of others that is declared next is not counted behind it."""
    prefill, decode, there = ends
    fill(prefill.layers, LAYOUT, 0)
    prefill.role.begin("r", [0], 8)
    with pytest.raises(braid.InvalidArgument, match="'another': declared, and never begun"):
        prefill.role.declare([kv.Part("r", 8), kv.Part("another", 8)])
    prefill.role.declare([kv.Part("r", 8)])
    load = decode.role.want("r", there, [1], 8)
    prefill.role.layer_done(LAYOUT.layers)
    load.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 1, 0)
    prefill.role.declare([kv.Part("r", 8)])  # it is over: no mistake
    prefill.role.layer_done(LAYOUT.layers)
    still_serves(prefill, decode, there)


def test_cancelled_before_the_prefiller_knows_it(ends):
    prefill, decode, there = ends
    load = decode.role.want("r", there, [1], 8)
    load.cancel()
    with pytest.raises(braid.Cancelled):
        load.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_cancelled_while_it_moves(ends):
    """Half of the layers have landed; after the end nothing more does."""
    prefill, decode, there = ends
    fill(prefill.layers, LAYOUT, 0)
    handover = prefill.role.begin("r", [0], 8)
    prefill.role.declare([kv.Part("r", 8)])
    load = decode.role.want("r", there, [1], 8)
    prefill.role.layer_done()
    until = time.monotonic() + LIMIT_S
    while not decode.layers[0][1].any() and time.monotonic() < until:
        time.sleep(0.002)
    load.cancel()
    with pytest.raises(braid.Cancelled):
        load.wait(LIMIT_S)
    for layer in decode.layers:
        layer[1] = 0
    prefill.role.layer_done(2)
    with pytest.raises(braid.Cancelled):
        handover.wait(LIMIT_S)
    time.sleep(0.1)
    assert not any(layer[1].any() for layer in decode.layers)
    still_serves(prefill, decode, there)


def test_cancelled_after_it_moved(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0], 8, is_computed=True)
    load = decode.role.want("r", there, [1], 8)
    load.wait(LIMIT_S)
    load.cancel()
    handover.wait(LIMIT_S)
    assert load.error() is None
    prefill.role.cancel("r")
    still_serves(prefill, decode, there)


def test_the_prefiller_takes_it_back(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0], 8)
    load = decode.role.want("r", there, [1], 8)
    until = time.monotonic() + LIMIT_S
    while "wanted" not in handover.times and time.monotonic() < until:
        time.sleep(0.002)
    prefill.role.cancel("r")
    with pytest.raises(braid.Cancelled, match="request 'r' at 'prefill': request 'r': taken back"):
        load.wait(LIMIT_S)
    with pytest.raises(braid.Cancelled):
        handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_a_router_repeats(ends):
    """A request that is over is asked for again, begun again, and wanted twice at once."""
    prefill, decode, there = ends
    over = prefill.role.begin("r", [0], 8, is_computed=True)
    decode.role.want("r", there, [1], 8).wait(LIMIT_S)
    over.wait(LIMIT_S)  # the prefiller hears of it a moment later
    for again in (decode.role.want("r", there, [2], 8), decode.role.pull("r", there, [0], [3])):
        with pytest.raises((braid.Cancelled, braid.Timeout), match=r"is over|gave its pages back"):
            again.wait(LIMIT_S)
    with pytest.raises(braid.InvalidArgument, match="request 'r': asked to begin it, it is over"):
        prefill.role.begin("r", [0], 8)
    handover = prefill.role.begin("twice", [0], 8)
    first = decode.role.want("twice", there, [4], 8)
    second = decode.role.want("twice", there, [5], 8)
    with pytest.raises(braid.Cancelled, match="it goes to 'decode' already"):
        second.wait(LIMIT_S)
    prefill.role.computed("twice")
    first.wait(LIMIT_S)
    handover.wait(LIMIT_S)
    assert prefill.role.counters["repeated"] >= 3
    still_serves(prefill, decode, there)


def test_a_request_that_never_begins_ends_with_the_lease():
    with Side(kv.Prefiller, LAYOUT, "prefill", lease=0.5) as p, Side(kv.Decoder, LAYOUT, "d") as d:
        there = d.role.connect([p.engine.address], LIMIT_S)
        with pytest.raises(braid.Cancelled, match=r"has not begun within 0.5 s"):
            d.role.want("never", there, [0], 8).wait(LIMIT_S)
        with pytest.raises(braid.Timeout, match="not here within its deadline"):
            d.role.want("soon", there, [0], 8, timeout=0.1).wait(LIMIT_S)
        still_serves(p, d, there)


def test_what_nobody_fetches_is_released_and_what_is_renewed_is_not():
    with (
        Side(kv.Prefiller, LAYOUT, "prefill", lease=0.6) as p,
        Side(kv.Decoder, LAYOUT, "d", beat=0.1) as d,
    ):
        there = d.role.connect([p.engine.address], LIMIT_S)
        d.role.renew("kept", there)
        kept, dropped = (
            p.role.begin(n, [i], 8, is_computed=True) for i, n in enumerate(("kept", "x"))
        )
        with pytest.raises(braid.Timeout, match=r"nobody has renewed its lease of 0.6 s"):
            dropped.wait(LIMIT_S)
        time.sleep(0.5)
        assert not kept.done()
        late = d.role.pull("x", there, [1], [1])
        with pytest.raises((braid.Timeout, braid.Cancelled), match=r"gave its pages back|ended: "):
            late.wait(LIMIT_S)
        d.role.let_go("kept", there)
        with pytest.raises(braid.Cancelled, match="its decoder took it back"):
            kept.wait(LIMIT_S)


def frame(head, body=b"", version=letters.VERSION, part=0, parts=1):
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return (
        struct.pack("<3sBHH", b"bkv", version, part, parts)
        + struct.pack("<I", len(data))
        + data
        + body
    )


def test_a_farewell_to_a_prefiller_that_was_closed_is_no_mistake(caplog):
    """The next one of the same engine gets it, and knows nobody yet."""
    caplog.set_level(logging.WARNING)
    with Side(kv.Decoder, LAYOUT, "decode") as decode, Side(kv.Prefiller, LAYOUT, "prefill") as old:
        decode.role.connect([old.engine.address], LIMIT_S)
        old.role.close()
        old.role = kv.Prefiller(old.engine, old.cache)
        decode.role.close()
        decode.role = kv.Decoder(decode.engine, decode.cache)
        there = decode.role.connect([old.engine.address], LIMIT_S)
        still_serves(old, decode, there)
        assert old.role.counters["refused"] == 0
    assert "before a hello" not in caplog.text


def greeting(address):
    head = {"kind": "hello", "version": VERSION, "layout": LAYOUT.as_json()}
    return frame(head, letters.pack([address]))


def pushed(prefill, decode, there):
    """A request that is pushed while it is computed goes well."""
    name = f"pushed {next(_numbers)}"
    fill(prefill.layers, LAYOUT, 34)
    handover = prefill.role.begin(name, [34], 8)
    load = decode.role.want(name, there, [45], 8)
    prefill.role.declare([kv.Part(name, 8)])
    prefill.role.layer_done(LAYOUT.layers)
    for ending in (load, handover):
        ending.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 45, 34)


@pytest.fixture
def stranger():
    """An engine of the same job, that says what it likes."""
    with braid.Engine("odd", nics="none", token="a token of tests", hosts="127.0.0.1") as engine:
        yield engine


@pytest.mark.parametrize("wrong", ["nothing", "cut", "altered", "another's", "another job's"])
def test_who_greets_with_no_address_of_its_own_is_not_kept(ends, stranger, wrong):
    """What it wants would be answered to nobody, or to somebody who asked for nothing."""
    prefill, decode, there = ends
    pushed(prefill, decode, there)
    own = stranger.address.data
    with braid.Engine("far", nics="none", token="another token") as far:
        address = {
            "nothing": b"no address",
            "cut": own[:-1],
            "altered": own[:-1] + bytes([own[-1] ^ 1]),
            "another's": decode.engine.address.data,
            "another job's": far.address.data,
        }[wrong]
    known = dict(prefill.role._links)
    for head in ({}, {"layout": replace(LAYOUT, model="other").as_json()}):
        said = greeting(address) if not head else frame(
            {"kind": "hello", "version": VERSION, **head}, letters.pack([address])
        )  # fmt: skip
        stranger.send(prefill.engine.address, said).wait(LIMIT_S)
    until(lambda: prefill.role.counters["refused"] == 2)
    assert prefill.role._links == known
    pushed(prefill, decode, there)
    assert there.error() is None


def test_an_offer_of_no_regions_ends_what_is_wanted_there_and_no_other_push(ends, stranger):
    prefill, decode, there = ends
    pushed(prefill, decode, there)
    peer = prefill.engine.address
    places = [[number, 0, LAYOUT.page_bytes] for number in range(LAYOUT.layers)]
    offer = {"kind": "offer", "places": places, "pages": PAGES}
    wanted = {
        "kind": "want", "request": "r", "tag": 2**31, "first_page": 0, "tokens_pages": 1,
        "consumers": 1, "slices": [[0, LAYOUT.layers, 0, 0, LAYOUT.heads]], "tail_slot": None,
    }  # fmt: skip
    stranger.send(peer, greeting(stranger.address.data)).wait(LIMIT_S)
    assert b'"welcome"' in stranger.recv(LIMIT_S).data
    prefill.role.begin("r", [5], 8)
    regions = [b"no descriptor"] * LAYOUT.layers
    stranger.send(peer, frame(offer, letters.pack(regions))).wait(LIMIT_S)
    stranger.send(peer, frame(wanted, bytes(4))).wait(LIMIT_S)
    answer = stranger.recv(LIMIT_S).data
    assert b'"failed"' in answer
    assert b"wanted before anything was offered" in answer
    prefill.role.declare([kv.Part("r", 8)])
    prefill.role.layer_done(LAYOUT.layers)
    pushed(prefill, decode, there)


def test_a_peer_that_cannot_be_told_ends_no_other_ones_pushes(ends, caplog):
    """However that comes about."""
    prefill, decode, there = ends
    with Side(kv.Decoder, LAYOUT, "odd") as odd:
        load = odd.role.want("r", odd.role.connect([prefill.engine.address], LIMIT_S), [1], 8)
        handover = prefill.role.begin("r", [1], 8)
        until(lambda: "wanted" in handover.times)
        (link,) = [link for link in prefill.role._links.values() if link.name == "odd"]
        link.peer = braid.engine.Peer(b"no address")
        link.regions = [braid.engine.Descriptor(b"none")] * LAYOUT.layers
        prefill.role.declare([kv.Part("r", 8)])
        prefill.role.layer_done(LAYOUT.layers)
        with pytest.raises(braid.InvalidArgument, match="region descriptor"):
            handover.wait(LIMIT_S)
        assert "'prefill': request 'r': engine address: 10 bytes" in caplog.text
        for _ in range(2):
            pushed(prefill, decode, there)
        load.cancel()
        link.peer = odd.engine.address


def test_one_broken_request_of_a_pass_ends_no_other_ones_pushes(ends, monkeypatch):
    prefill, decode, there = ends
    bad, other = (prefill.role.begin(name, [n], 8) for n, name in enumerate(("bad", "other")))
    load = decode.role.want("other", there, [9], 8)
    monkeypatch.setattr(bad, "pump", broken)
    prefill.role.declare([kv.Part("bad", 8), kv.Part("other", 8)])
    prefill.role.layer_done(LAYOUT.layers)
    with pytest.raises(braid.InternalError, match="request 'bad': TypeError: a broken one"):
        bad.wait(LIMIT_S)
    for ending in (load, other):
        ending.wait(LIMIT_S)
    pushed(prefill, decode, there)


def test_a_word_whose_layers_raise_is_watched_on(caplog):
    found = []

    def computed(parts, layers):
        if parts == ["bad"]:
            broken()
        found.append((parts, layers))

    with braid.Engine("one", nics="none") as engine:
        progress = Progress(engine, 2, computed)
        for parts in (["good"], ["bad"], ["later"]):
            progress.declare(parts)
            progress.bump(2)
        until(lambda: found and found[-1][0] == ["later"])
        progress.close()
    assert "layers 0 to 2 of pass 1" in caplog.text
    assert {parts[0] for parts, _ in found} == {"good", "later"}


BAD = [
    b"",
    b"bkv",
    b"xyz" + bytes(20),
    frame(b"{"),
    frame([1]),
    frame({"no": "kind"}),
    frame({"kind": "want"}),
    frame({"kind": "want", "request": 3, "tag": 1}),
    frame({"kind": "want", "request": "r", "tag": -1}),
    frame({"kind": "took", "request": "r"}),
    frame({"kind": "beat", "requests": 1}),
    frame({"kind": "nonsense"}),
    frame({"kind": "hello", "layout": 5, "strides": None}, struct.pack("<I", 4) + b"none"),
    frame({"kind": "hello"}, b"\xff\xff\xff\xff"),
    frame({"kind": "beat"}, part=1, parts=2),
    frame({"kind": "beat"}, version=9),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_messages_of_nonsense_harm_nobody(ends, number):
    prefill, decode, there = ends
    with braid.Engine("stranger", nics="none", token="a token of tests", hosts="127.0.0.1") as odd:
        for peer in (prefill.engine.address, decode.engine.address):
            odd.send(peer, BAD[number]).wait(LIMIT_S)
        odd.send(prefill.engine.address, frame({"kind": "beat"}, part=0, parts=3)).wait(LIMIT_S)
        still_serves(prefill, decode, there)
    decode.engine.send(prefill.engine.address, BAD[number]).wait(LIMIT_S)  # of a known peer
    still_serves(prefill, decode, there)
    assert prefill.role.counters["refused"] >= 1


@pytest.mark.parametrize("kind", ["want", "pull"])
def test_page_numbers_that_are_cut_off_are_refused(ends, kind, caplog):
    prefill, decode, there = ends
    prefill.role.begin("r", [0], 8, is_computed=True)
    decode.role.want("before", there, [9], 8)  # so that its regions are offered, by another thread
    until(lambda: there.sources[0].offered)
    head = {"kind": kind, "request": "r", "tag": 1, "consumers": 1, "first_page": 0}
    odd = frame({**head, "tokens_pages": 1, "slices": []}, b"123")
    decode.engine.send(prefill.engine.address, odd).wait(LIMIT_S)
    words = f"'{kind}' with 3 bytes of page numbers"
    until(lambda: words in caplog.text)
    assert prefill.role.counters["refused"] == 1
    assert "a message or the clock" not in caplog.text  # no mistake of ours
    still_serves(prefill, decode, there)


NO_TOKENS = [None, "8", True, np.True_, 8.0, -1, 2**63, 2**64]
NO_NAMES = [None, 3, b"r", ["r"], "r\ud800"]
NO_TIMES = ["1", True, -1, float("nan"), [1]]


def is_idle(prefill, decode):
    """Whether nothing was entered on either side."""
    return not (prefill.role._requests or decode.role.loads() or prefill.role.counters["requests"])


@pytest.mark.parametrize("tokens", NO_TOKENS)
def test_tokens_that_are_no_number_are_refused_and_nothing_is_entered(ends, tokens, caplog):
    prefill, decode, there = ends
    words = "request 'r': (tokens: asked for|.* tokens take .* pages; found 1)"
    for is_computed in (False, True):
        with pytest.raises(braid.InvalidArgument, match=words):
            prefill.role.begin("r", [1], tokens, is_computed=is_computed)
    with pytest.raises(braid.InvalidArgument, match=words):
        decode.role.want("r", there, [1], tokens)
    assert is_idle(prefill, decode)
    handover = prefill.role.begin("r", [1], 8)
    with pytest.raises(braid.InvalidArgument, match="request 'r': tokens: asked for"):
        prefill.role.declare([kv.Part("r", tokens)])
    if tokens is not None:
        with pytest.raises(braid.InvalidArgument, match="request 'r': tokens: asked for"):
            prefill.role.computed("r", tokens)
    assert not handover.is_computed()
    still_serves(prefill, decode, there)
    assert "the clock" not in caplog.text


def test_a_prompt_that_cannot_be_in_the_pages_is_refused(ends):
    prefill, decode, there = ends
    with pytest.raises(braid.InvalidArgument, match="tokens: asked for 0 to 8, found 9"):
        prefill.role.begin("r", [1], 9, is_computed=True)
    with pytest.raises(braid.InvalidArgument, match=f"asked for 0 to {8 * PAGES}, found"):
        prefill.role.begin("r", [1], 8 * PAGES + 1)
    for first_page in (-1, True, None, 1.0, 2):
        with pytest.raises(braid.InvalidArgument, match=r"request 'r': .*page"):
            decode.role.want("r", there, [1], 8, first_page=first_page)
    assert is_idle(prefill, decode)
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("prefill_given", [None, "there", [], "another's"])
def test_what_is_no_prefill_of_this_decoder_is_refused(ends, prefill_given):
    prefill, decode, there = ends
    with Side(kv.Decoder, LAYOUT, "other") as other:
        if prefill_given == "another's":
            prefill_given = other.role.connect([prefill.engine.address], LIMIT_S)
        for call in (
            lambda: decode.role.want("r", prefill_given, [1], 8),
            lambda: decode.role.pull("r", prefill_given, [1], [1]),
            lambda: decode.role.renew("r", prefill_given),
            lambda: decode.role.let_go("r", prefill_given),
        ):
            with pytest.raises(braid.InvalidArgument, match=r"request 'r': prefill: asked for"):
                call()
        assert is_idle(prefill, decode)
        still_serves(prefill, decode, there)


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_of_a_request_is_refused(ends, name):
    prefill, decode, there = ends
    for call in (
        lambda: prefill.role.begin(name, [1], 8),
        lambda: decode.role.want(name, there, [1], 8),
        lambda: decode.role.pull(name, there, [1], [1]),
        lambda: decode.role.renew(name, there),
        lambda: decode.role.let_go(name, there),
    ):
        with pytest.raises(braid.InvalidArgument, match=r"request: asked for .*, found "):
            call()
    assert is_idle(prefill, decode)
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("timeout", NO_TIMES)
def test_what_is_no_timeout_is_refused(ends, timeout):
    prefill, decode, there = ends
    for call in (
        lambda: decode.role.want("r", there, [1], 8, timeout=timeout),
        lambda: decode.role.pull("r", there, [1], [1], timeout=timeout),
        lambda: decode.role.connect([prefill.engine.address], timeout),
        lambda: prefill.role.pause("r", timeout),
    ):
        with pytest.raises(braid.InvalidArgument, match=r"timeout: asked for .*, found "):
            call()
    assert is_idle(prefill, decode)
    still_serves(prefill, decode, there)


def broken(*_):
    raise TypeError("a broken one")


class Broken:
    """A time that cannot be compared."""

    __lt__ = broken


def test_one_broken_request_stops_no_other_ones_lease(caplog):
    with Side(kv.Prefiller, LAYOUT, "p", lease=0.5) as p, Side(kv.Decoder, LAYOUT, "d") as d:
        there = d.role.connect([p.engine.address], LIMIT_S)
        bad = p.role.begin("bad", [1], 8)
        other = p.role.begin("other", [2], 8)
        bad.lease_until = Broken()
        with pytest.raises(braid.InternalError, match="request 'bad': TypeError: a broken one"):
            bad.wait(LIMIT_S)
        with pytest.raises(braid.Timeout, match="nobody has renewed its lease"):
            other.wait(LIMIT_S)
        assert "'p': request 'bad'" in caplog.text
        still_serves(p, d, there)


def test_one_broken_load_stops_no_other_ones_deadline(caplog):
    with Side(kv.Prefiller, LAYOUT, "p") as p, Side(kv.Decoder, LAYOUT, "d", silence=0.5) as d:
        there = d.role.connect([p.engine.address], LIMIT_S)
        bad = d.role.want("bad", there, [1], 8, timeout=0.1)
        bad.prefill = None
        other = d.role.want("other", there, [2], 8, timeout=0.3)
        with pytest.raises(braid.Timeout, match="not here within its deadline"):
            other.wait(LIMIT_S)
        assert "'d': request 'bad'" in caplog.text
        bad.prefill = there
        still_serves(p, d, there)


def test_a_decoder_with_a_broken_load_closes_and_releases():
    with Side(kv.Prefiller, LAYOUT, "p") as p, Side(kv.Decoder, LAYOUT, "d", silence=0.5) as d:
        there = d.role.connect([p.engine.address], LIMIT_S)
        bad = d.role.want("bad", there, [1], 8)
        source = there.sources[0]
        until = time.monotonic() + LIMIT_S
        while not source.offered and time.monotonic() < until:
            time.sleep(0.002)
        bad.prefill = None
        d.role.close()
        assert not source.offered


NO_PAGES = [
    ([1.5], "found 1.5"),
    (["1"], "found '1'"),
    ([True], "found True"),
    ([0, True], "found True"),
    ([0, np.True_], "found np.True_"),
    ([0, "1"], "found '1'"),
    ([[1]], r"found \[1\]"),
    ([None], "found None"),
    ([-1], "found -1 at place 0"),
    ([0, -(2**64)], f"found -{2**64} at place 1"),
    ([2**64], f"asked for 0 to {2**64 - 1}, found {2**64}"),
    (np.array([True]), "found elements of bool"),
    (np.array([[1]]), r"found the shape \(1, 1\)"),
    (np.array([-1]), "found -1 at place 0"),
    (5, r"found the shape \(\)"),
    ({1}, r"found the shape \(\)"),
    ("ab", r"found the shape \(\)"),
    (None, r"found the shape \(\)"),
]


@pytest.mark.parametrize(("pages", "words"), NO_PAGES)
def test_what_is_no_page_number_is_refused_as_it_was_given(ends, pages, words):
    prefill, decode, there = ends
    for call in (
        lambda: prefill.role.begin("r", pages, 8),
        lambda: prefill.role.grow("r", pages),
        lambda: decode.role.want("r", there, pages, 8),
        lambda: decode.role.pull("r", there, [1], pages),
        lambda: decode.role.pull("r", there, pages, [1]),
    ):
        with pytest.raises(braid.InvalidArgument, match=f"request 'r': .*{words}"):
            call()
    assert is_idle(prefill, decode)
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("pages", [[2**63], np.array([2**63], np.uint64)])
def test_a_page_of_63_bits_is_told_as_it_was_given(ends, pages):
    prefill, decode, there = ends
    words = rf"page {2**63}: the cache has {PAGES} pages"
    with pytest.raises(braid.InvalidArgument, match=words):
        decode.role.want("r", there, pages, 8)
    prefill.role.begin("r", [0], 8, is_computed=True)
    with pytest.raises(braid.InvalidArgument, match=words):
        decode.role.pull("r", there, pages, [1]).wait(LIMIT_S)
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("pages", [[1], (1,), range(1, 2), [np.int32(1)], np.array([1], np.uint64)])
def test_page_numbers_of_all_kinds_are_copied(ends, pages):
    _, decode, _ = ends
    found = decode.cache.ids(pages, "r")
    assert found.dtype == np.uint64
    assert found.tolist() == [1]
    assert found is not pages
    assert not np.shares_memory(found, np.asarray(pages))


def test_a_page_that_grow_refuses_is_not_entered(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [1], 16)
    with pytest.raises(braid.InvalidArgument, match="request 'r': a page is named twice"):
        prefill.role.grow("r", [1])
    assert handover.pages.tolist() == [1]
    still_serves(prefill, decode, there)


@pytest.mark.parametrize("layers", [2, 1, -5, 2**63, 2**64, True, None, 1.0])
def test_layers_that_no_pass_has_move_nothing(ends, layers):
    prefill, decode, there = ends
    fill(prefill.layers, LAYOUT, 0)
    with pytest.raises(braid.InvalidArgument, match=r"layer_done: layers: asked for .*, found"):
        prefill.role.layer_done(layers)
    prefill.role.begin("r", [0], 8)
    prefill.role.declare([kv.Part("r", 8)])
    load = decode.role.want("r", there, [1], 8)
    with pytest.raises(braid.InvalidArgument, match=r"asked for at most the 3 .*, found 4"):
        prefill.role.layer_done(LAYOUT.layers + 1)
    prefill.role.layer_done(LAYOUT.layers - 1)
    time.sleep(0.1)
    assert not load.done()
    prefill.role.layer_done()
    load.wait(LIMIT_S)
    assert is_right(decode.layers, LAYOUT, 1, 0)
    still_serves(prefill, decode, there)


def test_who_does_not_answer_a_greeting_is_named():
    options = {"nics": "none", "hosts": "127.0.0.1"}
    with braid.Engine("decode", **options) as engine:
        with braid.Engine("deaf", **options) as deaf:  # there, and no prefiller
            address = deaf.address
            assert re.fullmatch(r"'deaf' at 127\.0\.0\.1:\d+", address.where())
            words = f"connect: {re.escape(address.where())}: no answer within 0.2 s"
            with (
                kv.PagedCache(engine, memory(LAYOUT), LAYOUT) as cache,
                kv.Decoder(engine, cache) as role,
                pytest.raises(braid.Timeout, match=words),
            ):
                role.connect([address], 0.2)
        for length in range(len(address.data)):
            assert braid.engine.Peer(address.data[:length]).where()  # whatever it is


def test_times_that_are_none_are_refused_and_endless_ones_are_waited(ends):
    prefill, decode, there = ends
    for wrong in (float("nan"), "1", -1, True):
        handover = prefill.role.begin(f"{wrong}", [3], 8)
        load = decode.role.want(f"{wrong}", there, [5], 8)
        for ending in (handover, load):
            with pytest.raises(braid.InvalidArgument, match="timeout: asked for"):
                ending.wait(wrong)
        prefill.role.cancel(f"{wrong}")
    for name, endless in (("infinity", float("inf")), ("no float", 10**400)):
        assert decode.role.connect([prefill.engine.address], endless) is there
        handover = prefill.role.begin(name, [3], 8, is_computed=True)
        load = decode.role.want(name, there, [5], 8, timeout=endless)
        load.wait(endless)
        handover.wait(endless)
        prefill.role.pause(name, endless, patience=endless)


def test_who_is_silent_for_ever_closes_in_time():
    endless = float("inf")
    with (
        Side(kv.Prefiller, LAYOUT, "p", silence=endless) as p,
        Side(kv.Decoder, LAYOUT, "d", silence=endless) as d,
    ):
        there = d.role.connect([p.engine.address], LIMIT_S)
        p.role.begin("r", [3], 8)
        d.role.want("r", there, [5], 8)
        d.role.close()
        p.role.close()


def test_what_is_no_tail_and_no_part_is_refused(ends):
    prefill, *all_ends = ends
    prefill.role.begin("r", [3], 8)
    with pytest.raises(braid.InvalidArgument, match="request 'r': tail: asked for bytes, found No"):
        prefill.role.tail("r", None)
    for wrong in ([None], None, [("r", 8)]):
        with pytest.raises(braid.InvalidArgument, match="declare: parts: asked for"):
            prefill.role.declare(wrong)
    prefill.role.cancel("r")
    still_serves(prefill, *all_ends)


def test_a_decoder_writes_into_no_array_that_is_read_only(ends):
    """It may be of `bytes`, as np.frombuffer() gives one."""
    _, decode, _ = ends
    layers = memory(LAYOUT)
    layers[1].flags.writeable = False
    with (
        kv.PagedCache(decode.engine, layers, LAYOUT) as cache,
        pytest.raises(
            braid.InvalidArgument, match="decoder: cache: layer 1: asked for an array to write to"
        ),
    ):
        kv.Decoder(decode.engine, cache)

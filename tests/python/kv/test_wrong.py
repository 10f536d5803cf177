"""Bad input: an error on both sides that names it, and both go on serving others."""

import itertools
import json
import logging
import struct
import time
from dataclasses import replace

import pytest
from kv_peers import LAYOUT, PAGES, Side, fill, is_right

import braid
from braid import kv, letters
from braid.kv.post import VERSION

LIMIT_S = 30
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
    monkeypatch.setattr("braid.kv.decoder.VERSION", VERSION - 1)
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
        ([-1, 0], "request 'r': page -1: the cache has"),
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
    with pytest.raises(braid.Cancelled, match="'decode' took it back"):
        handover.wait(LIMIT_S)
    handover = prefill.role.begin("lie", [0], 8, is_computed=True)
    decode.cache.pages = 2 * PAGES
    load = decode.role.want("lie", there, [PAGES + 3], 8)
    decode.cache.pages = PAGES
    with pytest.raises(braid.Cancelled, match=r"request 'lie' at 'prefill': .*peer's region"):
        load.wait(LIMIT_S)
    with pytest.raises(braid.InvalidArgument, match="peer's region"):
        handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_another_length_of_the_prompt_is_told_on_both_sides(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0, 1], 16, is_computed=True)
    load = decode.role.want("r", there, [0], 8)
    with pytest.raises(braid.Cancelled, match="2 pages at 'prefill', 1 at 'decode'"):
        load.wait(LIMIT_S)
    decode.role.want("r", there, [3, 4], 16).wait(LIMIT_S)  # the right one may still come
    handover.wait(LIMIT_S)
    still_serves(prefill, decode, there)


def test_cancelled_before_it_moves(ends):
    prefill, decode, there = ends
    handover = prefill.role.begin("r", [0], 8)  # nothing is computed
    load = decode.role.want("r", there, [1], 8)
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

"""Peers that die, stop, close and come again: an error within its deadline, and nothing hangs."""

import contextlib
import os
import signal
import threading
import time

import engine_peers
import numpy as np
import pytest
from engine_peers import Process, options, pattern

import braid

BYTES = 1 << 20
LEASE_S = 2.0


@pytest.fixture(params=list(engine_peers.WAYS))
def way(request):
    return request.param


@pytest.fixture
def engine(way):
    with braid.Engine(**options(way, "a", lease=LEASE_S)) as made:
        yield made


@pytest.fixture
def other(way):
    with Process(options(way, "b", lease=LEASE_S), BYTES, salt=2) as process:
        yield process


def lost_within(tickets, limit_s):
    """That each ended, the last as PeerLost, and when."""
    began = time.monotonic()
    errors = []
    for ticket in tickets:
        try:
            ticket.wait(limit_s)
        except braid.PeerLost as error:
            errors.append(error)
    assert errors, "all transfers went well"
    assert "'b'" in str(errors[-1])
    return time.monotonic() - began


@pytest.mark.parametrize("pause_ms", [0, 1, 20])
def test_a_killed_peer_is_lost(engine, other, pause_ms):
    region = engine.register(pattern(BYTES, 1))
    engine.write(region, other.descriptor).wait(60)
    tickets = [engine.write(region, other.descriptor) for _ in range(50)]
    time.sleep(pause_ms / 1000)
    other.kill()
    tickets.append(engine.write(region, other.descriptor))
    assert lost_within(tickets, 60) < 20
    region.unregister()  # no transfer has it any more


# As data loaders do: nothing of the engine may live on in them.
def test_a_killed_peer_that_has_forked_is_lost_at_once(way):
    with Process(options(way, "b"), BYTES, salt=2) as other, braid.Engine(**options(way, "a")) as a:
        a.send(other.address, b"x").wait(60)
        child = other("fork")
        try:
            other.kill()
            assert lost_within([a.send(other.address, b"y")], 60) < 10  # the lease is 20 s
            port = int(other.address.where().rpartition(":")[2])
            with braid.Engine(**options(way, "heir", port=port)) as heir:
                heir.send(a.address, b"z").wait(60)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_stopped_peer_is_lost_after_its_lease(engine, other):
    region = engine.register(pattern(BYTES, 1))
    engine.write(region, other.descriptor).wait(60)
    other.stop()
    try:
        took = lost_within([engine.write(region, other.descriptor)], 60)
        assert LEASE_S / 2 < took < 20
    finally:
        other.resume()


def test_a_deadline_of_its_own_ends_a_transfer(way, other):
    with braid.Engine(**options(way, "patient", lease=LEASE_S)) as engine:
        region = engine.register(pattern(BYTES, 1))
        engine.write(region, other.descriptor).wait(60)
        other.stop()
        began = time.monotonic()
        try:
            with pytest.raises((braid.Timeout, braid.PeerLost), match="'b'"):
                engine.write(region, other.descriptor, timeout=0.5).wait(60)
        finally:
            other.resume()
        assert 0.5 <= time.monotonic() - began < 20


def test_a_peer_that_closed_is_lost_and_its_next_engine_is_not(engine, other, way):
    region = engine.register(pattern(BYTES, 1))
    engine.write(region, other.descriptor).wait(60)
    other("close")
    assert lost_within([engine.write(region, other.descriptor)], 60) < 20
    with Process(options(way, "b"), BYTES, salt=3) as again:
        engine.write(region, again.descriptor).wait(60)
        np.testing.assert_array_equal(again("bytes"), pattern(BYTES, 1))


def test_a_region_that_is_gone_is_refused_by_name(engine, other):
    region = engine.register(pattern(BYTES, 1))
    engine.write(region, other.descriptor).wait(60)
    other("unregister")
    with pytest.raises(braid.InvalidArgument, match="region 1 of 'b' was unregistered"):
        engine.write(region, other.descriptor).wait(60)


def test_a_cancelled_transfer_touches_nothing_any_more(engine, other):
    memory = pattern(BYTES, 1)
    region = engine.register(memory)
    engine.write(region, other.descriptor).wait(60)
    for _ in range(10):
        ticket = engine.write(region, other.descriptor)
        ticket.cancel()
        with contextlib.suppress(braid.Cancelled):
            ticket.wait(60)
        assert ticket.error() is None or "took it back" in str(ticket.error())
        memory[:] = pattern(BYTES, 9)  # nobody reads it now
        engine.write(region, other.descriptor).wait(60)
        np.testing.assert_array_equal(other("bytes"), memory)
        memory[:] = pattern(BYTES, 1)


def test_a_disconnected_peer_can_be_reached_again(engine, other):
    region = engine.register(pattern(BYTES, 1))
    for _ in range(3):
        ticket = engine.write(region, other.descriptor)
        engine.disconnect(other.address)
        with contextlib.suppress(braid.Cancelled):
            ticket.wait(60)
    engine.write(region, other.descriptor).wait(60)
    np.testing.assert_array_equal(other("bytes"), pattern(BYTES, 1))


def test_peers_of_two_jobs_do_not_meet(engine):
    with (
        braid.Engine(**options("local", "stranger", token="another")) as stranger,
        pytest.raises(braid.InvalidArgument, match="job"),
    ):
        engine.send(stranger.address, b"hello")


def test_close_is_through_when_nothing_can_land_any_more():
    """`closed` is true from its begin on; a callback that takes long holds its end up."""
    engine = braid.Engine(**options("local", "e"))
    is_in, goes_on = threading.Event(), threading.Event()
    engine.expect(1, 1, callback=lambda _: (is_in.set(), goes_on.wait(30)))
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert is_in.wait(30)
    assert engine.closed
    with pytest.raises(braid.Timeout, match="'e' is not closed"):
        engine.wait_closed(0.05)
    goes_on.set()
    engine.wait_closed(30)
    closing.join(30)


def test_a_callback_beside_close_does_not_say_that_it_is_through():
    """Its own close() returns at once, for it would wait for itself."""
    engine = braid.Engine(**options("local", "e"))
    is_in, closes, has_closed, goes_on = (threading.Event() for _ in range(4))

    def called(_):
        is_in.set()
        closes.wait(30)
        engine.close()
        has_closed.set()
        goes_on.wait(30)

    engine.expect(1, 1, callback=called)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert is_in.wait(30)
    closes.set()
    assert has_closed.wait(30)
    with pytest.raises(braid.Timeout, match="'e' is not closed"):
        engine.wait_closed(0.05)
    goes_on.set()
    engine.wait_closed(30)
    closing.join(30)

"""Transfers under way: one is watched at a time, and none that ended is forgotten."""

import pytest
from kv_peers import LAYOUT, Side

import braid
from braid import kv
from braid.kv.flying import Flying


class FakeTicket:
    def __init__(self):
        self.is_done, self.what, self.callbacks = False, None, []

    def done(self):
        return self.is_done

    def error(self):
        return self.what

    def then(self, callback):
        if not self.is_done:
            self.callbacks.append(callback)
        return not self.is_done

    def cancel(self):
        if not self.is_done:
            self.end(braid.Cancelled("taken back"))

    def end(self, error=None):
        self.is_done, self.what = True, error
        for callback in self.callbacks:
            callback(error)


class Holder:
    """As prefillers and decoders use it."""

    def __init__(self, count):
        self.flying, self.looks = Flying(), 0
        self.tickets = [FakeTicket() for _ in range(count)]
        for ticket in self.tickets:
            self.flying.add(ticket)
        self.flying.watch(self.look)

    def look(self):
        self.looks += 1
        self.flying.landed()
        self.flying.watch(self.look)


def test_two_callbacks_for_any_number_that_end_in_order():
    holder = Holder(80)
    for ticket in holder.tickets:
        assert holder.flying
        ticket.end()
    assert not holder.flying
    assert holder.flying.error is None
    assert holder.looks == 2


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 3, 1, 2), (1, 0, 2, 3), (2, 3, 0, 1)])
def test_all_ends_are_seen_in_whatever_order_they_come(order):
    holder = Holder(4)
    for number in order[:-1]:
        holder.tickets[number].end()
        assert holder.flying
    holder.tickets[order[-1]].end()
    assert not holder.flying


def test_one_that_ended_before_it_could_be_watched():
    holder = Holder(0)
    ended, other = FakeTicket(), FakeTicket()
    ended.end()
    holder.flying.add(ended)
    holder.flying.watch(holder.look)
    assert not holder.flying
    holder.flying.add(other)
    holder.flying.watch(holder.look)
    holder.flying.watch(holder.look)
    assert len(other.callbacks) == 1
    other.end()
    assert not holder.flying


def test_an_error_is_seen_before_what_is_watched_has_ended():
    holder = Holder(3)
    why = braid.PeerLost("gone")
    holder.tickets[2].end(why)
    holder.flying.take_away()
    assert holder.flying.error is why
    assert holder.flying
    for ticket in holder.tickets[:2]:
        ticket.end()
    assert not holder.flying


def test_the_first_error_is_kept():
    holder = Holder(3)
    why = braid.PeerLost("gone")
    holder.tickets[1].end(why)
    holder.tickets[2].end(braid.Timeout("late"))
    holder.flying.watch(holder.look)  # as a tick of the clock does
    assert holder.flying.error is why
    assert holder.flying
    holder.tickets[0].end()
    assert not holder.flying


def test_a_read_that_fails_ends_a_load_whose_first_read_takes_long(monkeypatch):
    with Side(kv.Prefiller, LAYOUT, "prefill") as prefill, Side(kv.Decoder, LAYOUT, "d") as decode:
        there = decode.role.connect([prefill.engine.address], 30)
        prefill.role.begin("r", [0], 8, is_computed=True)
        begun = []
        monkeypatch.setattr(
            decode.engine, "read_pages", lambda *_, **__: begun.append(FakeTicket()) or begun[-1]
        )
        places = [kv.places.Place(0, 0, 1 << 20 | n) for n in range(LAYOUT.layers)]
        monkeypatch.setattr(decode.cache, "places", places)  # a call for each layer
        load = decode.role.pull("r", there, [0], [0])
        assert len(begun) == LAYOUT.layers
        begun[1].end(braid.PeerLost("gone"))
        with pytest.raises(braid.PeerLost):
            load.wait(5)
        assert all(ticket.is_done for ticket in begun)

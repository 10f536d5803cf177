"""Pages without end: a ring of slots, each of which is written again with other bytes when its
taker has compared the ones before.

Every transfer has an immediate of its own, so that a page that is lost, or counted twice, shows as
a wrong count; and bytes of its own, so that a page that is torn, or of an earlier transfer, shows.
"""

from time import monotonic_ns
from typing import Any

import numpy as np

from braid.bench.engine import pattern

_NS = 1_000_000_000
_SEED = 17
_ENDED = b"end"


def _ids(page_bytes: int, slot_bytes: int, number: int) -> tuple[pattern.Ids, pattern.Ids]:
    count = slot_bytes // page_bytes
    return pattern.shuffled(count, _SEED + 2 * number), pattern.shuffled(count, 2 * number)


def give(
    engine: Any,  # noqa: ANN401
    region: Any,  # noqa: ANN401
    remote: Any,  # noqa: ANN401
    memory: pattern.Words,
    word: dict[str, Any],
) -> dict[str, Any]:
    """Writes for so many seconds. [when it was taken, in ns; bytes] for every transfer."""
    page_bytes, slots = word["page_bytes"], word["slots"]
    slot_bytes = memory.nbytes // slots
    rows = memory.reshape(slots, -1)
    places = pattern.base(slot_bytes)
    whole = np.zeros(1, np.uint64)  # both regions, from their beginning
    ends_ns = monotonic_ns() + int(word["seconds"] * _NS)
    done: list[tuple[int, int]] = []
    troubles: list[str] = []
    tickets: dict[int, Any] = {}
    free = list(range(slots))
    slot_of: dict[int, int] = {}
    number = 0
    while True:
        if free and monotonic_ns() < ends_ns:
            slot = slot_of[number] = free.pop()
            np.bitwise_xor(places, pattern.key(number), out=rows[slot])
            source_ids, target_ids = _ids(page_bytes, slot_bytes, number)
            start = np.uint64(slot * (slot_bytes // page_bytes))
            tickets[number] = engine.pages(
                False, [region], [remote], page_bytes, source_ids + start, target_ids + start, 0, 0,
                whole, whole, number, b"%d %d" % (number, slot), 30 * _NS, None,
            )  # fmt: skip
            number += 1
            continue
        if not tickets:
            break
        said = engine.receive(20 * _NS)
        if said is None:
            troubles += [f"not taken within 20 s: {each.what}" for each in tickets.values()]
            troubles += engine.health()
            break
        taken = int(said[0])
        ticket = tickets.pop(taken)
        if not ticket.wait(5 * _NS):
            troubles.append(f"transfer {taken} was taken, and its ticket does not end")
        elif ticket.error() is not None:
            troubles.append(f"transfer {taken}: {ticket.error()}")
        free.append(slot_of.pop(taken))
        done.append((monotonic_ns(), slot_bytes))
    return {"done": done, "troubles": troubles}


def tell_end(engine: Any, peer: Any) -> None:  # noqa: ANN401
    """Says that no more will come."""
    engine.message(peer, "notify", _ENDED, None, 20 * _NS, None).wait(20 * _NS)


def take(engine: Any, giver: Any, memory: pattern.Words, word: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Compares what comes, until the end is told: how many transfers, wrong bytes, wrong counts."""
    page_bytes, slots = word["page_bytes"], word["slots"]
    slot_bytes = memory.nbytes // slots
    pages = slot_bytes // page_bytes
    rows = memory.reshape(slots, -1)
    places = pattern.base(slot_bytes)
    seen: set[int] = set()
    wrong = miscounted = 0
    troubles: list[str] = []
    while True:
        came = engine.take_notification(25 * _NS)
        if came is None:
            troubles.append(f"nothing came for 25 s after {len(seen)} transfers")
            troubles += engine.health()
            break
        if came[0] == _ENDED:
            break
        number, slot = map(int, came[0].split())
        if number in seen:
            troubles.append(f"transfer {number} was told twice")
        seen.add(number)
        if not engine.expect(number, pages, None, None).wait(5 * _NS):
            troubles.append(f"transfer {number}: {engine.count(number)} pages of {pages} counted")
            miscounted += 1
        wrong += pattern.wrong_bytes(
            rows[slot], places, number, page_bytes, *_ids(page_bytes, slot_bytes, number)
        )
        engine.message(giver, "send", b"%d" % number, None, 30 * _NS, None)
    # What is left of a count now was counted once too often.
    twice = sum(engine.count(each) for each in seen)
    return {"taken": len(seen), "wrong_bytes": wrong, "miscounted": miscounted,
            "counted_twice": twice, "troubles": troubles}  # fmt: skip

"""One process with an engine: it does what lines of JSON on standard input say, and answers each
with a line. `python -m braid.bench.engine.peer`; player.py is the other end.
"""

import gc
import json
import sys
from time import monotonic_ns, perf_counter_ns
from typing import Any

import numpy as np

from braid import _braid
from braid.bench.engine import pattern, stream
from braid.bench.engine.window import Window

_NS = 1_000_000_000
_MOST_PAGES = 1 << 16  # of a call
_WHOLE = np.zeros(1, np.uint64)  # both regions, from their beginning


class Peer:
    """The engine and its memory."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.region: Any = None
        self.remote: Any = None
        self.other: Any = None
        self.memory: pattern.Words = np.empty(0, np.uint64)
        self.places: pattern.Words = np.empty(0, np.uint64)

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        """Makes both. "nics" are pairs of provider and address; none: copies on this host."""
        self.engine = engine_of(word)
        self.places = pattern.base(word["nbytes"])
        self.memory = np.zeros_like(self.places)
        self.region = self.engine.register_buffer(self.memory)
        return {
            "address": self.engine.address().hex(),
            "descriptor": self.engine.descriptor(self.region).hex(),
        }

    def meet(self, word: dict[str, Any]) -> dict[str, Any]:
        """Takes the other one's address and memory, and connects to it."""
        self.remote = self.engine.import_region(bytes.fromhex(word["descriptor"]))
        self.other = self.engine.import_peer(bytes.fromhex(word["address"]))
        ticket = self.engine.message(self.other, "connect", b"", None, 20 * _NS, None)
        end(ticket, 20)
        return {}

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """The pattern under a number; without one: what no pattern has."""
        if word["number"] is None:
            self.memory[:] = 0
        else:
            np.bitwise_xor(self.places, pattern.key(word["number"]), out=self.memory)
        return {}

    def work(self, word: dict[str, Any]) -> dict[str, Any]:
        """The engine's own thread knows when there is something to do."""
        del word
        return {}

    rest = work

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """How many bytes are wrong after all pages were written once, and whether the count is."""
        imm, (source_ids, target_ids) = word["imm"], all_ids(word)
        end(self.engine.expect(imm, len(target_ids), None, None), 20)
        wrong = pattern.wrong_bytes(
            self.memory, self.places, word["number"], word["page_bytes"], source_ids, target_ids
        )
        return {"wrong_bytes": wrong, "too_many": self.engine.count(imm)}

    def pages(self, word: dict[str, Any]) -> dict[str, Any]:
        """So many pages, `repeats` times: us for each. In one call; more than 65,536 in several at
        once, for longer lists do not find room on the engine's board beside each other.
        """
        ids = all_ids({**word, "at_once": 1})
        return {"samples_us": [self._pages(word, *ids) for _ in range(word["repeats"])]}

    def several(self, word: dict[str, Any]) -> dict[str, Any]:
        """A stream of calls of pages, `at_once` of them under way, each of pages that are its own
        while it is: us for each, the mean of `at_once` that ended, `repeats` times.
        """
        at_once = word["at_once"]
        sources, targets = shares(word)
        under_way = Window[Any](at_once, lambda ticket: end(ticket, 60))
        for number in range(word["repeats"] * at_once):
            under_way.make_room()
            place = number % at_once
            under_way.add(self.begin_pages(word, sources[place], targets[place]))
        return {"samples_us": under_way.end()}

    def _pages(
        self, word: dict[str, Any], source_ids: pattern.Ids, target_ids: pattern.Ids
    ) -> float:
        start = perf_counter_ns()
        tickets = [
            self.begin_pages(word, source_ids[cut : cut + _MOST_PAGES],
                             target_ids[cut : cut + _MOST_PAGES])
            for cut in range(0, len(source_ids), _MOST_PAGES)
        ]  # fmt: skip
        for ticket in tickets:
            end(ticket, 60)
        return (perf_counter_ns() - start) / 1e3

    def begin_pages(
        self, word: dict[str, Any], source_ids: pattern.Ids, target_ids: pattern.Ids
    ) -> Any:  # noqa: ANN401
        """The ticket of one call."""
        return self.engine.pages(
            False, [self.region], [self.remote], word["page_bytes"], source_ids, target_ids, 0, 0,
            _WHOLE, _WHOLE, word["imm"], b"", 60 * _NS, None,
        )  # fmt: skip

    def write(self, word: dict[str, Any]) -> dict[str, Any]:
        """One write after the other, each waited for: us for one, the mean of `count`."""
        size, count = word["page_bytes"], word["count"]
        places = [(int(a) * size, int(b) * size) for a, b in zip(
            pattern.shuffled(count, pattern.SOURCE), pattern.shuffled(count, pattern.TARGET),
            strict=True)]  # fmt: skip
        times = []
        for _ in range(word["repeats"]):
            start = perf_counter_ns()
            for source, target in places:
                end(self.engine.write(self.region, source, self.remote, target, size, word["imm"],
                                       b"", 60 * _NS, None), 60)  # fmt: skip
            times.append((perf_counter_ns() - start) / 1e3 / count)
        return {"samples_us": times}

    def stream(self, word: dict[str, Any]) -> dict[str, Any]:
        """Writes for `seconds`; the other one takes them."""
        return stream.give(self.engine, self.region, self.remote, self.memory, word)

    def take(self, word: dict[str, Any]) -> dict[str, Any]:
        """Takes what stream() writes."""
        return stream.take(self.engine, self.other, self.memory, word)

    def end(self, word: dict[str, Any]) -> dict[str, Any]:
        """Tells the other one that stream() is over."""
        del word
        stream.tell_end(self.engine, self.other)
        return {}

    def health(self, word: dict[str, Any]) -> dict[str, Any]:
        """What the engine says of itself."""
        del word
        return {"lines": self.engine.health(), "stats": self.engine.stats()}

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


def shares(word: dict[str, Any]) -> tuple[list[pattern.Ids], list[pattern.Ids]]:
    """Page numbers of the calls that are under way at a time, on both sides."""
    count, layers, at_once = word["count"], word.get("layers", 1), word.get("at_once", 1)
    return (
        pattern.shares(count, pattern.SOURCE, layers, at_once),
        pattern.shares(count, pattern.TARGET, layers, at_once),
    )


def all_ids(word: dict[str, Any]) -> tuple[pattern.Ids, pattern.Ids]:
    """Those of all of them."""
    sources, targets = shares(word)
    return np.concatenate(sources), np.concatenate(targets)


def engine_of(word: dict[str, Any], device: int = -1) -> _braid.engine.Engine:
    """An engine as "open" asks for it."""
    nics = [tuple(nic) for nic in word["nics"]]
    return _braid.engine.Engine(
        word["name"], word.get("hosts", []), 0, word["token"], nics, device, not nics,
        int(word.get("lease_s", 20) * _NS), 60 * _NS, 16384, word.get("host_id", ""),
        "auto",
    )  # fmt: skip


def end(ticket: Any, timeout_s: float) -> None:  # noqa: ANN401
    if not ticket.wait(int(timeout_s * _NS)):
        raise TimeoutError(f"{ticket.what}: not done in {timeout_s} s")
    ticket.raise_if_failed()


def main(peer: Peer) -> None:
    """Answers until its input ends.

    What imports have left is kept from Python's collections: to go through all that torch has takes
    80 to 200 ms, in the midst of a request. Servers do the same when they have started.
    """
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        word = json.loads(line)
        try:
            answer = getattr(peer, word["do"])(word)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["now_ns"] = monotonic_ns()
        print(json.dumps(answer), flush=True)  # noqa: T201
    peer.close()


if __name__ == "__main__":
    main(Peer())

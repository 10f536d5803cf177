"""braid.kv as one of those who are measured, and a prefill with a stand-in for computing."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from braid.bench.engine.contestants import Case, Pair, introduce
from braid.bench.engine.player import Player
from braid.bench.kv.peer import LAYERS
from braid.kv.places import FIRST_PAGES, MOST_PAGES

_CALL_S = 90.0
CALL_PAGES = FIRST_PAGES, MOST_PAGES
"""As braid.kv has it."""


class Servers:
    """A prefiller's process and a decoder's. Requests are pushed or pulled."""

    def __init__(
        self, way: str, nbytes: int, *, module: str = "peer", also: Sequence[str] = ()
    ) -> None:
        """`module` of this folder has the processes, which are told `also`."""
        command = [sys.executable, "-m", f"braid.bench.kv.{module}"]
        self.prefill = Player("prefill", [*command, "prefill", *also])
        self.decode = Player("decode", [*command, "decode", *also])
        nics = [] if way == "local" else [[way, "127.0.0.1"]]
        introduce(self.prefill, self.decode, nbytes=nbytes, token=secrets.token_hex(16), nics=nics)
        self._case: Case | None = None
        self._call_pages = CALL_PAGES
        self._number = 0

    def close(self) -> None:
        """Both; a second time, too."""
        self.decode.close()
        self.prefill.close()

    def take(self, case: Case) -> None:
        """Caches of such pages on both sides."""
        if case != self._case:
            self._case = case
            count = case.count * case.at_once
            self.prefill.ask("case", count=count, page_bytes=case.page_bytes)
            self.decode.ask("case", count=count, page_bytes=case.page_bytes)

    def calls(self, pages: tuple[int, int]) -> None:
        """Of the first call at most, and of the others, on both sides."""
        if pages != self._call_pages:
            self._call_pages = pages
            for player in (self.prefill, self.decode):
                player.ask("calls", pages=pages)

    def name(self) -> str:
        """Of the next request."""
        self._number += 1
        return f"r{self._number}"

    def get(self, case: Case, number: int, *, is_push: bool) -> dict[str, Any]:
        """So many requests that are computed, one behind the other: what the decoder says."""
        self.take(case)
        names = [self.name() for _ in range(number)]
        self.prefill.ask("begin", names=names, count=case.count, at_once=case.at_once)
        return self.decode.ask(
            "fetch", _CALL_S, names=names, count=case.count, at_once=case.at_once, is_push=is_push
        )


class Requests:
    """Requests that are pushed, or pulled. A sample is one, or the mean of as many as are under way
    at a time.
    """

    def __init__(
        self, servers: Servers, *, is_push: bool, call_pages: tuple[int, int] = CALL_PAGES
    ) -> None:
        """call_pages: of a request's first call of the engine, and of each of the others."""
        self.name = f"braid.kv, {'push' if is_push else 'pull'}"
        if call_pages != CALL_PAGES:
            self.name += ", calls of {} and {} pages".format(*call_pages)
        self._servers = servers
        self._is_push = is_push
        self._call_pages = call_pages

    def close(self) -> None:
        """The processes."""
        self._servers.close()

    def check(self, case: Case, number: int) -> int:
        """All pages once."""
        prefill, decode = self._servers.prefill, self._servers.decode
        self._servers.take(case)
        prefill.ask("fill", number=number)
        decode.ask("fill", number=None)
        self._get(case, case.at_once)
        count = case.count * case.at_once
        found = decode.ask("check", number=number, count=count, page_bytes=case.page_bytes)
        return int(found["wrong_bytes"])

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """As Warm."""
        number = (repeats + _untimed(case)) * case.at_once
        found = self._get(case, number)
        return _timed([float(us) for us in found["samples_us"]], case)

    def steps_us(self, case: Case, number: int) -> dict[str, list[float]]:
        """From one thing that happens to a request, one at a time, to the next: us of each of so
        many requests, without the first.
        """
        there = self._get(case, number + 1)["times"]
        here = self._servers.prefill.ask("given", names=list(there)[1:])["times"]
        steps = _PUSHED if self._is_push else _PULLED
        times = [
            {**{f"there {event}": when for event, when in found.items()}, **there[name]}
            for name, found in here.items()
        ]
        return {
            what: [max((each[end] - each[begin]) * 1e6, _LEAST_US) for each in times]
            for what, begin, end in steps
        }

    def _get(self, case: Case, number: int) -> dict[str, Any]:
        self._servers.calls(self._call_pages)
        return self._servers.get(case, number, is_push=self._is_push)

    def behind_compute_us(self, case: Case, layer_ms: float) -> tuple[float, float]:
        """A prefill that computes so long for each layer: us of computing, and until all pages were
        there.
        """
        prefill, decode = self._servers.prefill, self._servers.decode
        self._servers.take(case)
        self._servers.calls(self._call_pages)
        name = self._servers.name()
        decode.tell("fetch", names=[name], count=case.count, is_push=True)
        computed = prefill.ask("prefill", _CALL_S, name=name, count=case.count, layer_ms=layer_ms)
        ended = decode.answer(_CALL_S)["ended_ns"]
        began = computed["began_ns"]
        return (computed["computed_ns"] - began) / 1e3, (ended - began) / 1e3


_LEAST_US = 0.001
_PUSHED = (
    ("1. want: its checks", "called", "queued"),
    ("2. the letter, until the prefiller has looked it through", "queued", "there wanted"),
    ("3. the prefiller's write has begun", "there wanted", "there first page"),
    ("4. the last page counts", "there first page", "last page"),
    ("5. the load ends", "last page", "ended"),
    ("6. who waited goes on", "ended", "waited"),
    ("want, until it returns", "called", "returned"),
    ("all", "called", "waited"),
)
"""What happens, from when to when; "there": at the prefiller. One clock has all of a host."""
_PULLED = (
    ("1. pull: its checks", "called", "queued"),
    ("2. the letter, and all reads have ended", "queued", "last page"),
    ("3. the prefiller has held its pages", "last page", "ended"),
    ("4. who waited goes on", "ended", "waited"),
    ("pull, until it returns", "called", "returned"),
    ("all", "called", "waited"),
)


class Warm:
    """A pair whose calls are warmed up as requests are: the first one is not timed, which is behind
    another process's work, and of a stream neither the first nor the last that are under way.
    """

    def __init__(self, pair: Pair, name: str = "") -> None:
        """Under a name of its own, or the pair's."""
        self.name = name or pair.name
        self._pair = pair

    def close(self) -> None:
        """The pair's processes."""
        self._pair.close()

    def check(self, case: Case, number: int) -> int:
        """As the pair's."""
        return self._pair.check(case, number)

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """So many that are timed."""
        return _timed(self._pair.samples_us(case, repeats + _untimed(case)), case)


def _untimed(case: Case) -> int:
    return 2 if case.at_once > 1 else 1


def _timed(samples: list[float], case: Case) -> list[float]:
    return samples[1:-1] if case.at_once > 1 else samples[1:]


def whole_layers(case: Case, layers: int = LAYERS) -> Case:
    """As many pages as all layers share evenly."""
    return replace(case, count=max(layers, case.count // layers * layers))

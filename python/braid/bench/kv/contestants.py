"""braid.kv as one of those who are measured, and a prefill with a stand-in for computing."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.bench.engine.contestants import Case, introduce
from braid.bench.engine.player import Player
from braid.bench.kv.peer import LAYERS

_CALL_S = 90.0


@dataclass
class _State:
    case: Case | None = None
    number: int = 0


class Requests:
    """A prefiller's process and a decoder's. Pages are pushed or pulled; a sample is a request."""

    def __init__(
        self,
        way: str,
        nbytes: int,
        *,
        is_push: bool,
        module: str = "peer",
        also: Sequence[str] = (),
    ) -> None:
        """`module` of this folder has the processes, which are told `also`."""
        self.name = f"braid.kv, {'push' if is_push else 'pull'}"
        self._is_push = is_push
        command = [sys.executable, "-m", f"braid.bench.kv.{module}"]
        self._prefill = Player("prefill", [*command, "prefill", *also])
        self._decode = Player("decode", [*command, "decode", *also])
        nics = [] if way == "local" else [[way, "127.0.0.1"]]
        introduce(
            self._prefill, self._decode, nbytes=nbytes, token=secrets.token_hex(16), nics=nics
        )
        self._state = _State()

    def close(self) -> None:
        self._decode.close()
        self._prefill.close()

    def check(self, case: Case, number: int) -> int:
        self._take(case)
        self._prefill.ask("fill", number=number)
        self._decode.ask("fill", number=None)
        self.samples_us(case, 1)
        found = self._decode.ask(
            "check", number=number, count=case.count, page_bytes=case.page_bytes
        )
        return int(found["wrong_bytes"])

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        self._take(case)
        names = [self._name() for _ in range(repeats)]
        self._prefill.ask("begin", names=names, count=case.count)
        found = self._decode.ask(
            "fetch", _CALL_S, names=names, count=case.count, is_push=self._is_push
        )
        return [float(us) for us in found["samples_us"]]

    def behind_compute_us(self, case: Case, layer_ms: float) -> tuple[float, float]:
        """A prefill that computes so long for each layer: us of computing, and until all pages were
        there.
        """
        self._take(case)
        name = self._name()
        self._decode.tell("fetch", names=[name], count=case.count, is_push=True)
        computed = self._prefill.ask(
            "prefill", _CALL_S, name=name, count=case.count, layer_ms=layer_ms
        )
        ended = self._decode.answer(_CALL_S)["ended_ns"]
        began = computed["began_ns"]
        return (computed["computed_ns"] - began) / 1e3, (ended - began) / 1e3

    def _name(self) -> str:
        self._state.number += 1
        return f"r{self._state.number}"

    def _take(self, case: Case) -> None:
        if case != self._state.case:
            self._state.case = case
            self._prefill.ask("case", count=case.count, page_bytes=case.page_bytes)
            self._decode.ask("case", count=case.count, page_bytes=case.page_bytes)


def whole_layers(case: Case, layers: int = LAYERS) -> Case:
    """As many pages as all layers share evenly."""
    return replace(case, count=max(layers, case.count // layers * layers))

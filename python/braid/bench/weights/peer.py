"""One rank of a job; `python -m braid.bench.weights.peer`. It speaks as braid.bench.engine.peer
does.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import numpy as np

import braid
from braid import weights
from braid.bench.engine import peer
from braid.engine import Descriptor
from braid.weights.holdings import as_bytes

WIDTH = 8192
"""Of matrices, where there are bytes enough for 64 rows of that."""
_LEAST_WIDTH = 64
WAIT_S = 120.0
ODD, STEP, SHIFT = 2654435761, 977, 7
"""What a version makes of a place: the lower 16 bits of (place * ODD + version * STEP) >> SHIFT."""


def shapes_of(nbytes: int, count: int) -> dict[str, tuple[int, int]]:
    """`count` matrices of float16, of at most so many bytes together; a multiple of 64 rows each.
    The least there are is 64 rows of 64.
    """
    each = nbytes // count // 2
    width = WIDTH
    while width > _LEAST_WIDTH and each < 64 * width:
        width //= 2
    rows = max(64, each // width // 64 * 64)
    kinds = ("up", "down")
    return {f"layers.{n // 2}.{kinds[n % 2]}": (rows, width) for n in range(count)}


def cut_of(name: str, side: str) -> weights.Shard:
    """Trainers hold rows; workers rows of every other matrix, and columns of the rest."""
    return weights.Shard(1 if side == "worker" and name.endswith("down") else 0)


def parameters_of(
    word: dict[str, Any], zeros: Callable[[Any, str], Any]
) -> tuple[dict[str, Any], list[weights.Parameter], dict[str, Any]]:
    """This rank's arrays, its parameters, and where they are in the whole."""
    arrays, boxes, out = {}, {}, []
    for name, shape in shapes_of(word["nbytes"], word["tensors"]).items():
        cut = cut_of(name, word["side"])
        ((start, size),) = weights.boxes(shape, (word["count"],), (word["rank"],), [cut])
        arrays[name] = zeros(size, "float16")
        boxes[name] = start, size
        out.append(weights.Parameter(name, arrays[name], shape, start=start))
    return arrays, out, boxes


class Peer(peer.Peer):
    """A trainer's or a worker's rank."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[str, Any] = {}
        self._boxes: dict[str, Any] = {}
        self._side: Any = None
        self._plain: Any = None
        self._memory: Any = None
        self._table: Any = None
        self._told: list[bytes] = []

    def engine_of(self, word: dict[str, Any]) -> braid.Engine:
        """This rank's."""
        nics: Any = [f"{provider}:{where}" for provider, where in word["nics"]] or "none"
        return braid.Engine(
            f"{word['side']} {word['rank']}", nics=nics, token=word["token"],
            local=not word["nics"], hosts=word["hosts"], lease=30, timeout=WAIT_S,
        )  # fmt: skip

    def zeros(self, size: Any, dtype: str) -> Any:  # noqa: ANN401
        """An array, where this rank has its parameters."""
        return np.zeros(size, dtype)

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        self.engine = self.engine_of(word)
        self._arrays, parameters, self._boxes = parameters_of(word, self.zeros)
        if word["side"] == "trainer":
            self._side = weights.Sender(
                self.engine, word["rank"], parameters, checks=word["checks"], **word["sender"]
            )
        else:
            self._side = weights.Receiver(
                self.engine, word["rank"], parameters, mode="in place", patience=WAIT_S
            )
        # Of the whole model's size: each trainer's plain writes have a part of their own there.
        total = word["nbytes"]
        self._memory = self.zeros(total, "uint8")
        self._plain = self.engine.register(self._memory)
        return {
            "holdings": self._side.describe().decode(),
            "plain": self._plain.descriptor.data.hex(),
        }

    def join(self, word: dict[str, Any]) -> dict[str, Any]:
        self._told = [text.encode() for text in word["told"]]
        began = monotonic_ns()
        self._table = self._side.join(self._told)
        took_ms = (monotonic_ns() - began) / 1e6
        # Memory that was never written to is one page of zeroes, which a cache holds: to write out
        # of it would be faster than anything a model can do.
        if word["side"] == "trainer":
            self._memory[: sum(self._amounts(word["rank"]).values())] = word["rank"] + 1
        return {"plan_ms": took_ms, "routes": len(self._table.routes)}

    def _amounts(self, rank: int) -> dict[int, int]:
        """Bytes from a trainer to each worker."""
        found: dict[int, int] = {}
        for route in self._table.from_trainer(rank):
            found[route.target] = found.get(route.target, 0) + 2 * route.elements()
        return found

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """What a version makes of every parameter: numbers by their places in the whole."""
        for name, array in self._arrays.items():
            array.view(np.uint16)[...] = self._wanted(name, word["number"])
        return {}

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """How many bytes of this worker are not the version's."""
        self._side.wait(word["number"], WAIT_S)
        wrong = sum(
            2 * int((array.view(np.uint16) != self._wanted(name, word["number"])).sum())
            for name, array in self._arrays.items()
        )
        return {"wrong_bytes": wrong}

    def _wanted(self, name: str, number: int) -> Any:  # noqa: ANN401
        (row, column), (rows, columns) = self._boxes[name]
        places = np.arange(row, row + rows, dtype=np.uint32)[:, None] * np.uint32(WIDTH)
        places = places + np.arange(column, column + columns, dtype=np.uint32)[None]
        mixed = places * np.uint32(ODD) + np.uint32(number * STEP)
        return (mixed >> SHIFT).astype(np.uint16)

    def update(self, word: dict[str, Any]) -> dict[str, Any]:
        began = monotonic_ns()
        self._side.update(word["version"], WAIT_S)
        return {"began_ns": began, "ended_ns": monotonic_ns()}

    def plain(self, word: dict[str, Any]) -> dict[str, Any]:
        """As many bytes to each worker as the plan sends it, in one write each."""
        amounts = self._amounts(word["rank"])
        began = monotonic_ns()
        tickets, at = [], 0
        for target, nbytes in amounts.items():
            there = Descriptor(bytes.fromhex(word["plain"][target]))
            # Each trainer has a part of its own there, as with the plan.
            begin = nbytes * word["rank"]
            tickets.append(
                self.engine.write(self._plain, there, nbytes, src_offset=at, dst_offset=begin)
            )
            at += nbytes
        for ticket in tickets:
            ticket.wait(WAIT_S)
        return {"began_ns": began, "ended_ns": monotonic_ns()}

    def health(self, word: dict[str, Any]) -> dict[str, Any]:
        del word
        digest = int(sum(int(as_bytes(a).sum(dtype=np.uint64)) for a in self._arrays.values()))
        return {"lines": self.engine.health(), "digest": digest}


if __name__ == "__main__":
    peer.main(Peer())

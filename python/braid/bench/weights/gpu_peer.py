"""One rank of a job whose tensors lie on a GPU: speaks as peer.py does.
`python -m braid.bench.weights.gpu_peer PLACE`, "cuda:0" and so on; with "cpu" torch's memory of the
host, which is a trial of all but the GPU.
"""

import sys
from typing import Any

import torch

import braid
from braid import weights
from braid.bench.engine import peer as engine_peer
from braid.bench.weights import peer

_PART_ELEMENTS = 1 << 25
"""Are made at a time."""


class GpuPeer(peer.Peer):
    """A trainer's or a worker's rank."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = torch.device(place)
        if self._place.type == "cuda":
            torch.cuda.set_device(self._place)

    def engine_of(self, word: dict[str, Any]) -> braid.Engine:
        """As peer.py, for one host."""
        return braid.Engine(
            f"{word['side']} {word['rank']}", nics="none", token=word["token"],
            device=self._place.index, hosts=word["hosts"], lease=30, timeout=peer.WAIT_S,
        )  # fmt: skip

    def zeros(self, size: weights.pieces.Shape | int, dtype: str) -> Any:  # noqa: ANN401
        """As peer.py."""
        found = torch.zeros(size, dtype=getattr(torch, dtype), device=self._place)
        self._settle()
        return found

    def join(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        answer = super().join(word)
        self._settle()
        return answer

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        for name, array in self._arrays.items():
            bits = array.view(torch.int16)
            for rows in self._parts(array):
                bits[rows] = self._wanted_rows(name, word["number"], rows)
        self._settle()
        return {}

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        self._side.wait(word["number"], peer.WAIT_S)
        wrong = 0
        for name, array in self._arrays.items():
            bits = array.view(torch.int16)
            for rows in self._parts(array):
                wanted = self._wanted_rows(name, word["number"], rows)
                wrong += 2 * int((bits[rows] != wanted).sum())
        return {"wrong_bytes": wrong}

    def _parts(self, array: torch.Tensor) -> list[slice]:
        rows, columns = array.shape
        step = max(1, _PART_ELEMENTS // columns)
        return [slice(begin, min(rows, begin + step)) for begin in range(0, rows, step)]

    def _wanted_rows(self, name: str, number: int, part: slice) -> torch.Tensor:
        """The bits of peer.wanted(), as numbers with a sign, for which torch has no other type."""
        (row, column), (_, columns) = self._boxes[name]
        rows = torch.arange(row + part.start, row + part.stop, device=self._place)
        places = rows[:, None] * peer.WIDTH + torch.arange(
            column, column + columns, device=self._place
        )
        places.mul_(peer.ODD).add_(number * peer.STEP).bitwise_and_(0xFFFF_FFFF)
        return places.bitwise_right_shift_(peer.SHIFT).to(torch.int16)

    def _settle(self) -> None:
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)

    def health(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py, without what only the host's memory has."""
        del word
        return {"lines": self.engine.health()}


if __name__ == "__main__":
    engine_peer.main(GpuPeer(sys.argv[1]))

"""A prefiller's or a decoder's process whose pages are in GPU memory: speaks as peer.py does.
`python -m braid.bench.kv.gpu_peer ROLE LAYERS DEVICE GAP`; with the device "cpu" torch's memory of
the host, which is a trial of all but the GPU.
"""

import sys
from typing import Any

import torch

import braid
from braid.bench.engine import pattern
from braid.bench.engine import peer as engine_peer
from braid.bench.engine.gpu_peer import fill, wrong_words
from braid.bench.kv import peer


class GpuPeer(peer.Peer):
    """One side."""

    def __init__(self, role: str, layers: int, where: str, gap: int) -> None:
        super().__init__(role, layers, gap)
        self._where = where
        self.device = 0 if where == "cuda" else None
        self.words = torch.zeros(0, dtype=torch.int64)

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        self.engine = braid.Engine(
            word["name"], nics="none", token=word["token"], device=self.device, lease=20,
            timeout=60.0,
        )  # fmt: skip
        self.words = torch.zeros(word["nbytes"] // 8, dtype=torch.int64, device=self._where)
        self._settle()
        return {"address": self.engine.address.data.hex(), "descriptor": ""}

    def begin_of_pages(self) -> int:
        """As peer.py."""
        return int(self.words.data_ptr())

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        if word["number"] is None:
            self.words.zero_()
        else:
            fill(self.words, word["number"])
        self._settle()
        return {}

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        count, size = word["count"], word["page_bytes"]
        wrong = wrong_words(
            self.pages_of(self.words, count, size), word["number"], size,
            self.all_ids(count, pattern.SOURCE), self.all_ids(count, pattern.TARGET),
        )  # fmt: skip
        return {"wrong_bytes": 8 * wrong, "too_many": 0}

    def _settle(self) -> None:
        if self.device is not None:
            torch.cuda.synchronize()


if __name__ == "__main__":
    engine_peer.main(GpuPeer(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))

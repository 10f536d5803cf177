"""What ranks of several nodes tell each other through torch's store: nothing that is measured."""

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from braid import launched
from braid.bench.crew import Crew

_TIMEOUT = timedelta(seconds=300)
_WORDS = 240


class StoreCrew(Crew):
    """The ranks of the launch. Rank 0 serves the store one port above MASTER_PORT, which a launcher
    may have taken itself.
    """

    def __init__(self) -> None:
        from torch.distributed import TCPStore

        self.rank, self.size, self.local_rank = (
            launched.rank(),
            launched.size(),
            launched.local_rank(),
        )
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        port = int(os.environ.get("MASTER_PORT", "29500")) + 1
        self._store = TCPStore(address, port, self.size, self.rank == 0, _TIMEOUT)
        self._round = 0

    def exchange(self, mine: Any) -> list[Any]:  # noqa: ANN401 - JSON
        """Everybody's, in rank order."""
        self._round += 1
        self._store.set(f"{self._round} {self.rank}", json.dumps(mine))
        all_of = [json.loads(self._store.get(f"{self._round} {r}")) for r in range(self.size)]
        if self._round > 1:  # who is in this round has read the one before
            self._store.delete_key(f"{self._round - 1} {self.rank}")
        return all_of

    def close(self) -> None:
        """The store goes when nobody needs it any more."""
        self.exchange("")
        self._store.set(f"gone {self.rank}", "")
        if self.rank == 0:
            self._store.wait([f"gone {rank}" for rank in range(self.size)], _TIMEOUT)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.exchange("")

    def agree(self, *numbers: int) -> list[int]:
        """Rank 0's numbers."""
        return [int(number) for number in self.exchange(numbers)[0]]

    def total(self, number: int) -> int:
        """The sum over ranks."""
        return sum(self.exchange(number))

    def slowest(self, times: Sequence[float]) -> list[float]:
        """Element by element, the largest over ranks."""
        return [max(row) for row in zip(*self.rows(times), strict=True)]

    def every(self, number: float) -> list[float]:
        """Each rank's, in rank order."""
        return [float(one) for one in self.exchange(number)]

    def rows(self, times: Sequence[float]) -> list[list[float]]:
        """Each rank's times, in rank order."""
        return [[float(one) for one in row] for row in self.exchange(list(times))]

    def least(self, number: int) -> int:
        """The smallest over ranks."""
        return int(min(self.exchange(number)))

    def first_words(self, words: str) -> str:
        """The lowest rank's words that are not empty."""
        found = self.exchange(" ".join(words.split())[:_WORDS])
        return next((one for one in found if one), "")

"""Who takes part in a case, and room for their buffers on the GPU."""

from collections.abc import Sequence

import torch

from braid.bench.contestant import Contestant, Shelf
from braid.bench.crew import Crew
from braid.bench.fit import fitting, merged
from braid.cases.gpu import GpuCase

_NO_ROOM = "its buffers do not fit in the GPU's memory beside the others"


class Seats:
    """Keeps buffers from case to case, as long as there is room."""

    def __init__(self, crew: Crew, contestants: Sequence[Contestant]) -> None:
        self._crew, self._contestants = crew, contestants
        self._held: dict[Shelf, None] = {}  # every buffer seen so far, in the same order everywhere

    def choose(
        self, case: GpuCase, groups: frozenset[str]
    ) -> tuple[list[Contestant], dict[str, str]]:
        """braid and those of `groups` that can run the case and fit, and why others do not.
        Nobody when not even braid fits. Collective.
        """
        absent: dict[str, str] = {}
        able: list[Contestant] = []
        for contestant in self._contestants:
            if contestant.group not in {"braid", *groups} or not contestant.is_for(case.op):
                continue
            why = contestant.why_not(case)
            if why:
                absent[contestant.name] = why
            else:
                able.append(contestant)
        needs = [contestant.shelves(case) for contestant in able]
        self._held |= dict.fromkeys(merged(needs))
        usable = self._crew.least(_free_bytes() + sum(shelf.capacity for shelf in self._held))
        count = fitting(needs, usable)
        absent |= {contestant.name: _NO_ROOM for contestant in able[count:]}
        self._make_room(merged(needs[:count]), usable)
        return able[:count], absent

    def _make_room(self, needs: dict[Shelf, int], usable: int) -> None:
        """Drops buffers that must grow, and idle ones when memory is scarce."""
        is_scarce = sum(max(needs.get(s, 0), s.capacity) for s in self._held) > usable // 2
        leaving = [
            shelf
            for shelf in self._held
            if shelf.capacity < needs.get(shelf, 0) or (is_scarce and shelf not in needs)
        ]
        if not leaving:
            return
        torch.cuda.synchronize()
        for shelf in leaving:
            shelf.drop()
        torch.cuda.empty_cache()


def _free_bytes() -> int:
    """Of this GPU, with what torch's allocator keeps."""
    free, _ = torch.cuda.mem_get_info()
    return int(free) + int(torch.cuda.memory_reserved()) - int(torch.cuda.memory_allocated())

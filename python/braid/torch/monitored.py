"""monitored_barrier: through the group's store, so that it works when nothing else does.

Every rank writes which of its calls it is in ("3"), and takes that back when it gives up (""). Rank
0 waits until all ranks are in one, and writes which they are; there the others look for theirs.

So ranks meet whichever of their calls they are in, and one that failed is over: who came too late
for the others' first call meets them in their second, and nobody is behind for ever. A number that
rank 0 has let through is never let through again. A rank that gives up takes back what it wrote and
then looks a last time: it fails all the same only where rank 0 saw it there and wrote so just after
that look, which no rank can know; the next call finds all in order.
"""

import json
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import DistError

from braid.torch.errors import Timeout
from braid.torch.meeting import Meeting

_THROUGH = "monitored/through"  # which call of each rank, a list


class MonitoredBarrier:
    """That of one group. One call at a time."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._call = 0  # of this rank
        self._through = [0] * meeting.size  # on rank 0: the last call that each was let through in

    def pass_it(self, check: Callable[[], None], timeout_s: float) -> None:
        """Returns when all ranks are in a call of it. Timeout on rank 0 names those who are not."""
        meeting, key = self._meeting, self._key(self._meeting.rank)
        self._call += 1
        meeting.set(key, str(self._call))
        try:
            if meeting.rank == 0:
                self._let_through(check, timeout_s)
            else:
                meeting.wait(self._missing, "monitored_barrier of rank", check, timeout_s)
        except BaseException as error:
            with suppress(Exception):  # of a store that is gone nobody is let through
                meeting.set(key, "")
            if meeting.rank == 0 or not isinstance(error, Timeout) or not self._was_let_through():
                raise

    def _key(self, rank: int) -> str:
        return f"monitored/{rank}"

    def _let_through(self, check: Callable[[], None], timeout_s: float) -> None:
        calls: list[int] = []
        came: set[int] = set()

        def missing() -> list[int]:
            """Who never came, as long as there is one: others may only have given up before us."""
            texts = self._meeting.look([self._key(rank) for rank in range(self._meeting.size)])
            calls[:] = [int(text or 0) for text in texts]
            late = [rank for rank, call in enumerate(calls) if call <= self._through[rank]]
            came.update(set(range(self._meeting.size)) - set(late))
            return [rank for rank in late if rank not in came] or late

        self._meeting.wait(missing, "monitored_barrier to be called by ranks", check, timeout_s)
        self._through = list(calls)
        self._meeting.set(_THROUGH, json.dumps(self._through))

    def _was_let_through(self) -> bool:
        """As far as the store still says so."""
        try:
            return not self._missing()
        except DistError:
            return False

    def _missing(self) -> list[int]:
        """Rank 0, as long as it has not let this rank's call through."""
        (text,) = self._meeting.look([_THROUGH])
        is_through = bool(text) and json.loads(text)[self._meeting.rank] >= self._call
        return [] if is_through else [0]

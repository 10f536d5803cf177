"""The parts of one version that come to a worker, until every byte is there and right.

What a trainer tells behind each part of a route (sums.Landed) is the part's place in the route and
its checksum. Where that lies here follows from this rank's own plan: so a part that was written
anywhere else, or not at all, is found like one whose bytes differ. Each byte of each route must
come once.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from braid.engine import Engine
from braid.errors import InvalidArgument, Timeout
from braid.weights.holdings import Holdings
from braid.weights.pieces import Piece
from braid.weights.plan import Route
from braid.weights.sums import Landed, Summing, Text, Tiling

LOOK_S = 0.02
"""How often letters are looked at while parts are awaited."""


class Joined(NamedTuple):
    """What one join() has made."""

    plan: int
    trainers: list[Holdings]
    pieces: list[Piece]
    """Of this rank."""
    routes: dict[int, list[tuple[Route, Text]]]
    """The routes from each trainer, with what lies here of each."""


class Arrival:
    """The parts of one version, at one worker's rank. The receiver's thread alone."""

    def __init__(
        self,
        what: str,
        engine: Engine,
        joined: Joined,
        version: int,
        summing: Summing | None,
    ) -> None:
        """`what` names the receiver in errors. Without `summing` nothing is compared."""
        self._what = what
        self._engine = engine
        self._joined = joined
        self._version = version
        self._summing = summing
        self._tilings = {
            (rank, number): Tiling(text.nbytes)
            for rank, routes in joined.routes.items()
            for number, (_, text) in enumerate(routes)
        }
        """What has come of each route that is not whole yet."""
        self._begun = deque[tuple[Landed, Callable[[], int]]]()

    def run(self, heed: Callable[[Callable[[], str]], None]) -> None:
        """Returns when every byte has come, and is right. `heed` is called with what says who is
        waited for, from time to time: it raises when the version has failed.
        """
        look_at = 0.0
        while self._tilings:
            if (now := time.monotonic()) >= look_at:
                heed(self._what_lacks)
                look_at = now + LOOK_S
            if (landed := self._next()) is not None:
                self._take(landed)
        while self._begun:
            self._compare_first()

    def _next(self) -> Landed | None:
        """The next notification about a part of this version, if one comes before the next look."""
        try:
            landed = Landed.decode(self._engine.take_notification(LOOK_S).data)
        except (Timeout, InvalidArgument):
            return None
        is_ours = (landed.plan, landed.version) == (self._joined.plan, self._version)
        return landed if is_ours else None

    def _take(self, landed: Landed) -> None:
        tiling = self._tilings.get((landed.trainer, landed.route))
        if tiling is None:
            raise InvalidArgument(
                f"{self._what}: trainer {landed.trainer} has sent a part of its route "
                f"{landed.route}, which there is not, or which is whole"
            )
        if self._summing is not None and landed.checksum is not None:
            self._begin_sum(landed, self._summing)
        if tiling.add(landed.begin, landed.nbytes):
            del self._tilings[landed.trainer, landed.route]

    def _begin_sum(self, landed: Landed, summing: Summing) -> None:
        _, text = self._joined.routes[landed.trainer][landed.route]
        if not text.can_sum:
            return
        self._begun.append((landed, summing.begin(text, landed.begin, landed.nbytes)))
        if len(self._begun) > summing.most:
            self._compare_first()

    def _compare_first(self) -> None:
        """Compares the checksum of what lies here with that of what the trainer wrote."""
        landed, sum_of = self._begun.popleft()
        if (found := sum_of()) == landed.checksum:
            return
        route, _ = self._joined.routes[landed.trainer][landed.route]
        piece = self._joined.pieces[route.target_piece]
        raise InvalidArgument(
            f"parameter '{piece.name}' from {route.start} on, {route.size}, of trainer "
            f"{landed.trainer} at {self._what}: of {landed.nbytes} bytes from {landed.begin} on "
            f"the checksum is {found:016x}, sent was {landed.checksum:016x}"
        )

    def _what_lacks(self) -> str:
        return f"parts of trainers {sorted({rank for rank, _ in self._tilings})}"

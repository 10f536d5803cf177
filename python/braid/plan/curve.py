"""Measured times of one collective by size, and what they say about sizes between them.

One line alpha + bytes / rate for all sizes does not fit what libraries do: they change protocols
(docs/measuring.md). Between two points such a line is right if both were sent alike; if larger
messages get ever better protocols, time is rather a straight line in log-log, which lies higher.
The points around say which: where a byte costs less and less from one pair of points to the next,
protocols change, and the time is that of the power law, nearer to the line the further apart the
points are, as one change is a smaller part of the way; where a byte costs more and more, one
protocol's latency gives way to its rate, and the time is on the line; halfway where they do not
agree, or where there are none. Where the pairs on both sides say that protocols change, one may
change with a jump right here; larger messages then lie on the line of the points to the right, and
the power law leads up to that line half the way. docs/decisions/0013-between-measured-points.md has
what this misses by, beside other curves. Beyond the largest point the slope of the large ones goes
on; below the smallest, latency stays.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import median

_SATURATED = 32  # points within this factor of the largest give the slope beyond it
_APART = 4  # points further apart than this are more like one protocol's line
_NEAR = 2  # a point stands for sizes within this factor of it


@dataclass(frozen=True)
class Curve:
    """Points of one operation on one number of ranks, by rising size."""

    op: str
    ranks: int
    """On one node."""
    points: tuple[tuple[int, float], ...]
    """Bytes as nccl-tests counts them, and microseconds."""
    path: str
    origin: str
    is_multicast: bool = False
    lender: str = ""
    """Other GPUs with the same links, on which it was measured."""
    """The switch added (NVLS)."""
    nodes: int = 1

    @classmethod
    def of(
        cls, op: str, ranks: int, points: Iterable[tuple[int, float]], path: str, origin: str
    ) -> "Curve":
        """Sorts the points. ValueError when there is none, or one that cannot be."""
        ordered = tuple(sorted(points))
        if not ordered:
            raise ValueError(f"{origin}: {op} on {ranks} ranks has no points")
        for nbytes, us in ordered:
            if nbytes <= 0 or us <= 0:
                raise ValueError(f"{origin}: {op} on {ranks} ranks: {nbytes} bytes in {us} us")
        return cls(op, ranks, ordered, path, origin)

    def covers(self, nbytes: float) -> bool:
        """Whether the points say anything about this size."""
        return self.points[0][0] / _NEAR <= nbytes <= self.points[-1][0] * _NEAR

    def is_point(self, nbytes: float) -> bool:
        """Whether exactly this size was measured."""
        return any(size == nbytes for size, _ in self.points)

    def gap(self, nbytes: float) -> float:
        """How far apart the points around a size are; 1 at a point, 0 beyond the ends."""
        if self.is_point(nbytes):
            return 1.0
        i = bisect_left(self.points, nbytes, key=lambda point: point[0])
        if i in (0, len(self.points)):
            return 0.0
        return self.points[i][0] / self.points[i - 1][0]

    def time_us(self, nbytes: float) -> float:
        """The time at any size."""
        first, last = self.points[0], self.points[-1]
        if nbytes > last[0]:
            return last[1] + (nbytes - last[0]) * self.slope_us_per_byte()
        if nbytes < first[0]:
            return first[1] if len(self.points) > 1 else first[1] * nbytes / first[0]
        return self._between(nbytes)

    def slope_us_per_byte(self) -> float:
        """Time of one more byte at the large end."""
        last = self.points[-1]
        top = [point for point in self.points if point[0] * _SATURATED >= last[0]]
        if len(top) == 1:
            return last[1] / last[0]
        slope = fit(top, weight=lambda _: 1.0).us_per_byte
        return slope if slope > 0 else last[1] / last[0]  # no size takes less than a smaller one

    def _between(self, nbytes: float) -> float:
        i = bisect_left(self.points, nbytes, key=lambda point: point[0])
        if self.points[i][0] == nbytes:
            return self.points[i][1]
        (low, low_us), (high, high_us) = self.points[i - 1 : i + 1]
        alike_us = low_us + (high_us - low_us) * (nbytes - low) / (high - low)
        part = log(nbytes / low) / log(high / low)
        better = log(low_us) * (1 - part) + log(high_us) * part
        votes = self._votes(i)
        if votes == 2 and high / low <= _APART:
            # no dearer than the point itself, where the next one happened to be faster
            on_right_us = high_us - (high - nbytes) * max(0.0, self._us_per_byte(i + 1))
            better += (log(on_right_us) - better) * part / 2
        # 1 for the power law, 0 for the line, a half for neither
        power = 0.5 + 0.5 * ((votes > 0) - (votes < 0))
        weight = power * min(log(_APART) / log(high / low), 1.0)
        return exp(log(alike_us) * (1 - weight) + better * weight)

    def _votes(self, i: int) -> int:
        """Of the pairs on both sides of points i - 1 and i: how many more say that a byte costs
        ever less than say that it costs ever more.
        """
        costs = [self._us_per_byte(k) for k in (i - 1, i, i + 1) if 0 < k < len(self.points)]
        return sum((a > b) - (a < b) for a, b in pairwise(costs))

    def _us_per_byte(self, i: int) -> float:
        (low, low_us), (high, high_us) = self.points[i - 1 : i + 1]
        return (high_us - low_us) / (high - low)


@dataclass(frozen=True)
class Line:
    """time = alpha + bytes * us_per_byte, and how far the points are from it."""

    alpha_us: float
    us_per_byte: float
    mean_error: float
    worst_error: float


def fit(points: Iterable[tuple[int, float]], weight: Callable[[float], float]) -> Line:
    """The line with the least squares of `weight(us) * error`; 1/us makes errors relative."""
    rows = [(float(nbytes), us, weight(us) ** 2) for nbytes, us in points]
    total = sum(w for _, _, w in rows)
    mean_x = sum(w * x for x, _, w in rows) / total
    mean_y = sum(w * y for _, y, w in rows) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in rows)
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in rows) / spread
    alpha = mean_y - slope * mean_x
    errors = [abs(alpha + slope * x - y) / y for x, y, _ in rows]
    return Line(alpha, slope, sum(errors) / len(errors), max(errors))


@dataclass(frozen=True)
class Omission:
    """One point, left out and predicted from its neighbours."""

    op: str
    ranks: int
    nbytes: int
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted_us / self.measured_us - 1


def leave_out(curve: Curve, first: int = 0) -> list[Omission]:
    """Leaves out every second inner point, starting with number `first`, and predicts it.

    The ends stay, so that nothing is extrapolated. 0: one half, then the other.
    """
    if first == 0:
        return [*leave_out(curve, 1), *leave_out(curve, 2)]
    out = range(first, len(curve.points) - 1, 2)
    kept = [point for i, point in enumerate(curve.points) if i not in out]
    rest = Curve.of(curve.op, curve.ranks, kept, curve.path, curve.origin)
    return [
        Omission(curve.op, curve.ranks, nbytes, us, rest.time_us(nbytes))
        for nbytes, us in (curve.points[i] for i in out)
    ]


def median_error(omissions: Iterable[Omission]) -> float:
    """Of the errors' sizes."""
    return median(abs(each.error) for each in omissions)


def worst_error(omissions: Iterable[Omission]) -> float:
    """The largest error's size."""
    return max(abs(each.error) for each in omissions)

"""A line chart as SVG: bytes along, GB/s or time up, a line per contestant, dashes for theory."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid.report import palette
from braid.topo.show.markup import clean, hover

_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 26, 14, 34
_MOST_TICKS = 7


@dataclass(frozen=True)
class Line:
    """Points (bytes, value) of one contestant."""

    name: str
    style: str
    """CSS classes of palette.rules() for the colour, "graph" for dashes, "onwire" for dots."""
    points: list[tuple[float, float]]
    mark: int = 0
    """Of palette.MARKS."""
    record: str = ""
    """Said with every point, if any."""


@dataclass(frozen=True)
class Level:
    """A horizontal line: what the link is specified to carry."""

    name: str
    value: float


def draw(title: str, lines: Sequence[Line], levels: Sequence[Level] = (), log: bool = False) -> str:
    """The chart. `log`: the vertical axis too, which shows small and large times alike."""
    return "\n".join(_Chart(title, lines, levels, log).parts())


class _Chart:
    def __init__(
        self, title: str, lines: Sequence[Line], levels: Sequence[Level], log: bool
    ) -> None:
        self.title, self.lines, self.log = title, lines, log
        values = [y for line in lines for _, y in line.points if y > 0]
        # A theory far above everything would flatten the curves: its line then is left out.
        self.levels = [x for x in levels if x.value <= 2.5 * max(values, default=0)]
        top = max([*values, *(x.value for x in self.levels)], default=1.0)
        self.low = min(values, default=1.0) / 1.3 if log else 0.0
        self.high = top * (1.3 if log else 1.08)
        sizes = [x for line in lines for x, _ in line.points if x > 0]
        self.first, self.last = min(sizes, default=1.0), max(sizes, default=2.0)
        if self.first == self.last:
            self.first, self.last = self.first / 2, self.last * 2

    def x(self, nbytes: float) -> float:
        """Pixels from the left."""
        part = math.log(nbytes / self.first) / math.log(self.last / self.first)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)

    def parts(self) -> Iterator[str]:
        """The whole picture."""
        yield (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" class="chart" role="img"'
            f' aria-label="{clean(self.title)}">'
        )
        yield from self._axes()
        for level in self.levels:
            y = self.y(level.value)
            yield f'<path class="level" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
            yield f'<text class="tick" x="{_LEFT + 4}" y="{y - 4}">{clean(level.name)}</text>'
        for line in self.lines:
            yield from self._line(line)
        yield "</svg>"

    def _axes(self) -> Iterator[str]:
        for value in self._values():
            y = self.y(value)
            yield f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>'
            yield f'<text class="tick end" x="{_LEFT - 6}" y="{y + 3.5}">{_short(value)}</text>'
        for nbytes in self._sizes():
            x = self.x(nbytes)
            yield f'<text class="tick mid" x="{x}" y="{_HEIGHT - 14}">{_size(nbytes)}</text>'

    def _values(self) -> list[float]:
        """Round numbers for the vertical axis."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        step = 10.0 ** math.floor(math.log10(self.high))
        while self.high / step < 4:
            step /= 2
        return [step * i for i in range(int(self.high / step) + 1)]

    def _sizes(self) -> list[float]:
        """Powers of two for the horizontal axis, not too many."""
        first, last = math.ceil(math.log2(self.first)), math.floor(math.log2(self.last))
        every = max(1, -(-(last - first + 1) // _MOST_TICKS))
        return [2.0**power for power in range(first, last + 1, every)]

    def _line(self, line: Line) -> Iterator[str]:
        places = [(self.x(nbytes), self.y(value)) for nbytes, value in line.points]
        if len(places) > 1:
            path = "L".join(f"{x} {y}" for x, y in places)
            yield f'<path class="curve {line.style}" d="M{path}"/>'
        for (x, y), (nbytes, value) in zip(places, line.points, strict=True):
            said = f"{line.name}, {_size(nbytes)}: {_short(value)}"
            said += f" ({line.record})" if line.record else ""
            yield palette.mark(line.mark, x, y, line.style, hover(said))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(nbytes: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} B"

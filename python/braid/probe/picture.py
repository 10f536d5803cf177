"""A record of a kind as a picture: heat maps where cases have two ends, else bars with the spread
of the samples.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from braid.probe.table import by_number
from braid.record.probe import ProbeRecord, Series
from braid.sizes import format_size
from braid.terminal import plots

Axes: TypeAlias = Any  # matplotlib has no types
_BAR, _SPREAD = "#1b6ca8", "#e08e1b"
_ON_CELLS = "#0b2239"  # ink on cells, which are bright in both themes
_BAR_INCHES, _HEAT_INCHES = 0.36, 3.8


def save(record: ProbeRecord, path: Path) -> None:
    """Writes the picture. The file's ending is the format."""
    shown = [one for one in record.series if one.times]
    groups = list(dict.fromkeys(one.group for one in shown))
    title = f"{record.kind}: {record.device or record.host.cpu}"
    if record.kind == "p2p":
        figure, places = plots.column([_HEAT_INCHES] * len(groups), title)
        for axes, group in zip(places, groups, strict=True):
            _heat(axes, group, [one for one in shown if one.group == group])
    else:
        figure, (axes,) = plots.column([0.9 + _BAR_INCHES * len(shown)], title)
        _bars(axes, shown)
    plots.save(figure, path, record.date)


def _heat(axes: Axes, group: str, series: Sequence[Series]) -> None:
    names = sorted({name for one in series for name in (one.start, one.end)}, key=by_number)
    rows = [[float("nan")] * len(names) for _ in names]
    for one in series:
        assert one.times
        value = one.times.p50_us if one.gbps is None else one.gbps
        a, b = names.index(one.start), names.index(one.end)
        rows[a][b] = value
        axes.text(b, a, f"{value:.3g}", ha="center", va="center", color=_ON_CELLS)
    axes.imshow(rows, cmap=_pale(), vmin=0)
    axes.set_xticks(range(len(names)), names, rotation=45)
    axes.set_yticks(range(len(names)), names)
    unit = "us" if series[0].gbps is None else "GB/s"
    axes.set_title(f"{group}, {format_size(series[0].bytes)}, {unit}", loc="left")


def _pale() -> Any:  # noqa: ANN401 - matplotlib has no types
    """The brighter half of its blues: ink stands out on all of them."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"]([i / 510 for i in range(256)]))


def _bars(axes: Axes, series: Sequence[Series]) -> None:
    """Bandwidth, or time where nothing moved; lines from p5 to p95."""
    by_time = any(one.gbps is None for one in series)
    for i, one in enumerate(series):
        assert one.times
        t = one.times
        low, middle, high = t.p5_us, t.p50_us, t.p95_us
        if not by_time:
            rate = one.gbps or 0.0
            low, middle, high = (rate * t.p50_us / max(us, 1e-9) for us in (high, middle, low))
        axes.barh(i, middle, color=_BAR, height=0.7)
        axes.plot([low, high], [i, i], color=_SPREAD, lw=1.6)
        axes.text(max(high, middle), i, f" {middle:.4g}", va="center")
    names = ["\n".join(textwrap.wrap(f"{one.group}: {one.case}", 24)) for one in series]
    axes.set_yticks(range(len(series)), names)
    axes.invert_yaxis()
    axes.set_xlabel("us" if by_time else "GB/s")
    axes.margins(x=0.2)

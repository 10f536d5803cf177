"""A record of a kind as a picture: heat maps where cases have two ends, else bars with the spread
of the samples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from braid import json_file
from braid.probe.table import by_number
from braid.record.probe import ProbeRecord, Series
from braid.sizes import format_size

Axes: TypeAlias = Any  # matplotlib has no types
_BAR, _INK = "#1b6ca8", "#12355b"
_BAR_INCHES = 0.26
_ACROSS = 3  # heat maps beside each other


def save(record: ProbeRecord, path: Path) -> None:
    """Writes the picture. The file's ending is the format."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "braid"
    from matplotlib import pyplot as plt

    shown = [one for one in record.series if one.times]
    groups = list(dict.fromkeys(one.group for one in shown))
    if record.kind == "p2p":
        wide, high = min(len(groups), _ACROSS), -(-len(groups) // _ACROSS)
        size = (3.6 * wide, 3.6 * high)
        figure, grid = plt.subplots(high, wide, figsize=size, layout="constrained", squeeze=False)
        for axes, group in zip(grid.flat, groups, strict=False):
            _heat(axes, group, [one for one in shown if one.group == group])
        for axes in grid.flat[len(groups) :]:
            axes.set_axis_off()
    else:
        size = (9, 1.2 + _BAR_INCHES * len(shown))
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        _bars(axes, shown)
    where = record.device or record.host.cpu
    figure.suptitle(f"{record.kind}: {where}", x=0.01, ha="left", weight="bold", fontsize=11)
    with json_file.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": record.date} if path.suffix == ".svg" else None)
    plt.close(figure)


def _heat(axes: Axes, group: str, series: Sequence[Series]) -> None:
    names = sorted({name for one in series for name in (one.start, one.end)}, key=by_number)
    rows = [[float("nan")] * len(names) for _ in names]
    for one in series:
        assert one.times
        value = one.times.p50_us if one.gbps is None else one.gbps
        a, b = names.index(one.start), names.index(one.end)
        rows[a][b] = value
        axes.text(b, a, f"{value:.3g}", ha="center", va="center", fontsize=8, color=_INK)
    axes.imshow(rows, cmap="Blues", vmin=0, alpha=0.6)
    axes.set_xticks(range(len(names)), names, rotation=45, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    unit = "us" if series[0].gbps is None else "GB/s"
    axes.set_title(f"{group}, {format_size(series[0].bytes)}, {unit}", loc="left", fontsize=10)


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
        axes.plot([low, high], [i, i], color=_INK, lw=1.2)
        axes.text(max(high, middle), i, f" {middle:.4g}", va="center", fontsize=7)
    names = [f"{one.group}: {one.case}" for one in series]
    axes.set_yticks(range(len(series)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("us" if by_time else "GB/s")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)

"""A record as a picture: how fast each operation was beside its baseline, and who carried what."""

from pathlib import Path
from typing import Any, TypeAlias

from braid.record.bench import Record, Result
from braid.sizes import format_size
from braid.terminal import plots

Axes: TypeAlias = Any  # matplotlib has no types
_LINK_COLOURS = ("#1b6ca8", "#e08e1b", "#4f9d69", "#8e5ea2", "#b5484b", "#7f7f7f")
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "frameon": False}
"""Where a legend goes."""
_BASE_COLOUR = "#b8bec6"
_BRAID_COLOUR = "#12355b"


def _title(record: Record) -> str:
    sizes = sorted({result.bytes for result in record.results})
    size = (
        format_size(sizes[0])
        if len(sizes) == 1
        else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
    )
    paced = " (links paced on purpose)" if record.paced else ""
    return f"braid on {record.ranks} ranks, {size}, {record.results[0].dtype}{paced}"


def _possible(record: Record) -> float:
    """What paced links could carry together, by the fastest of them; 0 where nobody paces them."""
    rates = [link.rate_gbps for link in record.fabric]
    return sum(rates) / max(rates) if record.paced and rates and max(rates) > 0 else 0.0


def _draw_speeds(axes: Axes, record: Record, labels: list[str]) -> None:
    """Bars of bus bandwidth: baseline and braid, with the gain above."""
    is_one_link = any(r.baseline and r.baseline.name.endswith(" alone") for r in record.results)
    possible = _possible(record) if is_one_link else 0.0
    for i, result in enumerate(record.results):
        axes.bar(i + 0.2, result.busbw_gbps, 0.38, color=_BRAID_COLOUR)
        if result.baseline and result.ratio:
            alone = result.busbw_gbps / result.ratio
            axes.bar(i - 0.2, alone, 0.38, color=_BASE_COLOUR)
            top = max(alone, result.busbw_gbps)
            if possible:
                most = [alone * possible] * 2
                axes.plot([i - 0.42, i + 0.42], most, color="#000000", lw=1, ls="--")
                top = max(top, most[0])
            axes.text(i, top, f"{result.ratio:.2f}x", ha="center", va="bottom", weight="bold")
    short = [label.replace("-", "-\n") for label in labels]
    axes.set_xticks(range(len(labels)), short)
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.margins(y=0.15)
    baselines = sorted({r.baseline.name for r in record.results if r.baseline})
    handles = [axes.bar(0, 0, color=_BRAID_COLOUR)]
    names = ["braid"]
    if baselines:
        handles.insert(0, axes.bar(0, 0, color=_BASE_COLOUR))
        names.insert(0, " / ".join(baselines))
    if possible:
        handles += axes.plot([], [], color="#000000", lw=1, ls="--")
        names.append(f"possible: {possible:.2f}x")
    axes.legend(handles, names, **_ABOVE, ncols=3, columnspacing=0.8, handlelength=1.2)


def _draw_shares(axes: Axes, record: Record, labels: list[str]) -> None:
    """One stacked bar per result: the part of each message that each link carried."""
    left = [0.0] * len(labels)
    for k, link in enumerate(record.fabric):
        shares = [
            next((u.share for u in r.links if u.name == link.name), 0.0) for r in record.results
        ]
        axes.barh(
            labels,
            shares,
            left=left,
            height=0.6,
            label=link.name,
            color=_LINK_COLOURS[k % len(_LINK_COLOURS)],
        )
        for i, share in enumerate(shares):
            if share >= 0.1:
                axes.text(
                    left[i] + share / 2,
                    i,
                    f"{share:.0%}",
                    ha="center",
                    va="center",
                    color="white",
                )
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of each message")
    if not record.fabric:  # one rank
        return
    axes.legend(**_ABOVE, ncols=len(record.fabric))


def _by_op(record: Record) -> dict[str, list[Result]]:
    """Results of each operation, by size."""
    ops: dict[str, list[Result]] = {}
    for result in sorted(record.results, key=lambda result: result.bytes):
        ops.setdefault(result.op, []).append(result)
    return ops


def _size_axis(axes: Axes, record: Record) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({result.bytes for result in record.results})
    ticks = sizes[:: max(1, -(-len(sizes) // 5))]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.set_xlabel("bytes")


def _draw_times(axes: Axes, record: Record) -> None:
    """Time by size: braid solid, baseline dashed, a colour for each operation."""
    for colour, (op, results) in zip(_LINK_COLOURS, _by_op(record).items(), strict=False):
        sizes = [result.bytes for result in results]
        times = [result.times.median_us for result in results]
        axes.plot(sizes, times, color=colour, marker="o", ms=3, label=op.replace("_", "-"))
        rivals = [(r.bytes, r.baseline.times.median_us) for r in results if r.baseline]
        if rivals:
            axes.plot(*zip(*rivals, strict=True), color=colour, ls="--", lw=1)
    axes.set_yscale("log")
    _size_axis(axes, record)
    axes.set_ylabel("time, us (baseline dashed)")
    axes.legend(frameon=False)


def _draw_gains(axes: Axes, record: Record) -> None:
    """Gain over the baseline by size; above the line at 1, braid is faster."""
    for colour, (op, results) in zip(_LINK_COLOURS, _by_op(record).items(), strict=False):
        gains = [(result.bytes, result.ratio) for result in results if result.ratio is not None]
        if gains:
            label = op.replace("_", "-")
            axes.plot(*zip(*gains, strict=True), color=colour, marker="o", ms=3, label=label)
    axes.axhline(1.0, color=_BASE_COLOUR, lw=1)
    axes.set_ylim(bottom=0)
    _size_axis(axes, record)
    names = sorted({result.baseline.name for result in record.results if result.baseline})
    axes.set_ylabel("gain over " + (" / ".join(names) or "a baseline (none was measured)"))


def save(record: Record, path: Path) -> None:
    """Writes the picture: bars for one size, lines for several. The file's ending is the format."""
    rows = len(record.results)
    is_curve = rows > len(_by_op(record))  # several sizes of one operation
    heights = [2.6, 2.6] if is_curve else [2.9, 1.3 + 0.36 * rows]
    figure, (above, below) = plots.column(heights, _title(record))
    if is_curve:
        _draw_times(above, record)
        _draw_gains(below, record)
    else:
        labels = [result.op.replace("_", "-") for result in record.results]
        _draw_speeds(above, record, labels)
        _draw_shares(below, record, labels)
    plots.save(figure, path, record.date)

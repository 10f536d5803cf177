"""A record as a picture: how fast each operation was beside its baseline, and who carried what."""

from pathlib import Path
from typing import Any, TypeAlias

from braid import json_file
from braid.record.bench import Record, Result
from braid.sizes import format_size

Axes: TypeAlias = Any  # matplotlib has no types
_LINK_COLOURS = ("#1b6ca8", "#e08e1b", "#4f9d69", "#8e5ea2", "#b5484b", "#7f7f7f")
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


def _draw_speeds(axes: Axes, record: Record, labels: list[str]) -> None:
    """Bars of bus bandwidth: baseline and braid, with the gain above."""
    for i, result in enumerate(record.results):
        axes.bar(i + 0.2, result.busbw_gbps, 0.38, color=_BRAID_COLOUR)
        if result.baseline and result.ratio:
            alone = result.busbw_gbps / result.ratio
            axes.bar(i - 0.2, alone, 0.38, color=_BASE_COLOUR)
            top = max(alone, result.busbw_gbps)
            axes.text(i, top, f"{result.ratio:.2f}x", ha="center", va="bottom", weight="bold")
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.margins(y=0.15)
    baselines = sorted({r.baseline.name for r in record.results if r.baseline})
    handles = [axes.bar(0, 0, color=_BRAID_COLOUR)]
    names = ["braid, all links"]
    if baselines:
        handles.insert(0, axes.bar(0, 0, color=_BASE_COLOUR))
        names.insert(0, " / ".join(baselines))
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 1.13), ncols=2, frameon=False)


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
            if share >= 0.06:
                axes.text(
                    left[i] + share / 2,
                    i,
                    f"{share:.0%}",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=9,
                )
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of each message")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.13), ncols=len(record.fabric), frameon=False)


def _by_op(record: Record) -> dict[str, list[Result]]:
    """Results of each operation, by size."""
    ops: dict[str, list[Result]] = {}
    for result in sorted(record.results, key=lambda result: result.bytes):
        ops.setdefault(result.op, []).append(result)
    return ops


def _size_axis(axes: Axes, record: Record) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({result.bytes for result in record.results})
    ticks = sizes[:: max(1, len(sizes) // 6)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks], fontsize=9)
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
    axes.legend(frameon=False, fontsize=9)


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
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    if len(record.results) > len(_by_op(record)):  # several sizes of one operation
        _draw_times(left, record)
        _draw_gains(right, record)
    else:
        labels = [result.op.replace("_", "-") for result in record.results]
        _draw_speeds(left, record, labels)
        _draw_shares(right, record, labels)
    figure.suptitle(_title(record), x=0.01, ha="left", weight="bold")
    with json_file.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": record.date} if path.suffix == ".svg" else None)
    plt.close(figure)

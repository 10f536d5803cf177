"""A GPU record as a picture: bandwidth by size with a line per library, and who carried what."""

from pathlib import Path
from typing import Any, TypeAlias

from braid.bench.gpu_record import GpuRecord, GpuResult
from braid.cli.sizes import format_size

Axes: TypeAlias = Any  # matplotlib has no types
_COLOURS = {
    "braid": "#12355b",
    "nccl": "#7f8a96",
    "nccl-best": "#e08e1b",
    "symm": "#4f9d69",
    "mscclpp": "#8e5ea2",
}
_NAMES = {
    "braid": "braid",
    "nccl": "NCCL as it comes",
    "nccl-best": "NCCL's other settings, best",
    "symm": "torch symmetric memory, best",
    "mscclpp": "MSCCL++ in NCCL's place",
}
_TICK_BITS = 4  # a tick at every 16-fold size


def _points(results: list[GpuResult], family: str) -> list[tuple[int, float]]:
    """Sizes and bus bandwidths of a family's fastest; braid's own is the one called braid."""
    found: dict[int, float] = {}
    for result in results:
        runs = [run for run in result.runs if run.family == family and not run.wrong]
        if family == "braid":
            runs = [run for run in runs if run.who == "braid"]
        if runs:
            best = max(run.busbw_gbps for run in runs)
            found[result.bytes] = max(best, found.get(result.bytes, 0.0))
    return sorted(found.items())


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    first = sizes[0].bit_length() - 1
    ticks = [1 << k for k in range(first, sizes[-1].bit_length(), _TICK_BITS)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks], fontsize=8)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bandwidth(axes: Axes, op: str, results: list[GpuResult]) -> None:
    for family, colour in _COLOURS.items():
        points = _points(results, family)
        if points:
            width = 2.2 if family == "braid" else 1.3
            axes.plot(
                *zip(*points, strict=True),
                color=colour, lw=width, marker="o", ms=3, label=_NAMES[family],
            )  # fmt: skip
    _size_axis(axes, sorted({result.bytes for result in results}))
    axes.set_ylim(bottom=0)
    axes.set_title(op.replace("_", "-"), loc="left", fontsize=10)


def _draw_shares(axes: Axes, by_op: dict[str, list[GpuResult]]) -> bool:
    """Percent of a block over the host link, by size. False: no build said."""
    drawn = False
    for op, results in by_op.items():
        points = sorted((r.bytes, 100 * r.host_share) for r in results if r.host_share is not None)
        if points:
            drawn = True
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, lw=1.3, label=op)
    if drawn:
        axes.set_title("% over PCIe, the rest over NVLink", loc="left", fontsize=10)
        axes.set_ylim(bottom=0)
        _size_axis(axes, sorted({r.bytes for results in by_op.values() for r in results}))
        axes.legend(frameon=False, fontsize=8)
    return drawn


def title(record: GpuRecord) -> str:
    """The machine and what was compared."""
    cap = record.options.get("BRAID_LINK_CAP")
    held = f", links held to {cap}" if cap else ""
    graphed = [result.bytes for result in record.results if result.mode == "graph"]
    how = f"; in CUDA graphs up to {format_size(max(graphed))}" if graphed else ""
    return (
        f"Bus bandwidth, GB/s, by bytes per rank: {record.ranks} x"
        f" {record.gpu.removeprefix('NVIDIA ')}, NCCL {record.nccl}{held}{how}"
    )


def save(record: GpuRecord, path: Path) -> None:
    """Writes the picture. The file's ending is the format."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "braid"
    from matplotlib import pyplot as plt

    by_op: dict[str, list[GpuResult]] = {}
    for result in record.results:
        by_op.setdefault(result.op, []).append(result)
    figure, grid = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
    places = list(grid.flat)
    for axes, (op, results) in zip(places, by_op.items(), strict=False):
        _draw_bandwidth(axes, op, results)
    if not _draw_shares(places[-1], by_op):
        places[-1].set_axis_off()
    for axes in places[len(by_op) : -1]:
        axes.set_axis_off()
    handles, names = places[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(_NAMES), frameon=False)
    figure.suptitle(title(record), x=0.01, ha="left", weight="bold", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": record.date} if path.suffix == ".svg" else None)
    plt.close(figure)

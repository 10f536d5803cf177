"""A GPU record as a picture: bandwidth by size with a line per library, and who carried what. Where
NVSwitch may have added, a dotted line says what was on the wire at the least.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from braid.bench.rates import wire_gbps_of
from braid.record.gpu import GpuRecord, GpuResult, Run
from braid.sizes import format_size
from braid.terminal import plots

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
_OP_COLOURS = ("#b3343a", "#008a94", "#6b4a1f", "#d04a8f", "#3d3fa8")
"""Of operations; none of a library's."""
_ON_WIRE = "on the wire, at the least"
_TICK_BITS = 4  # a tick at every 16-fold size


def _fastest(results: list[GpuResult], family: str) -> list[tuple[GpuResult, Run]]:
    """A family's fastest run of each size; braid's own is the one called braid."""
    found: dict[int, tuple[GpuResult, Run]] = {}
    for result in results:
        for run in result.runs:
            if run.family != family or run.wrong or (family == "braid" and run.who != "braid"):
                continue
            if result.bytes not in found or found[result.bytes][1].busbw_gbps < run.busbw_gbps:
                found[result.bytes] = result, run
    return [found[size] for size in sorted(found)]


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    first = sizes[0].bit_length() - 1
    ticks = [1 << k for k in range(first, sizes[-1].bit_length(), _TICK_BITS)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.minorticks_off()


def _draw_bandwidth(axes: Axes, op: str, results: list[GpuResult], record: GpuRecord) -> None:
    for family, colour in _COLOURS.items():
        best = _fastest(results, family)
        if not best:
            continue
        sizes = [result.bytes for result, _ in best]
        rates = [run.busbw_gbps for _, run in best]
        width = 2.2 if family == "braid" else 1.3
        axes.plot(sizes, rates, color=colour, lw=width, marker="o", ms=3, label=_NAMES[family])
        wires = [wire_gbps_of(run, result, record) for result, run in best]
        if wires != rates:
            axes.plot(sizes, wires, color=colour, lw=width, ls=":", label=_ON_WIRE)
    _size_axis(axes, sorted({result.bytes for result in results}))
    axes.set_ylim(bottom=0)
    axes.set_title(op.replace("_", "-"), loc="left")


def _draw_shares(axes: Axes, by_op: dict[str, list[GpuResult]]) -> None:
    """Percent of a block over the host link, by size."""
    for colour, (op, results) in zip(_OP_COLOURS, by_op.items(), strict=False):
        points = sorted((r.bytes, 100 * r.host_share) for r in results if r.host_share is not None)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", ms=3, lw=1.3, label=op)
    has_nic = any(r.rdma_share for results in by_op.values() for r in results)
    rest = "NVLink and a NIC" if has_nic else "NVLink"
    axes.set_title(f"% over PCIe, the rest over {rest}", loc="left")
    axes.set_ylim(bottom=0)
    _size_axis(axes, sorted({r.bytes for results in by_op.values() for r in results}))
    axes.legend(frameon=False)


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


def _legend(places: list[Axes]) -> tuple[list[Any], list[str]]:
    """Of the first operation, and of the wire if any has it: all_reduce is seldom the first."""
    handles, names = places[0].get_legend_handles_labels()
    for axes in places:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            if name == _ON_WIRE and name not in names:
                handles, names = [*handles, handle], [*names, name]
    return handles, names


def figure_of(
    record: GpuRecord, ops: Sequence[str] = (), level: tuple[str, float] | None = None
) -> Any:  # noqa: ANN401 - matplotlib has no types
    """The picture: of `ops` alone, or of all of them and who carried what. `level`: what the links
    are specified to carry, and its name. Whoever asked closes it.
    """
    by_op: dict[str, list[GpuResult]] = {}
    for result in record.results:
        if not ops or result.op in ops:
            by_op.setdefault(result.op, []).append(result)
    has_shares = not ops and any(result.host_share is not None for result in record.results)
    figure, places = plots.column([2.3] * (len(by_op) + has_shares), title(record))
    for axes, (op, results) in zip(places, by_op.items(), strict=False):
        _draw_bandwidth(axes, op, results, record)
        if level:
            axes.axhline(level[1], color="#000000", lw=0.8, ls="--")
            axes.text(0.01, level[1], level[0], transform=axes.get_yaxis_transform(), va="bottom")
            axes.set_ylim(top=1.18 * level[1])
    if has_shares:
        _draw_shares(places[-1], by_op)
    handles, names = _legend(places[: len(by_op)])
    figure.legend(handles, names, loc="outside lower left", ncols=1, frameon=False)
    return figure


def save(
    record: GpuRecord, path: Path, ops: Sequence[str] = (), level: tuple[str, float] | None = None
) -> None:
    """Writes the picture. The file's ending is the format."""
    plots.save(figure_of(record, ops, level), path, record.date)

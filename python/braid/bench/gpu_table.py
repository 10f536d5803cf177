"""A GPU record as a table for people."""

from rich.console import Console
from rich.table import Table

from braid.bench.gpu_record import GpuRecord, GpuResult, Run
from braid.bench.verdict import judge
from braid.cli.sizes import format_size
from braid.cli.table import console
from braid.probe.outliers import stragglers
from braid.probe.wire import may_be_nvls, wire_gbps

_COLUMNS = (
    "bytes",
    "calls",
    "path",
    "braid us",
    "busbw",
    "host",
    "nccl us",
    "busbw",
    "wire",
    "gain",
    "nccl's best us",
)
_REST = ("gain", "symm us", "gain", "wrong")


def ratio_text(ratio: float | None) -> str:
    """ "1.25x"."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def _time(run: Run | None) -> str:
    return "-" if run is None else f"{run.median_us:,.1f}"


def _share(result: GpuResult) -> str:
    """Over the host link, and through a NIC where one carried a part."""
    if result.host_share is None:
        return "-"
    nic = f" + {result.rdma_share:.1%}" if result.rdma_share else ""
    return f"{result.host_share:.1%}{nic}"


def _wire(result: GpuResult, run: Run | None, record: GpuRecord) -> str:
    """What NCCL's links carried; where NVSwitch may have added, the least that they can have."""
    if run is None:
        return "-"
    nvls = may_be_nvls(result.op, record.ranks, run.who, record.options)
    gbps = wire_gbps(result.op, record.ranks, run.busbw_gbps, nvls=nvls)
    return f">={gbps:.1f}" if gbps < run.busbw_gbps else f"{gbps:.1f}"


def _row(result: GpuResult, record: GpuRecord) -> list[str]:
    verdict = judge(result)
    ours, nccl = result.run_of("braid"), result.run_of("nccl")
    best = result.run_of(verdict.nccl_best)
    symm = min(
        (run for run in result.runs if run.family == "symm" and not run.wrong),
        key=lambda run: run.median_us,
        default=None,
    )
    symm_gain = symm.median_us / ours.median_us if symm and ours else None
    return [
        result.op,
        format_size(result.bytes),
        result.mode,
        result.path or "-",
        _time(ours),
        f"{ours.busbw_gbps:.1f}" if ours else "-",
        _share(result),
        _time(nccl),
        f"{nccl.busbw_gbps:.1f}" if nccl else "-",
        _wire(result, nccl, record),
        ratio_text(verdict.to_nccl),
        f"{_time(best)} {verdict.nccl_best.removeprefix('nccl').strip() or 'default'}",
        ratio_text(verdict.to_nccl_best),
        f"{_time(symm)} {symm.who.removeprefix('symm ')}" if symm else "-",
        ratio_text(symm_gain),
        str(sum(run.wrong for run in result.runs)),
    ]


def title(record: GpuRecord) -> str:
    """What the table shows, and what was in force."""
    first = record.results[0] if record.results else None
    cap = record.options.get("BRAID_LINK_CAP")
    held = f"; links HELD to {cap}" if cap else ""
    return (
        f"{record.ranks} x {record.gpu}, NCCL {record.nccl}, torch {record.torch},"
        f" {first.dtype if first else ''}{held}; medians of the slowest rank; busbw in GB/s;\n"
        f"{record.sizes}"
    )


def show(record: GpuRecord, out: Console | None = None) -> None:
    """Prints the tables: everybody's best beside braid, then braid's own variants."""
    out = out or console()
    table = Table(title=title(record), title_justify="left")
    table.add_column("op")
    for name in (*_COLUMNS, *_REST):
        table.add_column(name, justify="right", no_wrap=True)
    for result in record.results:
        table.add_row(
            *_row(result, record), style="red" if any(r.wrong for r in result.runs) else None
        )
    out.print(table)
    _show_everybody(record, out)
    for result in record.results:
        for run in result.runs:
            names = {f"rank {i}": us for i, us in enumerate(run.by_rank_us)}
            for late in stragglers(names):
                words = f"{result.op} {format_size(result.bytes)} {run.who}: {late} is late"
                out.print(f"{words}, {names[late]:,.1f} us", soft_wrap=True)
    for repeat in record.repeats:
        out.print(f"{repeat.what}: {repeat.calls} calls, {repeat.different} with other bits")


def _show_everybody(record: GpuRecord, out: Console) -> None:
    """A line per case: all medians."""
    for result in record.results:
        times = ", ".join(
            f"{run.who} {run.median_us:,.1f}" + (f" WRONG {run.wrong}" if run.wrong else "")
            for run in result.runs
        )
        out.print(f"{result.op} {format_size(result.bytes)} {result.mode}: {times}", soft_wrap=True)
    reasons = {(who, why): None for result in record.results for who, why in result.absent.items()}
    for who, why in reasons:
        out.print(f"without {who}: {why}", soft_wrap=True)

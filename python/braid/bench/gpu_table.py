"""A GPU record as tables for people: a line per case, then a line per contestant."""

from collections.abc import Iterator

from rich.console import Console

from braid import noise
from braid.bench.rates import algbw_gbps, wire_text
from braid.bench.verdict import judge
from braid.ratio import ratio_words
from braid.record.gpu import GpuRecord, GpuResult, Run
from braid.record.ranks import named, stragglers
from braid.sizes import format_size
from braid.terminal import ranks
from braid.terminal.columns import Column, tables
from braid.terminal.console import console

_HEADS = (
    ("op", "bytes", "calls"),
    ("wrong", "path", "host"),
    ("braid us", "busbw", "wire"),
    ("nccl us", "busbw", "wire", "gain"),
    ("nccl's best us", "gain"),
    ("symm us", "gain"),
)
"""Of the cases: what stays beside each other where a terminal is narrow."""
_EVERYBODY = (
    ("case, contestant",),
    ("samples",),
    ("p50 us", "p95 us", "p99 us"),
    ("algbw", "busbw", "wire"),
    ("wrong",),
)


def ratio_text(ratio: float | None) -> str:
    """ "1.25x"."""
    return "-" if ratio is None else ratio_words(ratio)


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:,.1f}"


def _time(run: Run | None) -> str:
    return f"{_us(run.median_us)}{noise.mark(run.samples_us)}" if run else "-"


def _share(result: GpuResult) -> str:
    """Over the host link, and through a NIC where one carried a part."""
    if result.host_share is None:
        return "-"
    nic = f" + {result.rdma_share:.1%}" if result.rdma_share else ""
    return f"{result.host_share:.1%}{nic}"


def _bandwidth(run: Run | None, result: GpuResult, record: GpuRecord) -> list[str]:
    """busbw, and what of it was on the wire."""
    if run is None:
        return ["-", "-"]
    return [f"{run.busbw_gbps:.1f}", wire_text(run, result, record)]


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
        str(sum(run.wrong for run in result.runs)),
        result.path or "-",
        _share(result),
        _time(ours),
        *_bandwidth(ours, result, record),
        _time(nccl),
        *_bandwidth(nccl, result, record),
        ratio_text(verdict.to_nccl),
        f"{_time(best)} {verdict.nccl_best.removeprefix('nccl').strip() or 'default'}",
        ratio_text(verdict.to_nccl_best),
        f"{_time(symm)} {symm.who.removeprefix('symm ')}" if symm else "-",
        ratio_text(symm_gain),
    ]


def _columns(heads: tuple[tuple[str, ...], ...], rows: list[list[str]]) -> list[list[Column]]:
    """Cells under their heads, in the heads' groups; the first column is words."""
    cells = iter(list(column) for column in zip(*rows, strict=True))
    first = heads[0][0]
    return [
        [Column(name, next(cells) if rows else [], is_number=name != first) for name in names]
        for names in heads
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


def show(record: GpuRecord, out: Console | None = None, *, by_rank: bool = False) -> None:
    """Prints the tables: everybody's best beside braid, then everybody alone. `by_rank`: each
    rank's own times too, even where none is late.
    """
    out = out or console()
    keys, *groups = _columns(_HEADS, [_row(result, record) for result in record.results])
    styles = ["red" if any(run.wrong for run in result.runs) else "" for result in record.results]
    for table in tables(keys, groups, out.width, title=title(record), styles=styles):
        out.print(table)
    _show_everybody(record, out)
    if any(noise.mark(run.samples_us) for result in record.results for run in result.runs):
        out.print(noise.LEGEND, style="dim", soft_wrap=True)
    ranks.show(list(_by_rank(record)), out, everybody=by_rank)
    for result in record.results:
        for run in result.runs:
            names = {f"rank {i}": us for i, us in enumerate(run.by_rank_us)}
            for late in stragglers(names):
                words = f"{result.op} {format_size(result.bytes)} {run.who}: {late} is late"
                out.print(f"{words}, {names[late]:,.1f} us", soft_wrap=True)
    for repeat in record.repeats:
        out.print(f"{repeat.what}: {repeat.calls} calls, {repeat.different} with other bits")


def _by_rank(record: GpuRecord) -> Iterator[ranks.Timed]:
    for result in record.results:
        words = f"{result.op} {format_size(result.bytes)} {result.mode}"
        for run in result.runs:
            yield ranks.Timed(f"{words}, {run.who}", named(run.by_rank), len(run.samples_us))


def _everybody(record: GpuRecord) -> Iterator[tuple[list[str], str]]:
    """A head for each case and a row for each contestant, with their styles."""
    for result in record.results:
        words = f"{result.op} {format_size(result.bytes)} {result.mode}"
        yield [words, *[""] * 8], "bold"
        for run in result.runs:
            yield (
                [
                    f"  {run.who}",
                    str(len(run.samples_us)),
                    _time(run),
                    *map(_us, (run.p95_us, run.p99_us)),
                    f"{algbw_gbps(run, result):.1f}",
                    *_bandwidth(run, result, record),
                    f"WRONG {run.wrong}" if run.wrong else "0",
                ],
                "red" if run.wrong else "",
            )


def _show_everybody(record: GpuRecord, out: Console) -> None:
    """Every contestant's times and bandwidths, then who was missing."""
    rows = list(_everybody(record))
    keys, *groups = _columns(_EVERYBODY, [cells for cells, _ in rows])
    styles = [style for _, style in rows]
    for table in tables(keys, groups, out.width, styles=styles, is_framed=False):
        out.print(table)
    reasons = {(who, why): None for result in record.results for who, why in result.absent.items()}
    for who, why in reasons:
        out.print(f"without {who}: {why}", soft_wrap=True)

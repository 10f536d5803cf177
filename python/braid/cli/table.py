"""A record as a table for people."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from braid import json_file
from braid.cli.sizes import format_size
from braid.probe.outliers import stragglers
from braid.record import Record, Result

_PLAIN_WIDTH = 170  # of lines when the output is no terminal, so that no column is cut


def console(json_path: Path | None = None) -> Console:
    """Standard output, or standard error when a record goes to the former; wide when it is a file
    or a pipe.
    """
    beside = json_path == json_file.STDOUT
    out = Console(highlight=False, stderr=beside)
    return out if out.is_terminal else Console(highlight=False, stderr=beside, width=_PLAIN_WIDTH)


def _links_text(result: Result) -> list[str]:
    return [
        f"{use.share:.1%} {use.rate_gbps:.3g} GB/s" if use.share > 0 else "-"
        for use in result.links
    ]


def _row(result: Result) -> list[str]:
    base = result.baseline
    return [
        result.op,
        format_size(result.bytes),
        f"{result.times.median_us:,.1f}",
        "-" if result.times.p99_us is None else f"{result.times.p99_us:,.1f}",
        f"{result.algbw_gbps:.3g}",
        f"{result.busbw_gbps:.3g}",
        *_links_text(result),
        f"{base.name} {base.times.median_us:,.1f}" if base else "-",
        f"{result.ratio:.2f}x" if result.ratio is not None else "-",
        str(result.wrong_bytes + (base.wrong_bytes if base else 0)),
    ]


def title(record: Record) -> str:
    """What the table shows, in one line; says "paced" when links were slowed down."""
    first = record.results[0]
    paced = "links PACED, rates are the experiment's; " if record.paced else ""
    what = "medians of the slowest rank; bandwidths in GB/s"
    gain = "; gain: baseline's time by braid's" if any(r.baseline for r in record.results) else ""
    return f"{record.ranks} ranks, {first.dtype}; {paced}{what}{gain}"


def show(record: Record, out: Console) -> None:
    """Prints the table."""
    table = Table(title=title(record), title_justify="left")
    table.add_column("op")
    for name in (
        "bytes",
        "time us",
        "p99 us",
        "algbw",
        "busbw",
        *(link.name for link in record.fabric),
        "baseline us",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gain", justify="right", style="bold")
    table.add_column("wrong", justify="right")
    for result in record.results:
        table.add_row(*_row(result), style="red" if result.wrong_bytes else None)
    out.print(table)
    for result in record.results:
        names = {f"rank {i}": us for i, us in enumerate(result.times.by_rank_us)}
        for late in stragglers(names):
            words = f"{result.op} {format_size(result.bytes)}: {late} is late"
            out.print(f"{words}, {names[late]:,.1f} us", soft_wrap=True)

"""A record as a table for people."""

from collections.abc import Iterator

from rich.console import Console

from braid import noise
from braid.ratio import ratio_words
from braid.record.bench import Record, Result, Samples
from braid.record.ranks import named, stragglers
from braid.sizes import format_size
from braid.terminal import ranks
from braid.terminal.columns import Column, Group, tables


def _link_text(result: Result, name: str) -> str:
    use = next((use for use in result.links if use.name == name), None)
    return f"{use.share:.1%} {use.rate_gbps:.3g} GB/s" if use and use.share > 0 else "-"


def _median(times: Samples) -> str:
    return f"{_us(times.median_us)}{noise.mark(times.samples_us)}"


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:,.1f}"


def _columns(record: Record) -> tuple[Group, list[Group]]:
    """Operation and size, and what was measured of them."""
    results = record.results
    keys = [
        Column("op", [result.op for result in results], is_number=False),
        Column("bytes", [format_size(result.bytes) for result in results]),
    ]
    times = [result.times for result in results]
    bases = [result.baseline for result in results]
    wrong = [r.wrong_bytes + (r.baseline.wrong_bytes if r.baseline else 0) for r in results]
    return keys, [
        [
            Column("p50 us", [_median(each) for each in times]),
            Column("p95 us", [_us(each.p95_us) for each in times]),
            Column("p99 us", [_us(each.p99_us) for each in times]),
        ],
        [
            Column("algbw", [f"{result.algbw_gbps:.3g}" for result in results]),
            Column("busbw", [f"{result.busbw_gbps:.3g}" for result in results]),
            Column("wire", ["-" if r.wire_gbps is None else f"{r.wire_gbps:.3g}" for r in results]),
        ],
        *(
            [Column(link.name, [_link_text(r, link.name) for r in results])]
            for link in record.fabric
        ),
        [
            Column("baseline us", [f"{b.name} {_median(b.times)}" if b else "-" for b in bases]),
            Column(
                "gain",
                ["-" if r.ratio is None else ratio_words(r.ratio) for r in results],
                style="bold",
            ),
            Column("wrong", [str(count) for count in wrong]),
        ],
    ]


def _times(record: Record) -> Iterator[Samples]:
    """braid's and its baseline's."""
    for result in record.results:
        yield result.times
        if result.baseline:
            yield result.baseline.times


def _by_rank(record: Record) -> Iterator[ranks.Timed]:
    """braid's, and its baseline's."""
    for result in record.results:
        case = f"{result.op} {format_size(result.bytes)}"
        both = [("braid", result.times)]
        if result.baseline:
            both.append((result.baseline.name, result.baseline.times))
        for who, times in both:
            yield ranks.Timed(f"{case}, {who}", named(times.by_rank), len(times.samples_us))


def title(record: Record) -> str:
    """What the table shows, in one line; says "paced" when links were slowed down."""
    first = record.results[0]
    paced = "links PACED, rates are the experiment's; " if record.paced else ""
    what = "medians of the slowest rank; bandwidths in GB/s"
    gain = "; gain: baseline's time / braid's" if any(r.baseline for r in record.results) else ""
    return f"{record.ranks} ranks, {first.dtype}; {paced}{what}{gain}"


def show(record: Record, out: Console, *, by_rank: bool = False) -> None:
    """Prints the table, in parts where the terminal is narrow. `by_rank`: everybody's own times
    too, even where no rank is late.
    """
    keys, groups = _columns(record)
    styles = ["red" if result.wrong_bytes else "" for result in record.results]
    for table in tables(keys, groups, out.width, title=title(record), styles=styles):
        out.print(table)
    if any(noise.mark(each.samples_us) for each in _times(record)):
        out.print(noise.LEGEND, style="dim", soft_wrap=True)
    ranks.show(list(_by_rank(record)), out, everybody=by_rank)
    for result in record.results:
        names = {f"rank {i}": us for i, us in enumerate(result.times.by_rank_us)}
        for late in stragglers(names):
            words = f"{result.op} {format_size(result.bytes)}: {late} is late"
            out.print(f"{words}, {names[late]:,.1f} us", soft_wrap=True)

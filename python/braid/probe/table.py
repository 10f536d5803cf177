"""A record of a kind as tables for people: matrices where cases have two ends, else a row each."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from braid import noise
from braid.record.probe import ProbeRecord, Series
from braid.record.ranks import stragglers
from braid.sizes import format_size
from braid.terminal import ranks

_STYLES = {"ok": "", "slow": "yellow", "fast": "cyan", "unsupported": "dim"}
MARKS = {"slow": "-", "fast": "+", "wrong data": "!", "hang": "hang", "failed": "!"}
_FIGURES = {
    "engine": " times as long as in one piece",
    "interference": " of its bandwidth alone",
    "latency": " times the bandwidth",
}
"""What a figure of a kind counts, where its name does not say."""
LEGEND = "- slower, + faster than 3 % from the median of its matrix; ! wrong data or failed"


def show(record: ProbeRecord, out: Console) -> None:
    """Prints everything."""
    where = record.device or record.host.cpu
    count = f", {record.ranks} ranks" if record.ranks else ""
    out.print(f"{record.kind} on {where}{count}; GB/s = 1e9 bytes/s, medians", style="bold")
    if record.kind == "p2p":
        _matrices(record, out)
    else:
        out.print(_rows(record.series))
    if any(one.times and noise.mark(one.times.samples_us) for one in record.series):
        out.print(noise.LEGEND, style="dim", soft_wrap=True)
    ranks.show(list(_by_rank(record.series)), out, everybody=False)
    for line in remarks(record):
        out.print(line, soft_wrap=True)


def _by_rank(series: Sequence[Series]) -> Iterator[ranks.Timed]:
    for one in series:
        if one.times:
            yield ranks.Timed(f"{one.group} {one.case}", one.by_rank, len(one.times.samples_us))


def _matrices(record: ProbeRecord, out: Console) -> None:
    groups = list(dict.fromkeys(one.group for one in record.series))
    for group in groups:
        own = [one for one in record.series if one.group == group]
        out.print(title(group, own))
        out.print(matrix(own))
    out.print("from a row to a column", style="dim")
    if any(one.verdict in ("slow", "fast") for one in record.series):
        out.print(LEGEND, style="dim")


def title(group: str, series: Sequence[Series]) -> str:
    """What a matrix holds."""
    what = "us" if _is_latency(series) else "GB/s"
    return f"{group}, {format_size(series[0].bytes)}, {what}"


def _is_latency(series: Sequence[Series]) -> bool:
    return all(one.gbps is None and one.times for one in series)


def matrix(series: Sequence[Series]) -> Table:
    """From a row to a column."""
    is_latency = _is_latency(series)
    names = sorted({name for one in series for name in (one.start, one.end)}, key=by_number)
    cells = {(one.start, one.end): one for one in series}
    table = Table()
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for a in names:
        table.add_row(a, *(_cell(cells.get((a, b)), is_latency) for b in names))
    return table


def by_number(name: str) -> tuple[str, int]:
    """gpu2 before gpu10."""
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0)


def _cell(one: Series | None, is_latency: bool) -> str:
    if one is None:
        return ""
    mark = MARKS.get(one.verdict, "")
    if one.times is None:
        return mark or one.verdict
    number = one.times.p50_us if is_latency else one.gbps or 0.0
    return f"{number:.4g}{mark}{noise.mark(one.times.samples_us)}"


def _rows(series: Sequence[Series]) -> Table:
    table = Table()
    table.add_column("what")
    table.add_column("case")
    has_wire = any(one.wire_gbps is not None for one in series)
    numbers = ["bytes", "p50 us", "p95 us", "p99 us", "GB/s", *(["wire"] if has_wire else [])]
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in series:
        wire = [_rate(one.wire_gbps)] if has_wire else []
        verdict = "" if one.verdict == "ok" else one.verdict
        times = (one.times.p50_us, one.times.p95_us, one.times.p99_us) if one.times else ()
        shown = [f"{us:,.1f}" for us in times] or ["-"] * 3
        shown[0] += noise.mark(one.times.samples_us) if one.times else ""
        table.add_row(
            one.group, one.case, format_size(one.bytes) if one.bytes else "-",
            *shown, _rate(one.gbps), *wire, verdict, style=_STYLES.get(one.verdict, "red"),
        )  # fmt: skip
    return table


def _rate(gbps: float | None) -> str:
    return "-" if gbps is None else f"{gbps:.4g}"


def remarks(record: ProbeRecord) -> Iterator[str]:
    """What follows, who holds the others up, what went wrong."""
    for name, value in record.figures.items():
        yield f"{name}: {_figure(name, value)}{_FIGURES.get(record.kind, '')}"
    for one in record.series:
        for name in stragglers(one.by_rank_us):
            yield f"{one.group} {one.case}: {name} is late, {one.by_rank_us[name]:,.1f} us"
    yield from dict.fromkeys(_note(one) for one in record.series if one.note)
    wrong = sum(one.wrong_bytes for one in record.series)
    cases = len(record.series)
    yield f"{cases} case{'s' * (cases != 1)}, {wrong} wrong byte{'s' * (wrong != 1)}"
    if record.stopped:
        yield f"stopped: {record.stopped}"


def _figure(name: str, value: float) -> str:
    """Errors in percent, with their sign."""
    if name.endswith(": error"):
        return f"{value:+.1%}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _note(one: Series) -> str:
    return f"{one.group} {one.case}: {one.verdict if one.verdict != 'ok' else 'note'}: {one.note}"

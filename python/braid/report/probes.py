"""What `braid bench KIND` measured, as figures: matrices where cases have two ends, else bars with
the spread of their samples. Every number is in a table too, and what a terminal would say of the
record (who is late, what was wrong) is said here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid import noise
from braid.probe.table import MARKS, by_number, remarks, title
from braid.record.probe import ProbeRecord, Series
from braid.sizes import format_size
from braid.topo.show import html
from braid.topo.show.markup import clean

_SHADES = 5
_TITLES = {
    "p2p": "Pairs",
    "host": "To and from the host",
    "interference": "Lanes beside each other",
    "engine": "Pages against one piece",
    "transfer-engine": "Transfer engine",
    "kv-pages": "Pages of KV caches",
    "weights": "Weights of a step",
    "latency": "One call against many",
    "overlap": "Calls behind computation",
    "replay": "Calls of a job",
    "tp-block": "A tensor-parallel block",
    "fsdp2-step": "A step of FSDP2",
    "ddp-step": "A step of DDP",
    "tp-inference": "Tensor-parallel inference",
}
STYLE = (
    ".heat td{text-align:right;font-variant-numeric:tabular-nums}"
    + "".join(
        f".h{i}{{background:color-mix(in srgb,#3b82c4 {12 * i}%,transparent)}}"
        for i in range(_SHADES)
    )
    + ".heat td,.meter{print-color-adjust:exact;-webkit-print-color-adjust:exact}"
    ".bad{color:var(--bad);font-weight:600}"
    ".meter{position:relative;height:1rem;min-width:8rem}.meter i{position:absolute;top:0;bottom:0}"
    ".meter .b{left:0;background:#3b82c4}.meter .w{top:45%;bottom:45%;background:var(--ink)}"
)


@dataclass(frozen=True)
class Probed:
    """One record."""

    path: str
    record: ProbeRecord
    facts: dict[str, str]
    """Where it comes from."""

    @property
    def title(self) -> str:
        """ "Pairs: 2 x NVIDIA H200"."""
        record = self.record
        kind = _TITLES.get(record.kind, record.kind)
        ranks = f", {record.ranks} ranks" if record.ranks and not record.device else ""
        return f"{kind}: {record.device or record.host.cpu}{ranks}"


def of(path: str, record: ProbeRecord) -> Probed:
    """The record with its facts."""
    facts = {"command": record.command, "date": record.date, "commit": record.commit}
    if record.dirty:
        facts["commit"] += ", with changes"
    host = record.host
    facts["host"] = f"{host.cpu}, {host.cores} cores, {host.memory_gib:g} GiB"
    facts["versions"] = ", ".join(f"{k} {v}" for k, v in record.versions.items())
    facts["settings"] = ", ".join(f"{k}={v}" for k, v in record.settings.items())
    facts["options"] = ", ".join(f"{k}={v}" for k, v in record.options.items())
    facts["stopped"] = record.stopped
    return Probed(path, record, {name: text for name, text in facts.items() if text})


def section(probed: Probed) -> Iterator[str]:
    """The figures of one record."""
    record = probed.record
    groups: dict[str, list[Series]] = {}
    for one in record.series:
        groups.setdefault(one.group, []).append(one)
    if record.kind == "p2p":
        yield '<div class="charts">'
        for group, series in groups.items():
            yield from _matrix(group, series)
        yield "</div><p class=fix>From a row to a column, medians.</p>"
    else:
        yield from _bars(record.series)
    yield "<ul>"
    for line in remarks(record):
        yield f"<li>{clean(line)}</li>"
    if any(one.times and noise.mark(one.times.samples_us) for one in record.series):
        yield f"<li>{clean(noise.LEGEND)}; in the table</li>"
    yield "</ul>"
    yield from _numbers(record.series)


def _matrix(group: str, series: Sequence[Series]) -> Iterator[str]:
    """Cells as dark as they are fast, or for latencies as slow."""
    names = sorted({name for one in series for name in (one.start, one.end)}, key=by_number)
    cells = {(one.start, one.end): one for one in series}
    most = max((_value(one) for one in series), default=0.0)
    yield f"<figure><figcaption>{clean(title(group, series))}</figcaption>"
    yield '<div class="wide"><table class="heat">'
    yield html.table_row(["", *names], "th", range(1, len(names) + 1))
    for a in names:
        row = "".join(_cell(cells.get((a, b)), most) for b in names)
        yield f"<tr><th>{clean(a)}</th>{row}</tr>"
    yield "</table></div></figure>"


def _value(one: Series) -> float:
    """GB/s, or us where nothing is moved that counts."""
    if one.times is None:
        return 0.0
    return one.times.p50_us if one.gbps is None else one.gbps


def _cell(one: Series | None, most: float) -> str:
    if one is None:
        return "<td></td>"
    mark = MARKS.get(one.verdict, "")
    if one.times is None:
        return f'<td class="bad" title="{clean(one.note)}">{clean(mark or one.verdict)}</td>'
    shade = min(int(_value(one) / most * _SHADES), _SHADES - 1) if most > 0 else 0
    said = "" if one.verdict == "ok" else f' title="{clean(one.verdict)}"'
    return f'<td class="h{shade}"{said}>{_value(one):.4g}{mark}</td>'


def _bars(series: Sequence[Series]) -> Iterator[str]:
    """Bandwidths, or times where some case moves nothing; lines go from p5 to p95."""
    by_time = any(one.gbps is None and one.times for one in series)
    spans = {id(one): _span(one, by_time) for one in series if one.times}
    most = max((high for _, _, high in spans.values()), default=1.0)
    yield f"<h3>{'Time, us' if by_time else 'GB/s'}; lines from p5 to p95</h3>"
    yield '<div class="wide"><table>'
    for one in series:
        yield f"<tr><td>{clean(one.group)}</td><td>{clean(one.case)}</td>"
        if one.times is None:
            yield f'<td></td><td class="bad">{clean(one.verdict)}</td></tr>'
            continue
        low, middle, high = spans[id(one)]
        yield (
            f'<td class="n">{middle:,.4g}</td><td style="width:100%"><div class="meter">'
            f'<i class="b" style="width:{middle / most:.1%}"></i><i class="w"'
            f' style="left:{low / most:.1%};width:{max(high - low, 0) / most:.1%}"></i></div>'
            "</td></tr>"
        )
    yield "</table></div>"


def _span(one: Series, by_time: bool) -> tuple[float, float, float]:
    """p5, median and p95 of what is drawn, rising."""
    t = one.times
    assert t
    if by_time:
        return t.p5_us, t.p50_us, t.p95_us
    rate = one.gbps or 0.0
    slow, fast = (rate * t.p50_us / max(us, 1e-9) for us in (t.p95_us, t.p5_us))
    return slow, rate, fast


def _numbers(series: Sequence[Series]) -> Iterator[str]:
    yield "<details><summary>Numbers</summary>"
    yield '<div class="wide"><table><thead>'
    heads = ["what", "case", "bytes", "p50 us", "p95 us", "p99 us", "GB/s", "wire", ""]
    yield html.table_row(heads, "th", range(2, 8))
    yield "</thead><tbody>"
    for one in series:
        t = one.times
        times = [f"{us:,.1f}" for us in (t.p50_us, t.p95_us, t.p99_us)] if t else ["-"] * 3
        times[0] += noise.mark(t.samples_us) if t else ""
        rates = ["-" if x is None else f"{x:.4g}" for x in (one.gbps, one.wire_gbps)]
        verdict = "" if one.verdict == "ok" else one.verdict
        size = format_size(one.bytes) if one.bytes else "-"
        yield html.table_row(
            [one.group, one.case, size, *times, *rates, verdict], "td", range(2, 8)
        )
    yield "</tbody></table></div></details>"

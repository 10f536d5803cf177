"""The ways between two GPUs side by side (C44): links of their own, PCIe from GPU to GPU, the
host's memory; bandwidth of one copy by its size, measured where a record has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from braid.probe.pairs import LATENCY, ONE_WAY
from braid.record.probe import BAD, ProbeRecord, Series
from braid.report import chart, palette
from braid.report.probes import Probed
from braid.sizes import format_size
from braid.topo.document import Document
from braid.topo.facts import SWITCH
from braid.topo.measured import any_same
from braid.topo.show import html
from braid.topo.show.markup import clean

_TITLE = "one copy from GPU to GPU: bandwidth, GB/s"
_LEAST_BYTES = 1 << 16
"""Of curves that no record gives sizes."""
_OWN_LINKS = ("nvlink", "xgmi")


@dataclass(frozen=True)
class Way:
    """One curve, of (bytes, GB/s)."""

    name: str
    basis: str
    points: list[tuple[float, float]]


def section(probed: Sequence[Probed], whole: Document) -> Iterator[str]:
    """The picture and its numbers; nothing where fewer than two ways are known, or none was
    measured.
    """
    found = list(ways([one.record.series for one in probed if _is_of(one.record, whole)], whole))
    if len(found) < 2 or not any("measured" in way.basis for way in found):
        return
    yield '<section id="ways"><h2>Ways between GPUs</h2>'
    lines, key = [], []
    for i, way in enumerate(found):
        classes, mark = palette.colour(i), palette.mark_at(i)
        lines.append(chart.Line(way.name, classes, way.points, mark))
        key.append(
            '<li><svg viewBox="0 0 32 12" aria-hidden="true">'
            f'<path class="curve {classes}" d="M0 6H32"/>'
            f"{palette.mark(mark, 16, 6, classes, '')}</svg>"
            f"{clean(f'{way.name}: {way.basis}')}</li>"
        )
    yield f'<ul class="key">{"".join(key)}</ul><div class="charts"><figure>'
    yield f"<figcaption>{clean(_TITLE)}</figcaption>{chart.draw(_TITLE, lines)}</figure></div>"
    yield from _numbers(found)
    yield "</section>"


def _is_of(record: ProbeRecord, whole: Document) -> bool:
    """Whether a record was made on GPUs like the machine's, as far as both have names."""
    device = record.device.partition(" x ")[2] or record.device
    models = {gpu.model for gpu in whole.machine.gpus} - {""}
    return bool(device) and (not models or any_same(device, models))


def _numbers(found: Sequence[Way]) -> Iterator[str]:
    yield '<details><summary>Numbers</summary><div class="wide"><table><thead>'
    yield html.table_row(["way", "bytes", "GB/s"], "th", range(1, 3))
    yield "</thead><tbody>"
    for way in found:
        for nbytes, gbps in way.points:
            cells = [way.name, format_size(int(nbytes)), f"{gbps:.4g}"]
            yield html.table_row(cells, "td", range(1, 3))
    yield "</tbody></table></div></details>"


def ways(records: Sequence[Sequence[Series]], whole: Document) -> Iterator[Way]:
    """Links of their own, PCIe, host memory, as far as they are known."""
    series = [one for record in records for one in record if _is_good(one)]
    sizes = sorted({one.bytes for one in series if one.group.startswith(("d2h ", "h2d "))})
    pairs = [one for one in series if one.group == ONE_WAY and one.gbps]
    most = max((one.bytes for one in pairs), default=0)
    sizes = [size for size in sizes if not most or size <= most] or [_LEAST_BYTES]
    sizes = sorted({*sizes, most} - {0})
    links = _specified(whole, _OWN_LINKS)
    pcie = _specified(whole, ("pcie",))
    peers = _peers(series, sizes)
    measured = "from the measured latency and rate"
    if links:
        yield Way(links[0], measured if peers else "specified", peers or _flat(sizes, links[1]))
    if pcie:
        own = [] if links else peers
        yield Way(
            f"{pcie[0]}, from GPU to GPU",
            measured if own else "specified",
            own or _flat(sizes, pcie[1]),
        )
    if staged := _staged(series):
        yield Way("the host's memory", "measured: out, then in", staged)


def _is_good(one: Series) -> bool:
    return bool(one.times and one.bytes) and not one.wrong_bytes and one.verdict not in BAD


def _specified(whole: Document, kinds: Sequence[str]) -> tuple[str, float] | None:
    """Name and GB/s that the first GPU's links of these kinds have to one other: all of those to
    switches, the best bundle where links are point to point.
    """
    own = [one for one in whole.derived.links if one.a == "GPU0" and one.kind in kinds]
    if not own or not all(one.theoretical_gbps for one in own):
        return None
    rates = [(one.b == SWITCH, one.theoretical_gbps or 0.0) for one in own]
    switched = sum(gbps for is_switch, gbps in rates if is_switch)
    return own[0].name, switched or max(gbps for _, gbps in rates)


def _flat(sizes: Sequence[int], gbps: float) -> list[tuple[float, float]]:
    return [(nbytes, gbps) for nbytes in sizes]


def _peers(series: Sequence[Series], sizes: Sequence[int]) -> list[tuple[float, float]]:
    """latency + bytes / rate, of the middle pair; none where one of the two is missing."""
    pairs = [one for one in series if one.group == ONE_WAY and one.gbps]
    largest = max((one.bytes for one in pairs), default=0)
    rates = [one.gbps or 0.0 for one in pairs if one.bytes == largest]
    waits = [one.times.p50_us for one in series if one.group == LATENCY and one.times]
    if not rates or not waits:
        return []
    wait_us, rate = median(waits), median(rates)
    return [
        (size, rate if size == largest else size / (wait_us + size / rate / 1e3) / 1e3)
        for size in sizes
    ]


def _staged(series: Sequence[Series]) -> list[tuple[float, float]]:
    """One GPU's copy out, and after it the other's in, by window."""
    found = []
    for nbytes in sorted({one.bytes for one in series}):
        us = [
            [one.times.p50_us for one in series
             if one.group.startswith(f"{way} ") and one.bytes == nbytes and one.times]
            for way in ("d2h", "h2d")
        ]  # fmt: skip
        if all(us):
            found.append((float(nbytes), nbytes / sum(map(median, us)) / 1e3))
    return found

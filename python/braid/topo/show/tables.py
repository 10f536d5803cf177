"""Rates and verdicts as text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.topo.facts import SWITCH
from braid.topo.pairs import PairKind, PairRate
from braid.topo.rates import Rate
from braid.topo.show.columns import align
from braid.topo.verdicts import Verdict, names

HEAD = ["devices", "link", "GB/s", "duplex", "Gbit/s", "NCCL", "measured", "of spec", "from"]
_NUMBERS = frozenset(range(2, 8))
_SPREAD = 0.05
"""Devices whose measured rates are so near to each other share a row."""
_PAIR_WORDS: dict[PairKind, str] = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "C2C",
    "pcie": "PCIe",
    "host": "the host's memory",
    "unknown": "a path that the topology does not tell",
}
_ORDER = ("nvlink", "xgmi", "c2c", "pcie", "nic", "socket")


@dataclass(frozen=True)
class Row:
    """Links of one kind that several devices have alike."""

    devices: list[str]
    words: str
    gbps: float | None
    nccl_gbps: float | None
    measured_gbps: float | None
    """Of the device with the least."""
    basis: str
    most_gbps: float | None = None
    """Measured of the device with the most."""

    @property
    def part(self) -> float | None:
        """Measured by specified."""
        return self.measured_gbps / self.gbps if self.measured_gbps and self.gbps else None


def rows(links: Sequence[Rate]) -> list[Row]:
    """Links of a device to its peers together, then equal devices together."""
    bundles: dict[tuple[str, str], list[Rate]] = {}
    for link in links:
        bundles.setdefault((link.a, link.kind), []).append(link)
    found: list[Row] = []
    for (device, _), own in sorted(bundles.items(), key=lambda item: _ORDER.index(item[0][1])):
        row = _row(device, own)
        same = next((i for i, other in enumerate(found) if _alike(row, other)), None)
        if same is None:
            found.append(row)
        else:
            found[same] = _together(found[same], row)
    return found


def _alike(row: Row, other: Row) -> bool:
    if (row.words, row.gbps, row.basis) != (other.words, other.gbps, other.basis):
        return False
    if row.measured_gbps is None or other.measured_gbps is None or other.most_gbps is None:
        return row.measured_gbps == other.measured_gbps
    low = min(row.measured_gbps, other.measured_gbps)
    return max(row.measured_gbps, other.most_gbps) <= low * (1 + _SPREAD)


def _together(first: Row, other: Row) -> Row:
    known = [
        gbps
        for row in (first, other)
        for gbps in (row.measured_gbps, row.most_gbps)
        if gbps is not None
    ]
    low, high = (min(known), max(known)) if known else (None, None)
    devices = [*first.devices, *other.devices]
    return replace(first, devices=devices, measured_gbps=low, most_gbps=high)


def _row(device: str, own: Sequence[Rate]) -> Row:
    first = own[0]
    measured = first.measured_gbps if len(own) == 1 else None
    return Row(
        [device],
        _words(own),
        _sum([rate.theoretical_gbps for rate in own]),
        _sum([rate.nccl_gbps for rate in own]),
        measured,
        first.basis,
        measured,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 3) if len(known) == len(values) else None


def _words(own: Sequence[Rate]) -> str:
    first, count = own[0], sum(rate.count for rate in own)
    if first.kind == "nic":
        return f"{first.name}, {first.count} ports" if first.count > 1 else first.name
    if first.kind in ("pcie", "socket"):
        return first.name
    links = f"{first.name}, {count} link{'s' if count > 1 else ''}"
    if first.b == SWITCH or first.kind == "c2c":
        return f"{links} to {'its CPU' if first.kind == 'c2c' else SWITCH}"
    if len(own) == 1:
        return f"{links} to {first.b}" if first.b == SWITCH else f"{links} to one peer"
    each = {rate.theoretical_gbps for rate in own}
    alone = f", {_number(first.theoretical_gbps)} each" if len(each) == 1 else ""
    return f"{links} to {len(own)} peers{alone}"


def cells(row: Row) -> list[str]:
    """One row in words, as HEAD names them."""
    doubled = [None if row.gbps is None else row.gbps * factor for factor in (2, 8)]
    return [
        names(row.devices),
        row.words,
        *map(_number, (row.gbps, *doubled, row.nccl_gbps)),
        _span(row.measured_gbps, row.most_gbps),
        f"{row.part:.0%}" if row.part is not None else "-",
        row.basis,
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")


def _span(low: float | None, high: float | None) -> str:
    """ "55.1", or "54.9-55.4" where devices differ."""
    words = (_number(low), _number(high))
    return words[0] if words[0] == words[1] else "-".join(words)


def sources(links: Sequence[Rate]) -> list[str]:
    """Where measured numbers are from."""
    return list(dict.fromkeys(rate.measured_how for rate in links if rate.measured_how))


def rate_lines(links: Sequence[Rate]) -> list[str]:
    """The table of rates, and where measured numbers are from."""
    if not links:
        return []
    title = (
        "Rate of each device's links. GB/s, NCCL, measured: one direction; duplex: both together"
    )
    table = align([HEAD, *(cells(row) for row in rows(links))], _NUMBERS)
    return [title, *table, *(f"measured: {how}" for how in sources(links))]


def pair_lines(pairs: Sequence[PairRate]) -> list[str]:
    """What was measured between every two GPUs as a matrix; with each path where they differ."""
    if not pairs:
        return []
    ends = {name: None for pair in pairs for name in (pair.a, pair.b)}
    kinds = list(dict.fromkeys(_PAIR_WORDS[pair.kind] for pair in pairs))
    is_mixed = len({pair.word for pair in pairs}) > 1
    rate = {
        (pair.a, pair.b): _number(pair.measured_gbps) + f" {pair.word}" * is_mixed for pair in pairs
    }
    table = [["", *ends], *([a, *(rate.get((a, b), "-") for b in ends)] for a in ends)]
    title = f"Measured from GPU (row) to GPU (column) over {' and '.join(kinds)}"
    right = frozenset(range(1, len(ends) + 1))
    hows = dict.fromkeys(pair.measured_how for pair in pairs)
    return [
        f"{title}: GB/s, one direction, each pair alone",
        *align(table, right),
        *(f"measured: {how}" for how in hows),
    ]


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """One line each, and what to do about it below."""
    found = []
    for verdict in verdicts:
        found.append(f"{verdict.level}: {verdict.text}  [{verdict.code}]")
        if verdict.fix:
            found.append(f"    {verdict.fix}")
    return found

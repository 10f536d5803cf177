"""The engine's figures beside a plain program and NIXL, and of two hosts: docs/engine.md has those
that hold, docs/measured/engine.md the rest.

Used by make_figures.py.
"""

import re
from collections.abc import Iterator

from record_notes import link, load

from braid.record.probe import ProbeRecord, from_json
from braid.sizes import format_size

RACE, WITH_BBR = "engine_cpu.json", "engine_cpu_bbr.json"
"""TCP with the congestion control that Linux has by default, and with one that paces."""
HOSTS = "engine_two_hosts.json"
_WAYS = {"local": "shm", "shm": "shm", "tcp": "tcp", "net": "net"}
"""Each way's provider of the plain program; UCX is held to tcp,sm beside shm, and else to tcp."""
_KINDS = {"pages": "pages of", "write": "single writes of"}


def _record(name: str) -> ProbeRecord:
    return from_json(load(name))


def _rivals(way: str) -> tuple[str, str]:
    provider = _WAYS[way]
    return f"plain {provider}", f"NIXL, UCX {'tcp,sm' if provider == 'shm' else 'tcp'}"


def _ratio(record: ProbeRecord, group: str, rival: str) -> str:
    value = record.figures.get(f"{group}, {rival}")
    return "-" if value is None else f"{value:.2f}"


def _rate(record: ProbeRecord, group: str) -> str:
    """Pages a second of braid, in thousands, and GB/s: two cells."""
    for one in record.series:
        if one.group == group and one.case == "braid" and one.gbps:
            return f"{one.gbps * 1e6 / one.bytes:,.0f},000 | {one.gbps:.2f}"
    return "- | -"


def beside(name: str, folder: str) -> Iterator[str]:
    """Rows of the race on one host, pages first; `folder` is that of records, from the page."""
    record = _record(name)
    ways = [way for way in _WAYS if any(one.group.endswith(f" {way}") for one in record.series)]
    samples = [len(one.times.samples_us) for one in record.series if one.times]
    yield (
        f"{link(name, folder)}: {record.host.cores} cores ({record.host.cpu}), commit"
        f" {record.commit[:8]}, {min(samples)} to {max(samples)} samples of each in turn,"
        f" {_where(record)}, TCP with {record.host.tcp.upper()}."
    )
    yield ""
    yield "| way | what | a second | GB/s | braid's rate / plain's | braid's rate / NIXL's |"
    yield "|---|---|--:|--:|--:|--:|"
    for kind, words in _KINDS.items():
        sizes = sorted({one.bytes for one in record.series if one.group.startswith(kind)})
        for way in ways:
            for size in sizes:
                group = f"{kind} {format_size(size)} {way}"
                ratios = " | ".join(_ratio(record, group, who) for who in _rivals(way))
                yield f"| {way} | {words} {format_size(size)} | {_rate(record, group)} | {ratios} |"


def _where(record: ProbeRecord) -> str:
    cores = record.settings.get("cores", "any")
    return "processes on any core" if cores == "any" else f"source and target on cores {cores}"


def hosts() -> Iterator[str]:
    """The sentence on two hosts."""
    record = _record(HOSTS)
    found = record.figures
    rates = re.sub("/", ", ", str(record.settings["rates_mbit"]))
    yield (
        f"Two hosts (network namespaces of a machine of {record.host.cores} cores, commit"
        f" {record.commit[:8]}), rails of {rates} Mbit/s, pages of 64 KiB, every page compared:"
        f" {found['steady, part of the sum']:.2f} of the rails' sum; with the first one cut"
        f" {found['cut, part of the sum']:.2f} of what the others have, the time until that is"
        " noticed included; restored, it carries again after"
        f" {found['restored rail carries again after, s']:.1f} s, and"
        f" {found['restored, part of the sum']:.2f} of the sum is reached. Of"
        f" {found['transfers']:.0f} transfers {found['pages lost or counted twice']:.0f} pages were"
        f" lost or counted twice ({link(HOSTS, '../records')})."
    )


def tables() -> str:
    """For the manual."""
    return "\n".join([*beside(RACE, "../records"), "", *hosts()])


def with_bbr() -> str:
    """For the page on how figures came about."""
    return "\n".join(beside(WITH_BBR, "../../records"))

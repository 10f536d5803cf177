"""What scripts/nccl_tests.py wrote: nccl-tests' times over NCCL alone and over braid's drop-in.

Such a record (braid.nccl_tests/1) has the medians of both, side by side, of every size that both
had right. As braid.gpu/2 they are contestants, "nccl" and "braid"; in place, and in windows of
symmetric memory, they are others, as other calls are timed there. A median is their one sample.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from braid.plan.formulas.collectives import COLLECTIVES
from braid.saved import table
from braid.saved.table import IN, OUT
from braid.typed_json import Json, build

_SUMS = ("sum", "none")  # of what is reduced, sums: braid.gpu/2 does not tell others from these
_PLACES = {OUT: "", IN: " in place"}
_WINDOWS = " in windows"
_ROUNDING = 1e-4  # of a ratio: four digits after the point
_LEAST_US, _MOST_US, _MOST_BYTES, _MOST_RANKS = 1e-3, 1e15, 1 << 60, 1 << 20


@dataclass(frozen=True)
class Ratio:
    """One size, one way: a row of the record's `ratios`, as scripts/nccl_tests_record.py has it."""

    program: str
    """Without _perf."""
    bytes: int
    """As nccl-tests counts."""
    dtype: str
    redop: str
    place: str
    """OUT or IN."""
    is_graph: bool
    nccl_us: float
    braid_us: float
    ratio: float
    is_in_windows: bool = False

    @property
    def op(self) -> str:
        """The collective by our name."""
        return table.op_named(self.program)


@dataclass(frozen=True)
class _How:
    """Arguments of a program that was timed."""

    program: str
    arguments: str

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Program, in a graph, in windows: what a ratio says of its step."""
        return self.program, self.number("-G", 0) > 0, self.number("-R", 0) == 2

    def number(self, option: str, default: int) -> int:
        """What follows an option."""
        found = re.search(rf"(?:^|\s){option}\s+(\d{{1,9}})(?:\s|$)", self.arguments)
        return int(found[1]) if found else default


def read(record: Json) -> Json:
    """The record as a document of the form braid.gpu/2. ValueError, in one line, when it has no
    times of braid's collectives, or is damaged.
    """
    try:
        return _document(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole record of scripts/nccl_tests.py: {error!r:.100}") from error


def _document(record: Json) -> Json:
    outcomes = record["outcomes"]
    rows = list(_taken(build(list[Ratio], record["ratios"], "record.ratios")))
    return {
        "schema": "braid.gpu/2",
        **{name: record[name] for name in ("command", "date", "commit", "dirty", "gpu")},
        "driver": "unknown",
        "cuda": "unknown",
        "torch": "none",
        "nccl": _version(outcomes, "nccl") or "unknown",
        "braid": "unknown",
        "host": table.host(1),
        "ranks": record["ranks"],
        "sizes": table.SIZES,
        "settings": _settings(rows, outcomes),
        "options": record["options"],
        "results": _results(rows, _ranks(record["ranks"]), outcomes),
        "stopped": "; ".join(_gaps(outcomes)),
    }


def _taken(rows: list[Ratio]) -> Iterator[Ratio]:
    """Those that braid.gpu/2 has a case for. ValueError when there are none."""
    if not rows:
        raise ValueError(
            "no times of NCCL and braid, only checks: scripts/nccl_tests.py takes times in its"
            " parts `time` and `windows`"
        )
    taken = [row for row in rows if row.op in COLLECTIVES and row.redop in _SUMS]
    if not taken:
        found = ", ".join(sorted({f"{row.program} ({row.redop})" for row in rows}))
        raise ValueError(
            f"times of {found!r:.60} alone; braid has {', '.join(COLLECTIVES)}, of sums"
        )
    for row in taken:
        _check(row)
        yield row


def _check(row: Ratio) -> None:
    where = f"record.ratios, {row.program} of {row.bytes!r:.40} B"
    if row.place not in _PLACES:
        raise ValueError(f"{where}: asked for {' or '.join(_PLACES)}, found {row.place!r:.40}")
    if not 1 <= row.bytes <= _MOST_BYTES:
        raise ValueError(f"{where}: asked for 1 to {_MOST_BYTES} bytes")
    for us in (row.nccl_us, row.braid_us):
        if not _LEAST_US <= us <= _MOST_US:
            raise ValueError(f"{where}: {us:g} us")
    if abs(row.nccl_us / row.braid_us - row.ratio) > _ROUNDING * (1 + row.ratio):
        raise ValueError(
            f"{where}: {row.nccl_us:g} us by {row.braid_us:g} us are no {row.ratio:g}:"
            " columns are mixed up"
        )


def _ranks(value: Json) -> int:
    ranks: int = build(int, value, "record.ranks")
    if not 2 <= ranks <= _MOST_RANKS:
        raise ValueError(f"record.ranks: asked for 2 to {_MOST_RANKS}, found {ranks!r:.40}")
    return ranks


def _version(outcomes: Iterable[Json], of: str) -> str:
    """Of NCCL or of nccl-tests, by the first table that says it."""
    return next((str(one[of]) for one in outcomes if one[of]), "")


def _settings(rows: Iterable[Ratio], outcomes: Iterable[Json]) -> dict[str, str]:
    """How every contestant was made."""
    found: dict[str, str] = {}
    for row in rows:
        memory = "in windows of symmetric memory" if row.is_in_windows else "that nobody registered"
        place = "the result where the data was" if row.place == IN else "out of place"
        found |= {
            _who("nccl", row): f"nccl-tests, {place}, buffers {memory}",
            _who("braid", row): f"nccl-tests, braid's drop-in for NCCL, {place}, buffers {memory}",
        }
    version = _version(outcomes, "nccl_tests")
    return found | ({"nccl-tests": version} if version else {})


def _who(library: str, row: Ratio) -> str:
    return library + _PLACES[row.place] + (_WINDOWS if row.is_in_windows else "")


def _results(rows: Iterable[Ratio], ranks: int, outcomes: Iterable[Json]) -> list[dict[str, Any]]:
    """A result for each size and mode, with the contestants that have a time of it."""
    steps = {how.kind: how for how in _timed(outcomes)}
    found: dict[tuple[str, int, str, bool], dict[str, Any]] = {}
    for row in rows:
        how = steps.get((row.program, row.is_graph, row.is_in_windows), _How(row.program, ""))
        case = (row.op, row.bytes, row.dtype, row.is_graph)
        result = found.setdefault(case, _result(row, ranks, how))
        there = {run["who"] for run in result["runs"]}
        for run in _runs(row, ranks):
            if run["who"] in there:
                raise ValueError(
                    f"record.ratios, {row.program} of {row.bytes} B: twice of {run['who']}"
                )
            result["runs"].append(run)
    return list(found.values())


def _timed(outcomes: Iterable[Json]) -> Iterator[_How]:
    for one in outcomes:
        step = one["step"]
        if step["keeps_times"]:
            yield _How(str(step["program"]), str(step["arguments"]))


def _result(row: Ratio, ranks: int, how: _How) -> dict[str, Any]:
    """A case without runs; what the arguments do not say is nccl-tests' default."""
    return {
        **table.sizes(row.op, ranks, row.bytes),
        "dtype": table.DTYPES.get(row.dtype, (row.dtype, 1))[0],
        "mode": "graph" if row.is_graph else "eager",
        "calls_per_sample": how.number("-n", 20),
        "host_share": None,
        "runs": [],
        "absent": {},
        "root": how.number("-r", 0) if row.op == "broadcast" else None,
        "launches": how.number("-G", 1) if row.is_graph else None,
    }


def _runs(row: Ratio, ranks: int) -> Iterator[dict[str, Any]]:
    """NCCL's and braid's. In windows NCCL is what `braid bench` counts to NCCL at its best."""
    busbw_us = table.busbw_us(row.op, ranks, row.bytes)
    nccl = "nccl-best" if row.is_in_windows else "nccl"
    for library, family, us in (("nccl", nccl, row.nccl_us), ("braid", "braid", row.braid_us)):
        yield table.run_of(_who(library, row), family, [round(us, 3)], busbw_us)


def _gaps(outcomes: Iterable[Json]) -> Iterator[str]:
    """Timed programs that did not end, or whose times were left out as values were wrong."""
    for one in outcomes:
        step = one["step"]
        wrong = f"{one['wrong']} wrong values: its times are left out" if one["wrong"] else ""
        if step["keeps_times"] and (wrong or one["stopped"]):
            yield f"{step['who']}, {step['program']}: {wrong or one['stopped']}"

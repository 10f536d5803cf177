"""Two records of the same benchmark: what became slower, faster, wrong, or is gone.

Cases are joined by name. A case is slower when its median time grew by more than the tolerance.
docs/compare.schema.json, the form of what --json prints, is made from the class Comparison
(`python -m braid.probe.compare`).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from braid import saved
from braid.errors import InvalidArgument
from braid.typed_json import Json, format_schema, publish

SCHEMA: Final = "braid.compare/1"

Finding = Literal["slower", "wrong", "gone", "faster", "same", "new"]
FAILS: tuple[Finding, ...] = ("slower", "wrong", "gone")


@dataclass(frozen=True)
class Point:
    """One case of a record."""

    us: float | None
    """Median; None when it has no time."""
    spread: float
    """p95 by p50: 1 is none."""
    wrong: int


@dataclass(frozen=True)
class Saved:
    """A record, whatever its form."""

    path: str
    schema: str
    facts: dict[str, str]
    """What must be equal for times to be comparable."""
    points: dict[str, Point]


@dataclass(frozen=True)
class Row:
    """One case in both."""

    case: str
    finding: Finding
    old_us: float | None
    new_us: float | None
    change: float | None
    """New time by old time, less 1: above 0 is slower."""
    is_noisy: bool = False
    """The samples of one record spread further than the change."""


@dataclass(frozen=True)
class Comparison:
    """What `braid bench compare --json` prints."""

    schema: Literal["braid.compare/1"]
    old: str
    """Path of the record."""
    new: str
    tolerance: float
    """Part of the old time."""
    passed: bool
    differences: list[str]
    """Facts that make times hard to compare."""
    rows: list[Row]


def load(path: Path) -> Saved:
    """Reads a record of any form. InvalidArgument, in one line, when it is none."""
    try:
        document: Json = saved.load(path)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error!s:.200}") from error
    schema = str(document.get("schema")) if isinstance(document, dict) else ""
    if schema not in _READERS:
        known = ", ".join([*_READERS, saved.DROP_IN])
        raise InvalidArgument(f"{path}: {schema!r:.40} cannot be compared; compare takes {known}")
    try:
        facts, points = _READERS[schema](document)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{path}: not a whole record: {error!s:.200}") from error
    if not points:
        raise InvalidArgument(f"{path}: the record has no results")
    return Saved(str(path), schema, facts, points)


Read = tuple[dict[str, str], dict[str, Point]]


def _host_record(document: Json) -> Read:
    from braid.record.bench import from_json

    record = from_json(document)
    points = {}
    for one in record.results:
        case = f"{one.op} {one.bytes} B {one.dtype}"
        points[case] = _point(one.times.median_us, one.times.p95_us, one.wrong_bytes)
        if base := one.baseline:
            times = base.times
            points[f"{case}, {base.name}"] = _point(times.median_us, times.p95_us, base.wrong_bytes)
    return {"host": record.host.cpu, "ranks": str(record.ranks)}, points


def _gpu_record(document: Json) -> Read:
    from braid.record.old_gpu import read

    record = read(document)
    points = {
        f"{one.op} {one.bytes} B {one.dtype} {one.mode}, {run.who}": _point(
            run.median_us, run.p95_us, run.wrong
        )
        for one in record.results
        for run in one.runs
    }
    return {"gpu": record.gpu, "ranks": str(record.ranks)}, points


def _probe_record(document: Json) -> Read:
    from braid.record.probe import BAD, from_json

    record = from_json(document)
    points = {}
    for one in record.series:
        wrong = max(one.wrong_bytes, int(one.verdict in BAD))
        us, p95 = (one.times.p50_us, one.times.p95_us) if one.times else (None, None)
        points[f"{one.group}, {one.case}, {one.bytes} B"] = _point(us, p95, wrong)
    facts = {"kind": record.kind, "device": record.device or record.host.cpu}
    return {**facts, "ranks": str(record.ranks)}, points


def _point(us: float | None, p95: float | None, wrong: int) -> Point:
    return Point(us, p95 / us if us and p95 else 1.0, wrong)


_READERS: dict[Any, Any] = {
    "braid.bench/1": _host_record,
    "braid.gpu/1": _gpu_record,
    "braid.gpu/2": _gpu_record,
    "braid.probe/1": _probe_record,
}


def rows(old: Saved, new: Saved, tolerance: float) -> Iterator[Row]:
    """Every case of either record, those of the old one first."""
    for case, before in old.points.items():
        now = new.points.get(case)
        if now is None:
            yield Row(case, "gone", before.us, None, None)
        elif now.wrong:
            yield Row(case, "wrong", before.us, now.us, None)
        elif before.us is None or before.us <= 0 or now.us is None:
            finding: Finding = "gone" if before.us and now.us is None else "same"
            yield Row(case, finding, before.us, now.us, None)
        else:
            change = now.us / before.us - 1
            noise = max(before.spread, now.spread) - 1
            yield Row(
                case, _judge(change, tolerance), before.us, now.us, round(change, 4),
                noise > abs(change) > tolerance,
            )  # fmt: skip
    for case, now in new.points.items():
        if case not in old.points:
            yield Row(case, "wrong" if now.wrong else "new", None, now.us, None)


def _judge(change: float, tolerance: float) -> Finding:
    if change > tolerance:
        return "slower"
    return "faster" if 1 / (1 + change) - 1 > tolerance else "same"


def differences(old: Saved, new: Saved) -> list[str]:
    """Facts that make times hard to compare."""
    return [
        f"{name}: {old.facts.get(name, '-')} and {new.facts.get(name, '-')}"
        for name in dict.fromkeys([*old.facts, *new.facts])
        if old.facts.get(name) != new.facts.get(name)
    ]


def document(old: Saved, new: Saved, tolerance: float, found: list[Row]) -> dict[str, Any]:
    """For programs."""
    passed = not any(row.finding in FAILS for row in found)
    said = Comparison(
        SCHEMA, old.path, new.path, tolerance, passed, differences(old, new), list(found)
    )
    return asdict(said)


def main() -> None:
    """Prints the schema; docs/compare.schema.json is this output."""
    publish(format_schema(Comparison, f"comparison of two records, {SCHEMA}"))


if __name__ == "__main__":
    main()

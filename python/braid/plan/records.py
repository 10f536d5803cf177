"""Saved measurements as curves: records of `braid bench` and of the GPU benchmark.

Three forms are read: braid.bench/1 (docs/record.schema.json), braid.gpu/1 (tests/gpu/bench.py) and
braid.topo/1 (topology.py). Of a record with a baseline, `who` chooses whose times are meant.
"""

import json
import pathlib
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from braid.plan import hardware
from braid.plan.basis import Basis
from braid.plan.curve import Curve
from braid.plan.hardware import Hardware, Path
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

_PER_RANK = ("all_gather", "reduce_scatter")  # braid.gpu/1 counts one rank's part of these
Points = dict[tuple[str, int], dict[int, float]]  # (operation, ranks): bytes: microseconds


def load(path: pathlib.Path) -> Json:
    """A JSON file with a schema. PlanError else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or "schema" not in document:
        raise PlanError(f"{path}: no record: it has no schema")
    return document


def curves(document: Json, who: str, origin: str) -> list[Curve]:
    """Every operation of a record. PlanError when the record has nothing of `who`."""
    readers = {"braid.bench/1": _bench_points, "braid.gpu/1": _gpu_points}
    schema = document["schema"]
    if schema not in readers:
        raise PlanError(f"{origin}: schema {schema}; braid reads {', '.join(readers)}")
    try:
        points = readers[schema](document, who)
        return [
            Curve.of(op, ranks, times.items(), "measured", origin)
            for (op, ranks), times in points.items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{origin}: not a whole record: {error}") from error


def contestants(document: Json) -> list[str]:
    """Whose times a record has."""
    found = {row["who"] for row in document["results"] if "who" in row}
    if document["schema"] == "braid.bench/1":
        found = {"braid"} | {
            row["baseline"]["name"] for row in document["results"] if row["baseline"]
        }
    return sorted(found)


def _gpu_points(document: Json, who: str) -> Points:
    ranks = document["ranks"]
    rows = (row for row in document["results"] if row["who"] == who)
    return _gather(
        (row["op"], ranks, row["bytes"] * _parts(row["op"], ranks), median(row["samples_us"]))
        for row in rows
    )


def _parts(op: str, ranks: int) -> int:
    return ranks if op in _PER_RANK else 1


def _bench_points(document: Json, who: str) -> Points:
    ranks = document["ranks"]
    rows = []
    for row in document["results"]:
        times = row["times"] if who == "braid" else None
        if row["baseline"] and row["baseline"]["name"] == who:
            times = row["baseline"]["times"]
        if times:
            rows.append((row["op"], ranks, row["bytes"], times["median_us"]))
    return _gather(rows)


def _gather(rows: Iterable[tuple[str, int, int, float]]) -> Points:
    points: Points = {}
    for op, ranks, nbytes, us in rows:
        points.setdefault((op, ranks), {})[nbytes] = us
    return points


def machine(document: Json, measured: list[Curve], origin: str) -> Hardware:
    """The node that a record was made on: what was measured, and our table's row for its GPU."""
    known = hardware.of_gpu(str(document.get("gpu", "")))
    if known:
        return replace(known.with_curves(measured), name=origin)
    ranks = max(curve.ranks for curve in measured)
    path = Path("measured", "host", 0.0, 0.0, 0.0, False, origin, Basis.MEASURED, tuple(measured))
    return Hardware(origin, f"{ranks} ranks of {origin}", ranks, (path,), 0.0, 0.0, "")

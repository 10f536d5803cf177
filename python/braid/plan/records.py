"""Saved measurements as curves: records of `braid bench` on CPUs and on GPUs.

Read are braid.bench/1 (docs/record.schema.json), braid.gpu/2 (docs/gpu_record.schema.json), its
older form braid.gpu/1, braid.nccl_tests/1 and tables of nccl-tests (braid.saved). A record has
times of several contestants; `who` chooses one. Calls in a CUDA graph and eager ones are curves of
their own: what they cost besides the bytes differs. Times over several hosts are those of as many
nodes alone.
"""

import pathlib
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from braid import saved
from braid.plan import hardware
from braid.plan.basis import Basis
from braid.plan.curve import Curve
from braid.plan.formulas.collectives import PER_RANK
from braid.plan.hardware import Hardware, Path
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

_MOST_RANKS, _MOST_BYTES, _MOST_US = 100_000, 1 << 50, 1e15
Row = tuple[str, str, str, int, float]
"""Operation, mode, who, bytes as nccl-tests counts them, microseconds."""
Points = dict[tuple[str, int, str], dict[int, float]]
"""(operation, ranks, mode): bytes: microseconds."""


def load(path: pathlib.Path) -> Json:
    """A file with a schema, or of nccl-tests. PlanError else."""
    try:
        document = saved.load(path)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: {error!s:.200}") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise PlanError(f"{path}: no record: it has no schema")
    return document


def curves(document: Json, who: str, origin: str) -> list[Curve]:
    """Every operation of a record. PlanError when the record has nothing of `who`."""
    schema = document["schema"]
    if schema not in _READERS:
        known = ", ".join([*_READERS, saved.DROP_IN])
        raise PlanError(f"{origin}: schema {schema:.40}; braid reads {known}")
    try:
        points: Points = {}
        nodes = _number("num_hosts", (document.get("host") or {}).get("num_hosts", 1), _MOST_RANKS)
        every = _per_node(document["ranks"], nodes)
        for op, mode, name, nbytes, us in _READERS[schema](document):
            if name == who:
                _number("bytes", nbytes, _MOST_BYTES)
                points.setdefault((op, every, mode), {})[nbytes] = _time_us(us)
        where = f", {nodes} nodes" if nodes > 1 else ""
        made = [
            Curve.of(op, ranks, times.items(), "measured", f"{origin}{mode and f', {mode}'}{where}")
            for (op, ranks, mode), times in points.items()
        ]
        return [replace(curve, nodes=nodes) for curve in made]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PlanError(f"{origin}: not a whole record: {error!s:.200}") from error


def _per_node(ranks: Json, nodes: int) -> int:
    """ValueError where nodes have different numbers of ranks: no question is about such."""
    every = _number("ranks", ranks, _MOST_RANKS)
    if every % nodes:
        raise ValueError(f"ranks: {every} on {nodes} hosts; every host must have as many")
    return every // nodes


def _number(what: str, value: Json, most: int) -> int:
    """A field as a count. ValueError when it is none that a machine has."""
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{what}: {value!r:.40}")
    return value


def _time_us(value: Json) -> float:
    if type(value) not in (int, float) or not 0 < value <= _MOST_US:  # NaN, too
        raise ValueError(f"us: {value!r:.40}")
    return float(value)


def contestants(document: Json) -> list[str]:
    """Whose times a record has."""
    return sorted({str(name) for _, _, name, _, _ in _READERS[document["schema"]](document)})


def _gpu_rows(document: Json) -> Iterator[Row]:
    for row in document["results"]:
        for run in row["runs"]:
            if not run["wrong"]:
                yield row["op"], row["mode"], run["who"], row["total_bytes"], run["median_us"]


def _old_gpu_rows(document: Json) -> Iterator[Row]:
    mode = "graph" if "--graph" in document.get("command", "") else "eager"
    for row in document["results"]:
        nbytes = row["bytes"] * (document["ranks"] if row["op"] in PER_RANK else 1)
        if row.get("wrong"):
            continue
        yield row["op"], mode, row["who"], nbytes, median(row["samples_us"])


def _bench_rows(document: Json) -> Iterator[Row]:
    for row in document["results"]:
        if not row.get("wrong_bytes"):
            yield row["op"], "", "braid", row["bytes"], row["times"]["median_us"]
        if row["baseline"] and not row["baseline"].get("wrong_bytes"):
            name, times = row["baseline"]["name"], row["baseline"]["times"]
            yield row["op"], "", name, row["bytes"], times["median_us"]


_READERS = {"braid.bench/1": _bench_rows, "braid.gpu/2": _gpu_rows, "braid.gpu/1": _old_gpu_rows}


def machine(document: Json, measured: list[Curve], origin: str) -> Hardware:
    """The node that a record was made on: what was measured, and our table's row for its GPU."""
    known = hardware.of_gpu(str(document.get("gpu", "")))
    if known:
        return replace(known.with_curves(measured), name=origin)
    ranks = max(curve.ranks for curve in measured)
    path = Path("measured", "host", 0.0, 0.0, 0.0, 0.0, origin, Basis.MEASURED, tuple(measured))
    return Hardware(origin, f"{ranks} ranks of {origin}", ranks, (path,), 0.0, 0.0, "")

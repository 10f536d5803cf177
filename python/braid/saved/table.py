"""What a run of nccl-tests gave, and that as a record of the form braid.gpu/2.

nccl-tests times each size twice: out of place, which is "nccl" here as in braid's own records, and
in place, "nccl in place". It gives a mean of its iterations, so most cases have one sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from braid.plan.formulas.collectives import COLLECTIVES, PER_RANK, bus_factor
from braid.typed_json import Json

OUT, IN = "nccl", "nccl in place"
FACTOR_TOLERANCE = 0.03
AVERAGE_TOLERANCE = 0.02
_OPS = {"alltoall": "all_to_all"}  # nccl-tests' name, where it is not ours
DTYPES = {
    "char": ("int8", 1), "int8": ("int8", 1), "uint8": ("uint8", 1), "int": ("int32", 4),
    "int32": ("int32", 4), "uint32": ("uint32", 4), "int64": ("int64", 8),
    "uint64": ("uint64", 8), "half": ("float16", 2), "float": ("float32", 4),
    "double": ("float64", 8), "bfloat16": ("bfloat16", 2), "f8e4m3": ("float8_e4m3", 1),
    "f8e5m2": ("float8_e5m2", 1),
}  # fmt: skip
"""nccl-tests' names: ours, and bytes of an element."""
SIZES = (
    "bytes per rank: what it sends (all_gather), its result (reduce_scatter), its buffer (others)"
)


@dataclass(frozen=True)
class Cell:
    """One size, one way."""

    us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None
    """Elements; None when they were not checked."""
    p99_us: float | None = None


@dataclass(frozen=True)
class Row:
    """One size."""

    nbytes: int
    dtype: str
    redop: str
    """ "none" for operations that add nothing; "" when the table does not say."""
    root: int
    cells: dict[str, Cell]
    """OUT and IN."""


@dataclass
class Table:
    """One run of one program."""

    program: str = ""
    """all_reduce_perf, with whatever it was built with behind; "" when nothing names it."""
    command: str = ""
    version: str = ""
    """Of nccl-tests."""
    nccl: str = ""
    cuda: str = ""
    is_graph: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    devices: list[tuple[str, str]] = field(default_factory=list)
    """Host and GPU of every rank."""
    rows: list[Row] = field(default_factory=list)
    failed: int | None = None
    """Values out of bounds, as the last lines say; None when there are no last lines."""
    average_gbps: float | None = None


def document(tables: Sequence[Table], source: str) -> Json:
    """All tables of one file. ValueError when they cannot be of one machine, or are damaged."""
    ranks = {_ranks(one) for one in tables}
    models = {gpu for one in tables for _, gpu in one.devices}
    if len(ranks) > 1:
        raise ValueError(f"tables of {' and '.join(map(str, sorted(ranks)))} ranks: split the file")
    (every,) = ranks
    results = [result for one in tables for result in _results(one, every, source)]
    if not results:
        raise ValueError("the table has no rows")
    return {
        "schema": "braid.gpu/2",
        "command": "; ".join(dict.fromkeys(one.command or one.program for one in tables)),
        "date": "unknown",
        "commit": "none: nccl-tests",
        "dirty": False,
        "gpu": " / ".join(sorted(models)) or "unknown",
        "driver": "unknown",
        "cuda": tables[0].cuda or "unknown",
        "torch": "none",
        "nccl": tables[0].nccl or "unknown",
        "braid": "none",
        "host": host(len({name for one in tables for name, _ in one.devices})),
        "ranks": every,
        "sizes": SIZES,
        "settings": _settings(tables),
        "options": tables[0].options,
        "results": results,
        "stopped": "; ".join(_gaps(tables)),
    }


def op_of(table: Table, ranks: int, source: str) -> str:
    """Which collective it is: by the program's name, else by what the columns say."""
    op = op_named(table.program.partition("_perf")[0]) or _op_by_columns(table, ranks, source)
    if op not in COLLECTIVES:
        raise ValueError(f"a table of {op}; braid has {', '.join(COLLECTIVES)}")
    return op


def op_named(program: str) -> str:
    """A program without _perf by our name of its collective; as it is where we have none."""
    return _OPS.get(program, program)


def _op_by_columns(table: Table, ranks: int, source: str) -> str:
    row = table.rows[-1]
    cell = next(iter(row.cells.values()))
    factor = cell.busbw_gbps / cell.algbw_gbps if cell.algbw_gbps else 0.0
    adds = row.redop not in ("", "none")
    if adds and row.root < 0 and _near(factor, bus_factor("all_reduce", ranks)):
        return "all_reduce"
    if adds and row.root < 0 and _near(factor, bus_factor("reduce_scatter", ranks)):
        return "reduce_scatter"
    if not adds and row.root >= 0 and _near(factor, 1):
        return "broadcast"
    by_name = [op for op in COLLECTIVES if op in source.lower().replace("alltoall", "all_to_all")]
    if len(by_name) == 1:
        return by_name[0]
    raise ValueError(
        "nothing says which collective it is: keep the line '# Collective test starting: ...',"
        " the command, or name the file like all_gather.txt"
    )


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= FACTOR_TOLERANCE * b


def _ranks(table: Table) -> int:
    """Of the list of devices; an all_reduce alone tells it by its factor, 2(n - 1)/n."""
    if not table.rows:
        raise ValueError("the table has no rows")
    if table.devices:
        return len(table.devices)
    cell = next(iter(table.rows[-1].cells.values()))
    if table.program.startswith("all_reduce") and cell.algbw_gbps:
        factor = cell.busbw_gbps / cell.algbw_gbps
        if 0.9 < factor < 1.95:  # above, the rounding of two digits hides how many
            return round(2 / (2 - factor))
    raise ValueError("no lines '# Rank ...': they say how many GPUs there were, and which")


def host(num_hosts: int) -> Json:
    """The field of that name: nccl-tests tells nothing else of hosts."""
    cpu = {"cpu": "unknown", "cores": 0, "memory_gib": 0.0, "kernel": "unknown"}
    return {**cpu, "num_hosts": max(num_hosts, 1)}


def _settings(tables: Sequence[Table]) -> dict[str, str]:
    found = {OUT: "nccl-tests, out of place", IN: "nccl-tests, the result where the data was"}
    for one in tables:
        found |= one.settings
    if tables[0].version:
        found["nccl-tests"] = tables[0].version
    return found


def _results(table: Table, ranks: int, source: str) -> list[dict[str, Any]]:
    """A result for each size; a size that was run in several cycles has as many samples."""
    op = op_of(table, ranks, source)
    found: dict[tuple[int, str], list[Row]] = {}
    for row in table.rows:
        if row.nbytes:  # some sizes round to nothing
            found.setdefault((row.nbytes, row.dtype), []).append(row)
    return [_result(op, ranks, rows, table) for rows in found.values()]


def _result(op: str, ranks: int, rows: Sequence[Row], table: Table) -> dict[str, Any]:
    first = rows[0]
    dtype, itemsize = DTYPES.get(first.dtype, (first.dtype, 1))
    runs = []
    for who in (OUT, IN):
        cells = [row.cells[who] for row in rows if who in row.cells]
        if cells:
            runs.append(_run(who, cells, busbw_us(op, ranks, first.nbytes), itemsize, table.failed))
    return {
        **sizes(op, ranks, first.nbytes),
        "dtype": dtype,
        "mode": "graph" if table.is_graph else "eager",
        "calls_per_sample": int(table.settings.get("iters", "1")),
        "host_share": None,
        "runs": runs,
        "absent": {},
    }


def sizes(op: str, ranks: int, nbytes: int) -> Json:
    """The operation of a result and its two sizes, of what nccl-tests prints as its size."""
    part = nbytes // ranks if op in PER_RANK else nbytes
    return {"op": op, "bytes": part, "total_bytes": nbytes}


def busbw_us(op: str, ranks: int, nbytes: int) -> float:
    """GB/s times us of this case."""
    return nbytes / 1e3 * (bus_factor(op, ranks) if ranks > 1 else 1.0)


def _run(
    who: str, cells: Sequence[Cell], busbw_us: float, itemsize: int, failed: int | None
) -> dict[str, Any]:
    tails = [cell.p99_us for cell in cells if cell.p99_us is not None]
    wrong = sum(cell.wrong or 0 for cell in cells) * itemsize
    if failed and all(cell.wrong is None for cell in cells):
        wrong = failed * itemsize  # a table that says that values were wrong, but not where
    run = run_of(who, "nccl", [cell.us for cell in cells], busbw_us)
    return {**run, "wrong": wrong, "p99_us": max(tails) if tails else None}


def run_of(who: str, family: str, samples_us: Iterable[float], busbw_us: float) -> dict[str, Any]:
    """A contestant's times of a case, none of them wrong; busbw_us is GB/s times us."""
    samples = sorted(samples_us)
    middle = samples[len(samples) // 2]
    return {
        "who": who,
        "family": family,
        "samples_us": samples,
        "median_us": middle,
        "p5_us": samples[0],
        "p95_us": samples[-1],
        "busbw_gbps": round(busbw_us / middle, 3),
        "wrong": 0,
    }


def _gaps(tables: Iterable[Table]) -> Iterable[str]:
    """What is missing of tables: the end, or rows in between."""
    for one in tables:
        name = one.program or "the table"
        if one.average_gbps is None:
            yield f"{name}: no line 'Avg bus bandwidth': the run did not end, or was cut"
            continue
        rates = [cell.busbw_gbps for row in one.rows for cell in row.cells.values()]
        mean = sum(rates) / len(rates)
        if abs(mean - one.average_gbps) > AVERAGE_TOLERANCE * max(mean, one.average_gbps) + 0.01:
            yield (
                f"{name}: rows are missing: those here average {mean:.4g} GB/s,"
                f" the last line says {one.average_gbps:.4g}"
            )

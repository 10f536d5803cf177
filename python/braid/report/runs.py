"""Records of every form as what a report shows: curves, shares, and where they are from.

Bandwidths are bus bandwidths, GB/s, and bytes are as nccl-tests counts them, whatever the record's
own convention; results with a wrong byte are left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from braid import noise, saved
from braid.errors import InvalidArgument
from braid.report import probes
from braid.report.probes import Probed
from braid.typed_json import Json

_MOST_BYTES, _MOST_US, _MOST_GBPS = 1 << 50, 1e15, 1e9
"""What a record can say of one call; more is a mistake."""


@dataclass(frozen=True)
class Point:
    """One size."""

    nbytes: int
    gbps: float
    time_us: float
    wire_gbps: float | None = None
    """What the links carried; None: not known."""
    is_least: bool = False
    """NVSwitch may have added: wire_gbps, below gbps, is the least that it can have been."""
    noisy: str = ""
    """noise.MARK where the samples vary too much."""
    samples_us: tuple[float, ...] = ()
    """Times of which time_us is the median; none where a record has no more than that."""


@dataclass(frozen=True)
class Curve:
    """One contestant in one operation."""

    op: str
    who: str
    mode: str = ""
    """ "graph" when the calls were captured."""
    points: list[Point] = field(default_factory=list)
    record: str = ""
    """Where it is from, if the page has several records like it."""


@dataclass(frozen=True)
class Share:
    """Who carried what part of one message."""

    op: str
    nbytes: int
    parts: dict[str, float]
    """Link -> 0 to 1."""


@dataclass(frozen=True)
class Run:
    """One record."""

    path: str
    title: str
    """ "2 x NVIDIA H200", "4 ranks on AMD EPYC"; runs of one title are shown together."""
    gpu: str
    curves: list[Curve]
    shares: list[Share]
    facts: dict[str, str]
    """Where it comes from: command, date, commit, versions."""
    paced: bool = False


def load(path: Path) -> Run | Probed:
    """Reads a record, of collectives or of `braid bench KIND`. InvalidArgument, in one line, when
    it is none that can be drawn.
    """
    try:
        document: Json = saved.load(path)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error!s:.200}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    read = _READERS.get(str(schema))
    if read is None:
        known = (
            f"braid.bench/1, braid.probe/1, braid.gpu/1 and /2, {saved.DROP_IN},"
            " and tables of nccl-tests"
        )
        what = (
            "no record: it has no schema" if schema is None else f"{schema!r:.40} cannot be drawn"
        )
        raise InvalidArgument(f"{path}: {what}; a report takes {known}")
    try:
        return read(path.name, document)
    except KeyError as error:
        raise InvalidArgument(f"{path}: the record has no field {error}") from error
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise InvalidArgument(f"{path}: {error!s:.200}") from error


def _facts(document: Json, *names: str) -> dict[str, str]:
    """Fields that say how a run was made, as text."""
    facts = {name: str(document[name]) for name in ("command", "date", "commit")}
    if document["dirty"]:
        facts["commit"] += ", with changes"
    facts.update({name: str(document[name]) for name in names if document.get(name)})
    if document.get("options"):
        facts["options"] = ", ".join(f"{k}={v}" for k, v in document["options"].items())
    return facts


def _curves(rows: Iterable[tuple[str, str, str, Point]]) -> list[Curve]:
    """Rows (operation, who, mode, point) as curves, each in order of size."""
    found: dict[tuple[str, str, str], Curve] = {}
    for op, who, mode, point in rows:
        _check(point, f"{op} of {point.nbytes} B by {who}")
        found.setdefault((op, who, mode), Curve(op, who, mode)).points.append(point)
    for curve in found.values():
        curve.points.sort(key=lambda point: point.nbytes)
    return list(found.values())


def _check(point: Point, where: str) -> None:
    """ValueError for what no axis has a place for."""
    if not 1 <= point.nbytes <= _MOST_BYTES:
        raise ValueError(f"{where}: asked for 1 to {_MOST_BYTES} bytes, found {point.nbytes!r:.40}")
    for what, value, most in (("us", point.time_us, _MOST_US), ("GB/s", point.gbps, _MOST_GBPS)):
        if not 0 < value <= most:
            raise ValueError(f"{where}: asked for {what} from 0 to {most:g}, found {value:g}")


def _with_samples(point: Point, samples_us: Sequence[float]) -> Point:
    return replace(point, noisy=noise.mark(samples_us), samples_us=tuple(samples_us))


def _bench(name: str, document: Json) -> Run:
    from braid.record import bench as record

    run = record.from_json(document)
    rows = []
    for result in run.results:
        if result.wrong_bytes:
            continue
        us = result.times.median_us
        point = _with_samples(
            Point(result.bytes, result.busbw_gbps, us, result.wire_gbps), result.times.samples_us
        )
        rows.append((result.op, "braid", "", point))
        if (base := result.baseline) and not base.wrong_bytes and base.times.median_us > 0:
            other_us = base.times.median_us
            gbps = result.busbw_gbps * us / other_us
            point = _with_samples(Point(result.bytes, gbps, other_us), base.times.samples_us)
            rows.append((result.op, base.name, "", point))
    facts = _facts(document) | {
        "host": f"{run.host.cpu}, {run.host.cores} cores, {run.host.memory_gib:g} GiB",
        "kernel": run.host.kernel,
        "braid": f"{run.versions.braid}, {run.versions.build_type}",
        "fabric": run.fabric_hash,
    }
    shares = [Share(r.op, r.bytes, {use.name: use.share for use in r.links}) for r in run.results]
    several = [share for share in shares if len(share.parts) > 1]
    title = f"{run.ranks} ranks on {run.host.cpu}" + (", links paced" if run.paced else "")
    return Run(name, title, "", _curves(rows), several, facts, run.paced)


def _links(host: float, rdma: float) -> dict[str, float]:
    """Parts of a message by link; a NIC is named where it carried one."""
    shares = {"nvlink": 1 - host - rdma, "host": host}
    return shares | ({"rdma": rdma} if rdma else {})


def _gpu(name: str, document: Json) -> Run:
    from braid.bench.rates import is_least, wire_gbps_of
    from braid.record import old_gpu as old_gpu_record

    run = old_gpu_record.read(document)
    rows = []
    for result in run.results:
        for one in result.runs:
            if one.wrong:
                continue
            wire = wire_gbps_of(one, result, run)
            point = Point(
                result.total_bytes, one.busbw_gbps, one.median_us, wire, is_least(one, wire)
            )
            point = _with_samples(point, one.samples_us)
            rows.append((result.op, one.who, _mode(result.mode), point))
    shares = [
        Share(r.op, r.total_bytes, _links(r.host_share, r.rdma_share or 0.0))
        for r in run.results
        if r.host_share is not None
    ]
    facts = _facts(document, "driver", "cuda", "nccl", "torch", "braid", "stopped")
    cap = run.options.get("BRAID_LINK_CAP")
    title = f"{run.ranks} x {run.gpu}" + (f", links held to {cap}" if cap else "")
    return Run(name, title, run.gpu, _curves(rows), shares, facts)


def _probe(name: str, document: Json) -> Probed:
    from braid.record.probe import from_json

    return probes.of(name, from_json(document))


_READERS: dict[str, Callable[[str, Json], Run | Probed]] = {
    "braid.bench/1": _bench,
    "braid.gpu/1": _gpu,
    "braid.gpu/2": _gpu,
    "braid.probe/1": _probe,
}


def _mode(mode: str) -> str:
    return "graph" if mode == "graph" else ""

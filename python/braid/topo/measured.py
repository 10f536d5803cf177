"""Rates of links out of a bench record.

braid.bench/1 names the links of a run and says of each whether its rate was measured. Records of
GPUs (braid.gpu/1 and /2) have times of collectives; of those only what went over one known kind of
link counts: NCCL's all-gather inside a machine runs over NVLink alone. braid.probe/1 has copies
between two GPUs (p2p), whose kind of link only the topology knows, and between a GPU and the host
(host).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from braid import saved
from braid.topo.errors import BadTopology
from braid.topo.facts import Machine
from braid.typed_json import Json

if TYPE_CHECKING:
    from braid.record.probe import Series

MeasuredKind = Literal["nvlink", "xgmi", "pcie", "nic", "pair"]
"""A pair is two GPUs, whatever joins them."""
_LIBRARY = {"nccl": "NCCL", "nccl-best": "NCCL", "braid": "braid over NVLink"}
_KIND_OF_LINK: dict[str, MeasuredKind] = {"nvlink": "nvlink", "pcie": "pcie", "rdma": "nic"}


@dataclass(frozen=True)
class Measured:
    """One rate, per device and direction."""

    kind: MeasuredKind
    gbps: float
    how: str
    device: str | None = None
    """The NIC or GPU it belongs to; None: every link of this kind."""
    peer: str | None = None
    """Of a pair: the GPU that the bytes went to."""


@dataclass(frozen=True)
class Measurement:
    """What a record says about links."""

    gpu: str
    """The GPU's name, "" when the record has none."""
    rates: list[Measured]


def rates_for(machine: Machine, path: Path) -> list[Measured]:
    """A record's rates; a record of other GPUs than the machine's is refused."""
    measurement = load(path)
    models = {gpu.model for gpu in machine.gpus}
    known = models - {""}
    if measurement.gpu and (not models or known) and not any_same(measurement.gpu, known):
        found = " / ".join(sorted(known)) or "no GPU"
        raise BadTopology(
            f"{path}: a record of {measurement.gpu}, the machine has {found}; --from gives another"
        )
    return [_named(machine, rate, path) for rate in measurement.rates]


def _named(machine: Machine, rate: Measured, path: Path) -> Measured:
    """With the machine's own names of the GPUs. BadTopology for one that it has not."""
    if rate.kind == "nic":
        return rate
    device, peer = (_gpu(machine, name, path) for name in (rate.device, rate.peer))
    return replace(rate, device=device, peer=peer)


def _gpu(machine: Machine, name: str | None, path: Path) -> str | None:
    """A GPU by its name, or by the beginning of its UUID as CUDA_VISIBLE_DEVICES has it."""
    if name is None:
        return None
    for gpu in machine.gpus:
        if gpu.name == name or gpu.uuid.startswith(name):
            return gpu.name
    raise BadTopology(f"{path}: a record with {name}, the machine has {len(machine.gpus)} GPUs")


def any_same(model: str, others: set[str]) -> bool:
    """ "h200" and "NVIDIA H200" are one model."""
    one = model.lower().removeprefix("nvidia ")
    two = [other.lower().removeprefix("nvidia ") for other in others]
    return any(one.startswith(other) or other.startswith(one) for other in two)


def load(path: Path) -> Measurement:
    """Reads a record. BadTopology, in one line, when it is none."""
    try:
        document = saved.load(path)
    except OSError as error:
        raise BadTopology(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadTopology(f"{path}: {error!s:.200}") from error
    return of_document(document, str(path))


def of_document(document: Json, path: str) -> Measurement:
    """A record that was read already; `path` is for messages."""
    schema = document.get("schema") if isinstance(document, dict) else None
    try:
        if schema in _READERS:
            return _checked(_READERS[schema](document))
    except KeyError as error:
        raise BadTopology(f"{path}: the record has no field {error}") from error
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise BadTopology(f"{path}: {error!s:.200}") from error
    raise BadTopology(
        f"{path}: a record is of braid.bench/1, braid.probe/1, braid.gpu/1 or /2,"
        f" {saved.DROP_IN}, not {schema!r:.40}"
    )


def _checked(found: Measurement) -> Measurement:
    """ValueError for a rate that no link can have."""
    for one in found.rates:
        if not 0 < one.gbps < math.inf:  # NaN, too
            raise ValueError(
                f"{one.kind} {one.device or ''}: asked for GB/s above 0, found {one.gbps:g}"
            )
    return found


def _of_bench(document: Json) -> Measurement:
    """Paced links are an experiment's, not the machine's: left out."""
    from braid.record import bench as record

    run = record.from_json(document)
    found = []
    for link in run.fabric:
        kind = _KIND_OF_LINK.get(link.kind)
        if kind is not None and link.source == "measured":
            device = link.name.rpartition(":")[2] if kind == "nic" and ":" in link.name else None
            found.append(Measured(kind, link.rate_gbps, f"braid bench, {run.date[:10]}", device))
    return Measurement("", found)


def _of_gpus(document: Json) -> Measurement:
    """The fastest all-gather of who uses NVLink alone, NCCL or braid held to it: its bus bandwidth
    is what each GPU's NVLinks carried. braid over all links carried more than they did.
    """
    from braid.record import old_gpu as old_gpu_record

    run = old_gpu_record.read(document)
    alone = set() if "BRAID_LINK_CAP" in run.options else {"braid nvlink"}
    found = [
        Measured(
            "nvlink",
            round(one.busbw_gbps, 1),
            f"{_LIBRARY[one.family]} all_gather {result.bytes >> 20} MiB, {run.ranks} GPUs,"
            f" {run.date[:10]}",
        )
        for result in run.results
        if result.op == "all_gather"
        for one in result.runs
        if (one.family in ("nccl", "nccl-best") or one.who in alone) and not one.wrong
    ]
    return Measurement(run.gpu, _best(found))


def _of_probe(document: Json) -> Measurement:
    """Every pair of GPUs, each way alone; of every GPU the fastest way to or from the host alone.
    Between CPUs it is no link of the machine's that was measured.
    """
    from braid.record.probe import from_json

    run = from_json(document)
    if not run.device:
        return Measurement("", [])
    good = [one for one in run.series if one.gbps and not one.wrong_bytes and not one.note]
    visible = [one.strip() for one in run.options.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    how = f"braid bench {run.kind}, {run.date[:10]}"
    find = {"p2p": _of_pairs, "host": _of_host}.get(run.kind)
    found = list(find(good, [one for one in visible if one], how)) if find else []
    return Measurement(run.device.partition(" x ")[2], found)


def _of_pairs(series: "Sequence[Series]", visible: Sequence[str], how: str) -> Iterator[Measured]:
    for one in series:
        a, b = _place(one.start, visible), _place(one.end, visible)
        if one.group == "one way" and one.gbps and a and b:
            yield Measured("pair", round(one.gbps, 1), how, a, b)


def _of_host(series: "Sequence[Series]", visible: Sequence[str], how: str) -> Iterator[Measured]:
    best: dict[str, float] = {}
    for one in series:
        gpu = _place(one.case, visible)
        if gpu and one.gbps and one.group.startswith(("d2h ", "h2d ")):
            best[gpu] = max(best.get(gpu, 0.0), one.gbps)
    for gpu, gbps in best.items():
        yield Measured("pcie", round(gbps, 1), how, gpu)


def _place(name: str, visible: Sequence[str]) -> str | None:
    """ "gpu1" is GPU1, or the second of the GPUs that the run was allowed to see."""
    number = name.removeprefix("gpu")
    if number == name or not (number.isascii() and number.isdigit() and len(number) < 5):
        return None
    if not visible:
        return f"GPU{int(number)}"
    if int(number) >= len(visible):
        raise ValueError(f"{name}, where CUDA_VISIBLE_DEVICES names {len(visible)} GPUs")
    seen = visible[int(number)]
    return f"GPU{seen}" if seen.isdigit() else seen


def _best(found: list[Measured]) -> list[Measured]:
    return [max(found, key=lambda one: one.gbps)] if found else []


_READERS = {
    "braid.bench/1": _of_bench,
    "braid.gpu/1": _of_gpus,
    "braid.gpu/2": _of_gpus,
    "braid.probe/1": _of_probe,
}

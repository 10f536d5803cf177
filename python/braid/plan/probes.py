"""A node by what `braid bench p2p` and `braid bench host` measured of its links.

A record of pairs has one GPU's rate to one other, alone; a record of the host the way between one
GPU and the host's memory. The slowest counts, as a collective waits for it. What else is known of
the GPU's links comes from our table. Other probes have no link's rate.
"""

import re
from dataclasses import replace

from braid.plan import hardware
from braid.plan.basis import Basis
from braid.plan.formulas import rates
from braid.plan.hardware import Hardware, Path
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError
from braid.topo.errors import BadTopology
from braid.topo.measured import Measured, of_document

SCHEMA = "braid.probe/1"
_COUNT = re.compile(r"(\d{1,4}) x ")


def machine(document: Json, origin: str) -> Hardware:
    """The node of a record. PlanError when the record has no rate of its GPUs' links."""
    try:
        found = of_document(document, origin)
    except BadTopology as error:
        raise PlanError(str(error)) from error
    kind = str(document["kind"])
    if not found.rates:
        raise PlanError(
            f"{origin}: a record of braid bench {kind:.40} without a rate of GPUs' links;"
            " braid plan takes those of p2p and host on GPUs"
        )
    count = _COUNT.match(str(document["device"]))
    known = hardware.of_gpu(found.gpu)
    paths = _paths(found.rates, known, f"braid bench {kind}, {origin}")
    return Hardware(
        name=origin,
        title=_COUNT.sub("", str(document["device"]), count=1),
        gpus_per_node=int(count[1]) if count else _gpus(found.rates),
        paths=paths,
        peak_tflops=known.peak_tflops if known else 0.0,
        memory_gb=known.memory_gb if known else 0.0,
        peak_origin=known.peak_origin if known else "",
    )


def _gpus(measured: list[Measured]) -> int:
    return len({name for one in measured for name in (one.device, one.peer) if name})


def _paths(measured: list[Measured], known: Hardware | None, origin: str) -> tuple[Path, ...]:
    pairs = [one.gbps for one in measured if one.kind == "pair"]
    ways = [one.gbps for one in measured if one.kind == "pcie"]
    if pairs:
        where = f"the slowest of {len(pairs)} pairs, {origin}"
        return (_of_pairs(min(pairs), known, where), *_host(known))
    where = f"the slowest of {len(ways)} GPUs to or from the host, {origin}"
    staged = _path("host-staged", "host", min(ways), where)
    return (staged,)


def _host(known: Hardware | None) -> list[Path]:
    return [path for path in known.paths if path.shape == "host"] if known else []


def _of_pairs(gbps: float, known: Hardware | None, origin: str) -> Path:
    """Faster than the GPU's PCIe slot: its own links. Else PCIe between GPUs, each with one slot
    that all its peers share.
    """
    host = _host(known)
    first = known.paths[0] if known else None
    if not first or first.shape == "host" or (host and gbps <= host[0].rate_gbps):
        return _path("pcie", "switched", gbps, origin)
    peers = round(first.rate_gbps / first.pair_gbps) if first.shape == "mesh" else 1
    return replace(
        first,
        rate_gbps=rates.mesh_gbps(gbps, peers + 1) if peers > 1 else gbps,
        pair_gbps=gbps,
        origin=origin,
        basis=Basis.MEASURED,
        curves=(),
    )


def _path(name: str, shape: str, gbps: float, origin: str) -> Path:
    return Path(name, shape, gbps, gbps, 0.0, 0.0, origin, Basis.MEASURED)

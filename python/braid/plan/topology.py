"""A saved topology as a machine.

Of a braid.topo/1 document these fields are read, and no others, so that the format can grow:

    gpus[]    model
    links[]   kind: "nvlink", "xgmi", "pcie"; a: the GPU's name, as "GPU0";
              theoretical_gbps: one direction, all links of this row together;
              measured_gbps: the same, or null
"""

from collections.abc import Sequence

from braid.plan import hardware
from braid.plan.basis import Basis
from braid.plan.hardware import Hardware, Path
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

SCHEMA = "braid.topo/1"
_PATHS = {
    "nvlink": ("nvlink", "switched"),
    "xgmi": ("xgmi", "mesh"),
    "pcie": ("host-staged", "host"),
}


def machine(document: Json, origin: str) -> Hardware:
    """The node of a topology. PlanError when it has no GPU, or a field is not what it must be."""
    try:
        models = [str(gpu["model"]) for gpu in document["gpus"]]
        links = [row for row in document["links"] if row["kind"] in _PATHS]
        paths = tuple(
            _path(kind, [row for row in links if row["kind"] == kind], origin)
            for kind in _PATHS
            if any(row["kind"] == kind for row in links)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{origin}: not a whole topology: {error!r}") from error
    if not models or not paths:
        raise PlanError(f"{origin}: a topology without GPUs or without links between them")
    known = hardware.of_gpu(models[0])
    return Hardware(
        name=origin,
        title=f"{len(models)} x {models[0]}",
        gpus_per_node=len(models),
        paths=paths,
        peak_tflops=known.peak_tflops if known else 0.0,
        memory_gb=known.memory_gb if known else 0.0,
    )


def _path(kind: str, rows: Sequence[Json], origin: str) -> Path:
    """The slowest GPU decides: a collective waits for it."""
    name, shape = _PATHS[kind]
    rows_of: dict[str, list[Json]] = {}
    for row in rows:
        rows_of.setdefault(str(row["a"]), []).append(row)
    rate = min(sum(_rate(row) for row in own) for own in rows_of.values())
    pair = min(_rate(row) for row in rows)
    is_measured = all(row.get("measured_gbps") for row in rows)
    basis = Basis.MEASURED if is_measured else Basis.SPECIFIED
    return Path(name, shape, rate, pair, 0.0, False, f"{kind} of {origin}", basis)


def _rate(row: Json) -> float:
    return float(row.get("measured_gbps") or row["theoretical_gbps"])

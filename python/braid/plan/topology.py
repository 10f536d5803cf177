"""A saved topology as a machine.

Of a braid.topo/1 document these fields are read, and no others, so that the format can grow:

    gpus[]    name, model
    links[]   a: a GPU's name; b: "NVSwitch" behind a switch, else the peer's name;
              kind: "nvlink", "xgmi" or "pcie"; theoretical_gbps: one direction, all links of the
              row together; optional: measured_gbps, nccl_gbps, basis ("specified" or "assumed")

What a source does not tell (nvidia-smi's matrix has no PCIe rates) comes from our own tables.
"""

from collections.abc import Sequence
from math import isclose
from typing import TYPE_CHECKING

from braid.plan import gpus, hardware
from braid.plan.basis import Basis, weakest
from braid.plan.hardware import Hardware, Path
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

if TYPE_CHECKING:
    from braid.topo.groups import Links

SCHEMA = "braid.topo/1"
_SWITCH = "NVSwitch"
_MOST_GBPS = 1e9
_PATHS = {"nvlink": "nvlink", "xgmi": "xgmi", "pcie": "host-staged"}


def machine(document: Json, origin: str) -> Hardware:
    """The node of a topology. PlanError when it has no GPU, or a field is not what it must be."""
    try:
        models = {str(gpu["name"]): str(gpu["model"]) for gpu in document["gpus"]}
        model = next(iter(models.values()), "")
        rows = [row for row in document["links"] if row["a"] in models and row["kind"] in _PATHS]
        rows = [row for row in rows if _rate(row) > 0]
        kinds = [kind for kind in _PATHS if any(row["kind"] == kind for row in rows)]
        paths = [
            _path(kind, [row for row in rows if row["kind"] == kind], origin, len(models), model)
            for kind in kinds
        ]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PlanError(f"{origin}: not a whole topology: {error!r:.200}") from error
    gpu = gpus.find(model)
    host = hardware.host_path(model)
    if host and "pcie" not in kinds:
        paths.append(host)
    if not paths:
        raise PlanError(f"{origin}: a topology without GPUs, or without rates of their links")
    return Hardware(
        name=origin,
        title=" and ".join(dict.fromkeys(models.values())),
        gpus_per_node=len(models),
        paths=tuple(paths),
        peak_tflops=gpu.peak_tflops if gpu else 0.0,
        memory_gb=gpu.memory_gb if gpu else 0.0,
        peak_origin=gpu.origin if gpu else "",
    )


def _path(kind: str, rows: Sequence[Json], origin: str, count: int, model: str) -> Path:
    """The slowest GPU decides: a collective waits for it."""
    rows_of: dict[str, list[Json]] = {}
    for row in rows:
        rows_of.setdefault(row["a"], []).append(row)
    rate = min(sum(map(_rate, own)) for own in rows_of.values())
    shape = "host" if kind == "pcie" else "mesh"
    if kind == "nvlink" and all(row["b"] == _SWITCH for row in rows):
        shape = "switched"
    links = None if kind == "pcie" else _links(rows, count)
    return Path(
        name=_PATHS[kind],
        shape=shape,
        rate_gbps=rate,
        pair_gbps=min(map(_rate, rows)),
        library_gbps=min(_finite(row.get("nccl_gbps")) for row in rows)
        if shape == "switched"
        else 0.0,
        nvls_part=hardware.nvls_part(model) if shape == "switched" else 0.0,
        origin=f"{kind} of {origin}",
        basis=weakest(map(_basis, rows)),
        links=links,
    )


def _links(rows: Sequence[Json], count: int) -> "Links | None":
    """Who is joined; None where all of the machine's GPUs are, one like the other."""
    from braid.topo.groups import Bundle, Links  # here, as most commands need none

    links = Links(Bundle(str(row["a"]), str(row["b"]), _rate(row)) for row in rows)
    whole = links.best_group(count)
    if whole is None or not whole.is_direct:
        return links
    is_even = whole.is_switched or isclose(whole.pair_gbps * (count - 1), whole.rate_gbps)
    return None if is_even else links


def _rate(row: Json) -> float:
    return _finite(row.get("measured_gbps") or row["theoretical_gbps"])


def _finite(value: Json) -> float:
    """A rate; none is 0."""
    gbps = float(value or 0)
    if not 0 <= gbps <= _MOST_GBPS:  # NaN, too
        raise ValueError(f"a rate of {value!r:.40} GB/s")
    return gbps


def _basis(row: Json) -> Basis:
    if row.get("measured_gbps"):
        return Basis.MEASURED
    return Basis.ASSUMED if row.get("basis") == "assumed" else Basis.SPECIFIED

"""What links are specified to carry, by a GPU's name or architecture, out of the tables of
`braid plan`: plan/data/links.json and sockets.json, each row with its source.

All rates are GB/s = 1e9 bytes per second, one direction. Data sheets mostly print both directions
together, and `nvidia-smi nvlink -s` the raw line rate, 6 % above what is payload; neither is here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from braid.plan import shipped
from braid.plan.formulas import rates
from braid.topo.facts import Gpu, GpuLinkKind


@dataclass(frozen=True)
class LinkSpec:
    """One generation of links between GPUs."""

    name: str
    gbps_each: float
    links: int
    """On a GPU that has them all."""
    nccl_gbps_each: float | None
    """What NCCL's own tables reckon with: after protocol, for kernels."""


def _specs() -> Iterator[tuple[dict[str, Any], LinkSpec]]:
    """Rows that tell which GPUs have them."""
    for row in shipped.table("links").values():
        if "models" in row or "arch" in row:
            each = float(rates.links_gbps(row["lane_gbps"], row["lanes"], 1))
            nccl = float(row["nccl_link_gbps"]) if "nccl_link_gbps" in row else None
            yield row, LinkSpec(row.get("name") or row["title"], each, row["links"], nccl)


# Export models have fewer links than their chip: their name counts before their architecture.
_BY_MODEL = tuple((row["models"], spec) for row, spec in _specs() if "models" in row)
_BY_ARCH = {arch: spec for row, spec in _specs() for arch in row.get("arch", ())}
# Without a name: NVLink 2, 3 and 4 all carry 25 a link. An NVLink 5 carries twice that.
ASSUMED_NVLINK = LinkSpec("NVLink", 25.0, 0, 20.0)


def model_known(model: str) -> LinkSpec | None:
    """The links of a GPU by its name: "NVIDIA H800", "h100"."""
    return next((spec for text, spec in _BY_MODEL if re.search(text, model, re.IGNORECASE)), None)


def links_of(gpu: Gpu) -> LinkSpec | None:
    """The links of a GPU by name, else by architecture; None when neither says."""
    return model_known(gpu.model) or _BY_ARCH.get(gpu.arch)


def spec_for(gpu: Gpu, kind: GpuLinkKind) -> LinkSpec | None:
    """links_of(), and for an unknown NVIDIA GPU what most generations carry."""
    return links_of(gpu) or (ASSUMED_NVLINK if kind == "nvlink" else None)


_PCIE: dict[int, dict[str, Any]] = {
    row["generation"]: row for row in shipped.table("links").values() if "generation" in row
}


def pcie_of_model(model: str) -> int | None:
    """The PCIe generation of the slot that a card's data sheet names, with 16 lanes: for sources
    that tell no PCIe. None for a card that is not known.
    """
    for generation, row in _PCIE.items():
        if "cards" in row and re.search(row["cards"], model, re.IGNORECASE):
            return generation
    return None


def pcie_generation(gts: float) -> int | None:
    """5 for 32 GT/s; None for a speed that is no generation's."""
    return next((one for one, row in _PCIE.items() if row["gt_per_s"] == gts), None)


def pcie_speed(generation: int) -> float:
    """32 GT/s for 5; 0 for an unknown generation."""
    return float(_PCIE[generation]["gt_per_s"]) if generation in _PCIE else 0.0


def pcie_gbps(gts: float, width: int) -> float | None:
    """A link's rate: 63.0 for 32 GT/s on 16 lanes. None when speed or width is not told."""
    generation = pcie_generation(gts)
    if generation is None or width <= 0:
        return None
    row = _PCIE[generation]
    return rates.pcie_gbps(gts, row["payload"], row["frame"], width)


_NCCL_PER_LANE = {2.5: 0.1875, 5: 0.375, 8: 0.75, 16: 1.5, 32: 3.0, 64: 6.0}
"""GB/s that NCCL reckons with for a lane (src/graph/topo.cc, kvDictPciGen, by 80)."""


def nccl_pcie_gbps(gts: float, width: int) -> float | None:
    """What NCCL reckons with for a PCIe link: 12 for 8 GT/s on 16 lanes."""
    per_lane = _NCCL_PER_LANE.get(gts)
    return per_lane * width if per_lane and width > 0 else None


def socket_gbps(arch: str, vendor: str, model: int | None) -> float | None:
    """What NCCL reckons with between two sockets (src/graph/topo.h); None for a CPU it does not
    know.
    """
    for row in shipped.table("sockets"):
        is_own = row.get("vendor") == vendor or arch in row.get("arch", ())
        least, most = row.get("models", (None, None))
        if is_own and (least is None or (model is not None and least <= model <= most)):
            return float(row["gbps"])
    return None

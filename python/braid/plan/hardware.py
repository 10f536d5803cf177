"""Machines: GPUs of one node, the paths between them, and what was measured on them.

A machine is described by name (data/hardware.json), by records of `braid bench`, or by a saved
topology of `braid topo`. A path is one way between the GPUs of a node: NVLink, or through host
memory. Rates are per GPU and direction.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from braid.plan import gpus, shipped
from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve
from braid.plan.formulas import collectives, rates
from braid.plan.path import Path
from braid.plan.wrong import PlanError, above_zero, unknown

__all__ = ["Hardware", "Path"]

_CARD = re.compile(r"\bPCIE\b|\bNVL\b", re.IGNORECASE)
"""Models that come as cards: bridges join two or four of them."""


@dataclass(frozen=True)
class Hardware:
    """A node."""

    name: str
    title: str
    """Of one of its GPUs, for people: "8 x" stands before it."""
    gpus_per_node: int
    paths: tuple[Path, ...]
    """The one that libraries choose comes first."""
    peak_tflops: float
    """Dense bf16; 0 when not known."""
    memory_gb: float
    peak_origin: str

    def path(self, name: str, ranks: int = 1, op: str = "all_reduce") -> Path:
        """By name; for "auto" the first that joins so many GPUs. PlanError when it does not."""
        named = [path for path in self.paths if name in ("auto", path.name)]
        if not named:
            raise unknown(f"path of {self.name}", name, [path.name for path in self.paths])
        for path in named:
            if path.joins(ranks, op):
                return path
        tried = " and no ".join(path.name for path in named)
        raise PlanError(
            f"{self.name}: no {tried} joins {ranks} of its GPUs for {op}{self._instead(ranks, op)}"
        )

    def _instead(self, ranks: int, op: str) -> str:
        others = [path.name for path in self.paths if path.joins(ranks, op)]
        if others:
            return f"; --path {others[0]} does"
        return ", and the rate of its PCIe is not known; braid bench host measures it"

    def apart(self, ranks: int, op: str = "all_reduce") -> list[str]:
        """Warnings: paths that do not join so many GPUs."""
        return [
            f"{path.name} joins no {ranks} of these GPUs: a group of them sends another way"
            for path in self.paths
            if not path.joins(ranks, op)
        ]

    def peak(self) -> Quantity:
        """Peak of one GPU. PlanError when it is not known."""
        if not self.peak_tflops:
            raise PlanError(f"{self.name}: its peak is not known; give --peak-tflops")
        return Quantity(self.peak_tflops, "TFLOP/s", Basis.SPECIFIED, self.peak_origin)

    def with_peak(self, tflops: float) -> "Hardware":
        """The same node with another peak."""
        above_zero("--peak-tflops", tflops)
        return replace(self, peak_tflops=tflops, peak_origin="as given")

    def of(self, gpu: gpus.Gpu) -> "Hardware":
        """The same node with another GPU's peak and memory."""
        return replace(
            self,
            peak_tflops=gpu.peak_tflops,
            memory_gb=gpu.memory_gb,
            peak_origin=gpu.origin,
        )

    def with_curves(self, curves: list[Curve]) -> "Hardware":
        """The same node with measurements, which come before older ones; each belongs to the path
        that its group took.
        """
        own: dict[str, list[Curve]] = {}
        for curve in curves:
            joining = (path for path in self.paths if path.joins(curve.ranks, curve.op))
            own.setdefault(next(joining, self.paths[0]).name, []).append(curve)
        paths = [
            replace(path, curves=(*own.get(path.name, []), *path.curves)) for path in self.paths
        ]
        return replace(self, paths=tuple(paths))


def names() -> list[str]:
    """The machines we know by name."""
    return list(shipped.table("hardware"))


def find(name: str) -> Hardware:
    """By name, or by its beginning where that is one machine's: "h200". PlanError with the nearest
    one else.
    """
    table = shipped.table("hardware")
    plain = re.sub(r"[ _]|^nvidia ", "", name.lower())
    begun = [full for full in table if full.startswith((f"{plain}-", f"rtx{plain}-"))]
    found = plain if plain in table else begun[0] if len(begun) == 1 else ""
    if not found:
        raise unknown("hardware", name, table, "or a file: what braid topo reads, a bench record")
    row = table[found]
    return Hardware(
        name=found,
        title=row["title"],
        gpus_per_node=row["gpus_per_node"],
        paths=tuple(_path(found, path, link) for path, link in row["paths"].items()),
        peak_tflops=row["peak_tflops"],
        memory_gb=row["memory_gb"],
        peak_origin=shipped.source(row["source"]),
    )


def of_gpu(model: str) -> Hardware | None:
    """Our row for a GPU as drivers name it: "NVIDIA H200"; the first that fits, None else. Cards
    have no switch: of those only the way through host memory is known.
    """
    words = model.lower().replace("-", " ").split()
    glued = [a + b for a, b in pairwise(words)]  # "RTX 4090"
    name = next((name for name in names() if name.split("-")[0] in (*words, *glued)), None)
    if not name:
        return None
    found = find(name)
    if _CARD.search(model):
        hosts = tuple(path for path in found.paths if path.shape == "host")
        found = replace(found, paths=hosts or found.paths, title=model)
    gpu = gpus.find(model)
    return found if gpu is None else found.of(gpu)


def host_path(model: str) -> Path | None:
    """The way through host memory of a card whose PCIe slot is known; None else."""
    for link, row in shipped.table("links").items():
        if "cards" in row and re.search(row["cards"], model, re.IGNORECASE):
            return _path("", "host-staged", link)
    return None


def _path(hardware: str, name: str, link: str) -> Path:
    row = shipped.table("links")[link]
    return Path(
        name=name,
        shape=row["shape"],
        rate_gbps=link_gbps(link),
        pair_gbps=pair_gbps(link),
        library_gbps=library_gbps(link),
        nvls_part=row.get("nccl_nvls_part", 0.0),
        origin=f"{row['title']} ({shipped.source(row['source'])})",
        curves=(*_curves(hardware, name), *_of_the_same_links(hardware, name, link)),
    )


def _curves(hardware: str, path: str) -> list[Curve]:
    """What was measured there."""
    wanted = (hardware, path)
    rows = shipped.table("measured")["curves"]
    return [_curve(row) for row in rows if (row["hardware"], row["path"]) == wanted]


def _of_the_same_links(hardware: str, path: str, link: str) -> list[Curve]:
    """What was measured on other GPUs that the same links join: H200 for H100. Host memory is not
    the same behind the same slots.
    """
    rows = shipped.table("hardware")
    others = [name for name in rows if name != hardware and rows[name]["paths"].get(path) == link]
    if shipped.table("links")[link]["shape"] == "host":
        return []
    return [
        replace(curve, lender=rows[other]["title"])
        for other in others
        for curve in _curves(other, path)
    ]


def link_gbps(link: str) -> float:
    """One direction of all of a GPU's links of this kind; of one slot for PCIe."""
    row = shipped.table("links")[link]
    if row["shape"] == "host":
        return rates.pcie_gbps(row["gt_per_s"], row["payload"], row["frame"], row["lanes"])
    return rates.links_gbps(row["lane_gbps"], row["lanes"], row["links"])


def one_link_gbps(link: str) -> float:
    """One direction of one of a GPU's links."""
    row = shipped.table("links")[link]
    return rates.links_gbps(row["lane_gbps"], row["lanes"], 1)


def pair_gbps(link: str) -> float:
    """One direction between two GPUs that no other GPU helps."""
    row = shipped.table("links")[link]
    parts = row["links"] if row["shape"] == "mesh" else 1
    return link_gbps(link) / parts


def nvls_part(model: str) -> float:
    """What NCCL expects where NVSwitch adds, as a part of the links' rate; 0 where it does not."""
    for row in shipped.table("links").values():
        if row.get("models") and re.search(row["models"], model):
            return float(row.get("nccl_nvls_part", 0.0))
    return 0.0


def library_gbps(link: str) -> float:
    """What NCCL's planner expects of a GPU's links; 0 where it says nothing."""
    row = shipped.table("links")[link]
    expected: float = row.get("nccl_link_gbps", 0) * row.get("links", 0)
    return expected


def _curve(row: dict[str, Any]) -> Curve:
    op, ranks = row["op"], row["ranks"]
    points = [
        (nbytes, value if row["unit"] == "us" else collectives.time_us(op, ranks, nbytes, value))
        for nbytes, value in row["points"]
    ]
    curve = Curve.of(op, ranks, points, row["path"], shipped.source(row["source"]))
    return replace(curve, is_multicast=row.get("nvls", False))

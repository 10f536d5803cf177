"""Machines: GPUs of one node, the paths between them, and what was measured on them.

A machine is described by name (data/hardware.json), by records of `braid bench`, or by a saved
topology of `braid topo`. A path is one way between the GPUs of a node: NVLink, or through host
memory. Rates are per GPU and direction.
"""

from dataclasses import dataclass, replace
from typing import Any

from braid.plan import shipped
from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve
from braid.plan.formulas import collectives, rates
from braid.plan.wrong import PlanError, above_zero, unknown


@dataclass(frozen=True)
class Path:
    """One way between the GPUs of a node."""

    name: str
    shape: str
    """switched: any group has the full rate; mesh: every pair has a link of its own; host: through
    host memory.
    """
    rate_gbps: float
    """One GPU to all others together, as specified; 0 when not known."""
    pair_gbps: float
    """One GPU to one other."""
    library_gbps: float
    """What NCCL's own planner expects of it; 0 when it does not say."""
    nvls_part: float
    """Of library_gbps, what NCCL expects when NVSwitch adds; 0 where it cannot, or must not."""
    origin: str
    basis: Basis = Basis.SPECIFIED
    curves: tuple[Curve, ...] = ()

    def specified(self, ranks: int) -> Quantity:
        """The rate that a group of this size has."""
        if self.shape == "mesh":
            gbps = min(rates.mesh_gbps(self.pair_gbps, ranks), self.rate_gbps)
            return Quantity(gbps, "GB/s", self.basis, f"{self.origin}; {_links(ranks - 1)} in use")
        return Quantity(self.rate_gbps, "GB/s", self.basis, self.origin)

    def achievable(self, ranks: int, algorithm: str = "ring") -> Quantity:
        """What a library will reach of it for large messages."""
        if self.library_gbps:
            part = self.nvls_part if algorithm == "nvls" else 1.0
            gbps = self.library_gbps * part
            rate = self.specified(ranks)
            if self.basis is Basis.MEASURED and rate.value < gbps:
                return replace(rate, basis=Basis.ASSUMED)
            return Quantity(gbps, "GB/s", Basis.ASSUMED, "what NCCL plans with")
        part = rates.HOST_STAGED if self.shape == "host" else rates.ACHIEVABLE
        gbps = rates.achievable_gbps(self.specified(ranks).value, part)
        return Quantity(gbps, "GB/s", Basis.ASSUMED, f"{part:.0%} of {self.origin}")


@dataclass(frozen=True)
class Hardware:
    """A node."""

    name: str
    title: str
    gpus_per_node: int
    paths: tuple[Path, ...]
    """The one that libraries choose comes first."""
    peak_tflops: float
    """Dense bf16; 0 when not known."""
    memory_gb: float
    peak_origin: str

    def path(self, name: str) -> Path:
        """By name; the first one for "auto"."""
        if name == "auto":
            return self.paths[0]
        for path in self.paths:
            if path.name == name:
                return path
        raise unknown(f"path of {self.name}", name, [path.name for path in self.paths])

    def peak(self) -> Quantity:
        """Peak of one GPU. PlanError when it is not known."""
        if not self.peak_tflops:
            raise PlanError(f"{self.name}: its peak is not known; give --peak-tflops")
        return Quantity(self.peak_tflops, "TFLOP/s", Basis.SPECIFIED, self.peak_origin)

    def with_peak(self, tflops: float) -> "Hardware":
        """The same node with another peak."""
        above_zero("--peak-tflops", tflops)
        return replace(self, peak_tflops=tflops, peak_origin="as given")

    def with_curves(self, curves: list[Curve]) -> "Hardware":
        """The same node with measurements, which come before older ones."""
        first, *others = self.paths
        return replace(self, paths=(replace(first, curves=(*curves, *first.curves)), *others))


def _links(count: int) -> str:
    return f"{count} link{'s' * (count != 1)}"


def names() -> list[str]:
    """The machines we know by name."""
    return list(shipped.table("hardware"))


def find(name: str) -> Hardware:
    """By name, or by its beginning where that is one machine's: "h200". PlanError with the nearest
    one else.
    """
    table = shipped.table("hardware")
    begun = [full for full in table if full.startswith(f"{name.lower()}-")]
    found = name.lower() if name.lower() in table else begun[0] if len(begun) == 1 else ""
    if not found:
        raise unknown("hardware", name, table)
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
    """Our row for a GPU as drivers name it: "NVIDIA H200"; the first that fits, None else."""
    words = model.lower().replace("-", " ").split()
    name = next((name for name in names() if name.split("-")[0] in words), None)
    return find(name) if name else None


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
        curves=tuple(
            _curve(measured)
            for measured in shipped.table("measured")["curves"]
            if measured["hardware"] == hardware and measured["path"] == name
        ),
    )


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

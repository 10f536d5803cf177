"""One way between the GPUs of a node: who is joined by it, and at what rate. Rates are per GPU and
direction.
"""

from dataclasses import dataclass, replace
from math import isclose
from typing import TYPE_CHECKING

from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve
from braid.plan.formulas import rates

if TYPE_CHECKING:
    from braid.topo.groups import Group, Links


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
    links: "Links | None" = None
    """Which GPUs are joined, where not all are alike; None: any group has its part."""

    def joins(self, ranks: int, op: str = "all_reduce") -> bool:
        """Whether a collective of so many GPUs, well chosen, stays on this path. An all_to_all
        needs a link between every two; rings pass on what the others send.
        """
        if self.links is None or ranks == 1 or self._has_curve(ranks, op):
            return True
        group = self._group(ranks)
        return group is not None and (op != "all_to_all" or group.is_direct)

    def is_mesh(self, ranks: int) -> bool:
        """Whether every GPU of the group sends to each of the others over an equal link."""
        group = self._group(ranks)
        if group is None:
            return self.shape == "mesh"
        is_even = isclose(group.pair_gbps * (ranks - 1), group.rate_gbps)
        return group.is_direct and not group.is_switched and is_even

    def _has_curve(self, ranks: int, op: str) -> bool:
        return any((curve.ranks, curve.op) == (ranks, op) for curve in self.curves)

    def _group(self, ranks: int) -> "Group | None":
        return self.links.best_group(ranks) if self.links else None

    def specified(self, ranks: int) -> Quantity:
        """The rate that a group of this size has."""
        group = self._group(ranks)
        if group:
            how = "" if self.is_mesh(ranks) or group.is_switched else "; by rings over the links"
            return Quantity(group.ring_gbps, "GB/s", self.basis, f"{self.origin}{how}")
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


def _links(count: int) -> str:
    return f"{count} link{'s' * (count != 1)}"

"""What is asked about one collective, and what is answered."""

from dataclasses import dataclass

from braid.plan.amounts import amount
from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import collectives
from braid.plan.wrong import PlanError, a_count, above_zero


@dataclass(frozen=True)
class Request:
    """The question."""

    op: str
    nbytes: float
    ranks: int
    """On one node."""
    nodes: int = 1

    def check(self) -> None:
        """PlanError for numbers that no machine has."""
        if self.op not in collectives.OPS:
            raise PlanError(f"'{self.op}' is no operation; braid has {', '.join(collectives.OPS)}")
        above_zero("bytes", self.nbytes)
        a_count("ranks", self.ranks)
        a_count("nodes", self.nodes)

    @property
    def all_ranks(self) -> int:
        """The number of ranks on all nodes together."""
        return self.ranks * self.nodes


@dataclass(frozen=True)
class Leg:
    """Of a call over several nodes: what goes over the links of a node, or over the NICs."""

    way: str
    nbytes: float
    """Per GPU, in the busier direction."""
    steps: int
    least_us: Quantity
    """At the specified rate."""
    likely_us: float
    """At what a library reaches of it."""


@dataclass(frozen=True)
class Prediction:
    """The answer."""

    request: Request
    algorithm: str
    """ "measured" when the library chose."""
    time_us: Quantity
    least_us: Quantity
    """The bytes on the wire at the full specified rate, which nothing beats."""
    most_us: Quantity | None = None
    """Of several nodes: inside and outside one after the other."""
    legs: tuple[Leg, ...] = ()
    """Of several nodes: inside, then between them."""
    plain: "Prediction | None" = None
    """Where NVSwitch adds: what NCCL would take without."""

    def remark(self) -> list[str]:
        """A line about NVSwitch's adding, where it does; else none."""
        if self.plain is None:
            return []
        size = amount(Quantity(self.request.nbytes, "B", Basis.EXACT, ""), binary=True)
        way = self.plain.algorithm
        return [
            f"{self.request.op} of {size}: NCCL takes NVLS here; NCCL_NVLS_ENABLE=0 leaves the"
            f" {'ring' if way == 'hierarchical' else way},"
            f" {amount(self.plain.time_us)} at {self.plain.busbw_gbps:,.4g} GB/s"
        ]

    @property
    def algbw_gbps(self) -> float:
        """Bytes by time."""
        if not self.time_us.value:
            return 0.0
        return collectives.algbw_gbps(self.request.nbytes, self.time_us.value)

    @property
    def busbw_gbps(self) -> float:
        """Bytes by time, times the bus factor."""
        return self.algbw_gbps * collectives.bus_factor(self.request.op, self.request.all_ranks)

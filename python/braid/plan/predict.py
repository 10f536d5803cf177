"""How long one collective takes: from measurements where there are some, else from the links.

In this order, and the answer says which it was:
1. a curve of the same operation and number of ranks whose points reach the size;
2. a curve of another number of ranks, carried over by the bytes on the wire (not on a mesh, where
   a smaller group has fewer links);
3. the links: steps * latency + bytes on the wire / what a library reaches of the rate.
Asking for an algorithm skips the curves: they do not say which one the library took.
"""

from dataclasses import dataclass

from braid.plan import protocols
from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve
from braid.plan.formulas import collectives, rates
from braid.plan.hardware import Path
from braid.plan.network import Network
from braid.plan.wrong import PlanError, a_count, above_zero

_CLOSE = 16
"""Points further apart than this do not measure what is between them."""


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
        """Of all nodes."""
        return self.ranks * self.nodes


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


def predict(
    request: Request, path: Path, network: Network | None = None, algorithm: str = "auto"
) -> Prediction:
    """The time of one call. PlanError when the machine cannot do what is asked."""
    request.check()
    _check_algorithm(request, path, algorithm)
    if request.all_ranks == 1:
        nothing = Quantity(0.0, "us", Basis.EXACT, "one rank has nobody to talk to")
        return Prediction(request, "none", nothing, nothing)
    if request.nodes > 1:
        return _over_nodes(request, path, network)
    if algorithm == "auto":
        measured = from_curves(request, path)
        if measured:
            return Prediction(request, "measured", measured, _least_of_any(request, path))
        is_direct = path.shape == "mesh" or request.op in ("all_to_all", "send")
        algorithm = "direct" if is_direct else "ring"
    return _from_links(request, path, algorithm)


def _check_algorithm(request: Request, path: Path, algorithm: str) -> None:
    if algorithm not in ("auto", *collectives.ALGORITHMS):
        known = ", ".join(("auto", *collectives.ALGORITHMS))
        raise PlanError(f"'{algorithm}' is no algorithm; braid has {known}")
    if algorithm == "nvls" and request.op != "all_reduce":
        raise PlanError(f"nvls adds in the switch, which helps all_reduce only, not {request.op}")
    if algorithm == "nvls" and not path.nvls_part:
        raise PlanError(f"nvls needs NVSwitch of generation 3 or later; {path.origin} has none")
    if request.nodes > 1 and algorithm not in ("auto", "ring"):
        raise PlanError("over several nodes only --algorithm ring (hierarchical) is planned")


def from_curves(request: Request, path: Path) -> Quantity | None:
    """From a curve of the same ranks, else of other ranks; None when none reaches the size."""
    fitting = [c for c in path.curves if c.op == request.op and c.covers(request.nbytes)]
    for curve in fitting:
        if curve.ranks == request.ranks:
            return _read(curve, request.nbytes)
    others = [c for c in fitting if c.ranks > 1] if path.shape != "mesh" else []
    if not others or request.ranks == 1:
        return None
    curve = min(others, key=lambda c: abs(c.ranks - request.ranks))
    us = curve.time_us(request.nbytes) * carry_factor(curve, request.ranks)
    origin = f"{curve.origin}; {curve.ranks} ranks, carried over by the bytes on the wire"
    return Quantity(us, "us", Basis.ASSUMED, origin)


def carry_factor(curve: Curve, ranks: int) -> float:
    """What another number of ranks makes of a curve's times."""
    return _fewest_bytes(curve, ranks) / _fewest_bytes(curve, curve.ranks)


def _fewest_bytes(curve: Curve, ranks: int) -> float:
    """On the wire per byte; where the switch adds, a ring still moves less between two."""
    ways = ["ring", "nvls"] if curve.is_multicast else ["ring"]
    return min(collectives.wire_bytes(curve.op, way, ranks, 1.0) for way in ways)


def _read(curve: Curve, nbytes: float) -> Quantity:
    gap = curve.gap(nbytes)
    if gap == 1:
        basis, how = Basis.MEASURED, "measured at this size"
    elif 1 < gap <= _CLOSE:
        basis, how = Basis.MEASURED, "between measured sizes"
    elif gap:
        basis, how = Basis.ASSUMED, f"between measured sizes {gap:.0f} times apart"
    else:
        basis, how = Basis.ASSUMED, "beyond the measured sizes"
    return Quantity(curve.time_us(nbytes), "us", basis, f"{how}; {curve.origin}")


def _least(request: Request, path: Path, algorithm: str) -> Quantity:
    rate = path.specified(request.ranks)
    wire = collectives.wire_bytes(request.op, algorithm, request.ranks, request.nbytes)
    if not rate.value:
        return Quantity(0.0, "us", Basis.ASSUMED, "the link's rate is not known")
    return Quantity(rates.seconds(wire, rate.value) * 1e6, "us", rate.basis, rate.origin)


def _least_of_any(request: Request, path: Path) -> Quantity:
    """A measured call does not say how it was done: the way with the fewest bytes counts."""
    ways = ["ring"]
    if request.op == "all_reduce" and path.nvls_part:
        ways.append("nvls")
    return min((_least(request, path, way) for way in ways), key=lambda least: least.value)


def _from_links(request: Request, path: Path, algorithm: str) -> Prediction:
    rate = path.achievable(request.ranks, algorithm)
    if not rate.value:
        raise PlanError(f"{path.origin}: no rate is known and {request.op} was not measured")
    wire = collectives.wire_bytes(request.op, algorithm, request.ranks, request.nbytes)
    steps = collectives.steps(request.op, algorithm, request.ranks)
    wire_us = rates.seconds(wire, rate.value) * 1e6
    us = protocols.call_us(wire_us, steps, is_multicast=algorithm == "nvls")
    origin = f"{algorithm}, {steps} step{'s' * (steps != 1)}; rate: {rate.origin}"
    time = Quantity(us, "us", Basis.ASSUMED, origin)
    return Prediction(request, algorithm, time, _least(request, path, algorithm))


def _over_nodes(request: Request, path: Path, network: Network | None) -> Prediction:
    """F18: every GPU exchanges its part with its like on the other nodes, over its own part of
    the NICs; inside and outside overlap at best, and follow each other at worst.
    """
    if network is None:
        raise PlanError("several nodes need the NICs' rate: --network, or --nic-gbit and --nic-per")
    if not path.rate_gbps:
        raise PlanError(f"{path.origin}: no rate is known")
    inside = collectives.inside_bytes(request.op, request.ranks, request.nodes, request.nbytes)
    outside = collectives.outside_bytes(request.op, request.ranks, request.nodes, request.nbytes)
    inside_us = 0.0
    if request.ranks > 1:
        inside_us = rates.seconds(inside, path.specified(request.ranks).value) * 1e6
    nic = network.per_gpu(request.ranks)
    outside_us = rates.seconds(outside, nic.value) * 1e6
    origin = f"hierarchical; {nic.origin}"
    usual = f"{origin}; {rates.ACHIEVABLE:.0%} of rates"
    least, most = max(inside_us, outside_us), inside_us + outside_us
    return Prediction(
        request,
        "hierarchical",
        Quantity(_with_latency(request, least), "us", Basis.ASSUMED, usual),
        Quantity(least, "us", nic.basis, origin),
        Quantity(_with_latency(request, most), "us", Basis.ASSUMED, f"{usual}; no overlap"),
    )


def _with_latency(request: Request, wire_us: float) -> float:
    """The time for bytes that take `wire_us` at the specified rates."""
    inside = collectives.steps(request.op, "ring", request.ranks)
    outside = collectives.steps(request.op, "ring", request.nodes)
    return protocols.call_us(wire_us / rates.ACHIEVABLE, inside, outside)

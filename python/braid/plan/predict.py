"""How long one collective takes: from measurements where there are some, else from the links.

In this order, and the answer says which it was:
1. a curve of the same operation and number of ranks whose points reach the size;
2. a curve of another number of ranks, carried over by the bytes on the wire (not on a mesh, where
   a smaller group has fewer links); of a curve where the switch added only if no ring or tree over
   the links is faster: it does not tell what those take;
   Over nodes only a curve of as many nodes, each with as many ranks;
3. the links: steps * latency + bytes on the wire / what a library reaches of the rate; of an
   all_reduce by the ring or the tree, whichever is faster.
Asking for an algorithm skips the curves: they do not say which one the library took.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from braid.plan import protocols
from braid.plan.basis import Basis, Quantity, weakest
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
        return _over_nodes(request, path, network, algorithm)
    if algorithm == "auto":
        curve = _nearest_curve(request, path)
        if curve:
            return _by_curve(curve, request, path)
        is_direct = path.shape == "mesh" or request.op in ("all_to_all", "send")
        if request.op == "all_reduce" and not is_direct:
            return _fastest_plain(request, path)
        algorithm = "direct" if is_direct else "ring"
    return _from_links(request, path, algorithm)


def _fastest_plain(request: Request, path: Path) -> Prediction:
    """Without the switch's adding, as a library left to choose takes it."""
    return min((_from_links(request, path, way) for way in ("ring", "tree")), key=_us)


def _check_algorithm(request: Request, path: Path, algorithm: str) -> None:
    known = ("auto", *collectives.NODE_WAYS)
    if algorithm not in known:
        raise PlanError(f"'{algorithm}' is no algorithm; braid has {', '.join(known)}")
    if algorithm == "nvls" and not path.nvls_part:
        raise PlanError(f"nvls needs NVSwitch of generation 3 or later; {path.origin} has none")
    if request.nodes > 1:
        if algorithm not in ("auto", "ring") and request.op not in collectives.OVER_NODES:
            planned = ", ".join(collectives.OVER_NODES)
            raise PlanError(
                f"over several nodes {algorithm} is planned for {planned}, not {request.op}"
            )
        return
    if algorithm == "nvls" and request.op != "all_reduce":
        raise PlanError(f"nvls adds in the switch, which helps all_reduce only, not {request.op}")
    if algorithm == "sharp":
        raise PlanError("sharp adds in the switches between nodes; --nodes 2 or more have some")


def from_curves(request: Request, path: Path) -> Quantity | None:
    """From a curve of the same ranks, else of other ranks; None when none reaches the size."""
    curve = _nearest_curve(request, path)
    return _by_curve(curve, request, path).time_us if curve else None


def _nearest_curve(request: Request, path: Path) -> Curve | None:
    """Of the curves that reach the size the first of the same ranks, else of the nearest number."""
    of_op = [c for c in path.curves if (c.op, c.nodes) == (request.op, request.nodes)]
    fitting = [curve for curve in of_op if curve.covers(request.nbytes)]
    same = [curve for curve in fitting if curve.ranks == request.ranks]
    if same or path.shape == "mesh" or request.ranks == 1 or request.nodes > 1:
        return same[0] if same else None
    others = [curve for curve in fitting if curve.ranks > 1]
    return min(others, key=lambda curve: abs(curve.ranks - request.ranks), default=None)


def _by_curve(curve: Curve, request: Request, path: Path) -> Prediction:
    least = _least_of_any(request, path)
    if curve.ranks == request.ranks:
        return Prediction(request, "measured", _read(curve, request.nbytes), least)
    us = curve.time_us(request.nbytes) * carry_factor(curve, request.ranks)
    origin = f"{curve.origin}; {curve.ranks} ranks, carried over by the bytes on the wire"
    if curve.is_multicast and path.rate_gbps:
        plain = _fastest_plain(request, path)
        if _us(plain) < us:
            origin = f"{plain.time_us.origin}; {curve.ranks} ranks carried over: {us:,.1f} us"
            return replace(plain, time_us=replace(plain.time_us, origin=origin), least_us=least)
        origin += f"; {plain.algorithm} over the links: {_us(plain):,.1f} us"
    return Prediction(request, "measured", Quantity(us, "us", Basis.ASSUMED, origin), least)


def _us(found: Prediction) -> float:
    return found.time_us.value


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


def _over_nodes(
    request: Request, path: Path, network: Network | None, algorithm: str
) -> Prediction:
    """F18: inside and outside overlap at best, and follow each other at worst. Left to choose, a
    library takes the ring, or for an all_reduce the tree where that is faster.
    """
    if network is None:
        raise PlanError("several nodes need the NICs' rate: --network, or --nic-gbit and --nic-per")
    curve = _nearest_curve(request, path) if algorithm == "auto" else None
    if not path.rate_gbps and not curve:
        raise PlanError(f"{path.origin}: no rate is known and {request.op} was not measured")
    if algorithm == "sharp" and not network.adds:
        raise PlanError(f"sharp needs InfiniBand switches; {network.origin} has none")
    if curve:
        least = Quantity(0.0, "us", Basis.ASSUMED, "the link's rate is not known")
        if path.rate_gbps:
            least = _over_nodes(request, replace(path, curves=()), network, algorithm).least_us
        return Prediction(request, "measured", _read(curve, request.nbytes), least)
    if request.op == "send":  # from one GPU to another's node, through its NIC
        return _by_legs(request, path, network, "direct")
    if request.op == "all_to_all":  # every rank sends to every other one, whatever is asked for
        return _by_legs(request, path, network, "direct")
    ring = _by_legs(request, path, network, "ring" if algorithm == "auto" else algorithm)
    if algorithm == "auto" and request.op == "all_reduce":
        tree = _by_legs(request, path, network, "tree")
        return min(ring, tree, key=lambda found: found.time_us.value)
    return ring


def _by_legs(request: Request, path: Path, network: Network, algorithm: str) -> Prediction:
    legs = (_inside(request, path, algorithm), _outside(request, network, algorithm))
    basis = weakest(leg.least_us.basis for leg in legs if leg.nbytes)
    nic = network.per_gpu(request.ranks)
    name = "hierarchical" if algorithm == "ring" else algorithm
    ways = f"{legs[0].way} inside, {legs[1].way} between nodes"
    if request.op == "send":
        ways = "one GPU to another, through a NIC"
    origin = f"{ways}; {nic.origin}"
    least = [leg.least_us.value for leg in legs]
    return Prediction(
        request,
        name,
        _call_us(legs, max, f"{origin}; {rates.ACHIEVABLE:.0%} of rates"),
        Quantity(max(least), "us", basis, origin),
        _call_us(legs, sum, f"{origin}; {rates.ACHIEVABLE:.0%} of rates; no overlap"),
        legs,
    )


def _call_us(
    legs: tuple[Leg, Leg], join: Callable[[Iterable[float]], float], origin: str
) -> Quantity:
    wire_us = join([leg.likely_us for leg in legs])
    us = protocols.call_us(wire_us, legs[0].steps, legs[1].steps, legs[0].way == "nvls")
    return Quantity(us, "us", Basis.ASSUMED, origin)


def _inside(request: Request, path: Path, algorithm: str) -> Leg:
    way = collectives.NODE_WAYS[algorithm][0]
    if way == "nvls" and not path.nvls_part:
        way = "ring"
    op, gpus = request.op, request.ranks
    nbytes = collectives.inside_bytes(op, gpus, request.nodes, request.nbytes, way)
    rate = path.specified(gpus)
    reached = rates.achievable_gbps(rate.value)
    if way == "nvls":
        reached = path.achievable(gpus, way).value
    least = rates.seconds(nbytes, rate.value) * 1e6 if nbytes else 0.0
    likely = rates.seconds(nbytes, reached) * 1e6 if nbytes else 0.0
    quantity = Quantity(least, "us", rate.basis, rate.origin)
    steps = collectives.steps(op, way, gpus) if nbytes else 0
    return Leg(way, nbytes, steps, quantity, likely)


def _outside(request: Request, network: Network, algorithm: str) -> Leg:
    way = collectives.NODE_WAYS[algorithm][1]
    op, gpus, nodes = request.op, request.ranks, request.nodes
    nbytes = collectives.outside_bytes(op, gpus, nodes, request.nbytes, way)
    nic = network.per_gpu(gpus)
    least = rates.seconds(nbytes, nic.value) * 1e6
    likely = rates.seconds(nbytes, rates.achievable_gbps(nic.value)) * 1e6
    quantity = Quantity(least, "us", nic.basis, nic.origin)
    return Leg(way, nbytes, collectives.steps(op, way, nodes), quantity, likely)

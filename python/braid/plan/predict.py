"""How long one collective takes: from measurements where there are some, else from the links.

In this order, and the answer says which it was:
1. a curve of the same operation and number of ranks whose points reach the size;
2. a curve of another number of ranks, carried over by the bytes on the wire (not on a mesh, where
   a smaller group has fewer links); of a curve where the switch added only if no ring or tree over
   the links is faster: it does not tell what those take;
   Over nodes only a curve of as many nodes, each with as many ranks;
3. the links: steps * latency + bytes on the wire / what a library reaches of the rate; of an
   all_reduce by the ring, the tree or (three GPUs or more behind an NVSwitch that adds) NVLS,
   whichever is the fastest, as NCCL's planner chooses.
Asking for an algorithm skips the curves: they do not say which one the library took.
"""

from dataclasses import replace

from braid.plan import one_node, over_nodes
from braid.plan.basis import Basis, Quantity
from braid.plan.curve import Curve
from braid.plan.formulas import collectives
from braid.plan.hardware import Path
from braid.plan.network import Network
from braid.plan.prediction import Prediction, Request
from braid.plan.wrong import PlanError

__all__ = ["Prediction", "Request", "carry_factor", "from_curves", "predict"]

_CLOSE = 16
"""Points further apart than this do not measure what is between them."""


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
        is_direct = path.is_mesh(request.ranks) or request.op in ("all_to_all", "send")
        if request.op == "all_reduce" and not is_direct:
            return one_node.fastest(request, path)
        algorithm = "direct" if is_direct else "ring"
    return one_node.from_links(request, path, algorithm)


def _check_algorithm(request: Request, path: Path, algorithm: str) -> None:
    known = ("auto", *collectives.NODE_WAYS)
    if algorithm not in known:
        raise PlanError(f"'{algorithm}' is no algorithm; braid has {', '.join(known)}")
    if not path.joins(request.ranks, request.op):
        raise PlanError(f"{path.origin}: joins no {request.ranks} GPUs for {request.op}")
    if algorithm == "direct" and path.links and not path.is_mesh(request.ranks):
        raise PlanError(f"direct needs equal links between all pairs; {path.origin} has not")
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
    if same or path.is_mesh(request.ranks) or request.ranks == 1 or request.nodes > 1:
        return same[0] if same else None
    others = [curve for curve in fitting if curve.ranks > 1]
    return min(others, key=lambda curve: abs(curve.ranks - request.ranks), default=None)


def _by_curve(curve: Curve, request: Request, path: Path) -> Prediction:
    least = one_node.least_of_any(request, path)
    plain = one_node.fastest(request, path).plain if curve.is_multicast and path.rate_gbps else None
    if curve.ranks == request.ranks:
        return Prediction(request, "measured", _read(curve, request.nbytes), least, plain=plain)
    us = curve.time_us(request.nbytes) * carry_factor(curve, request.ranks)
    origin = f"{curve.origin}; {curve.ranks} ranks, carried over by the bytes on the wire"
    if curve.is_multicast and path.rate_gbps:
        other = one_node.fastest_plain(request, path)
        if one_node.us(other) < us:
            origin = f"{other.time_us.origin}; {curve.ranks} ranks carried over: {us:,.1f} us"
            return replace(other, time_us=replace(other.time_us, origin=origin), least_us=least)
        origin += f"; {other.algorithm} over the links: {one_node.us(other):,.1f} us"
    time = Quantity(us, "us", Basis.ASSUMED, origin)
    return Prediction(request, "measured", time, least, plain=plain)


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
    if curve.lender:
        basis, how = Basis.ASSUMED, f"{how} on {curve.lender}, the same links"
    return Quantity(curve.time_us(nbytes), "us", basis, f"{how}; {curve.origin}")


def _over_nodes(
    request: Request, path: Path, network: Network | None, algorithm: str
) -> Prediction:
    """As measured on as many nodes, else from links and NICs. PlanError where neither is known."""
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
    return over_nodes.from_links(request, path, network, algorithm)

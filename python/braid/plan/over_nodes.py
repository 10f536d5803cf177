"""One collective over several nodes, from their links and NICs (F18): inside and outside overlap at
best, and follow each other at worst.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from braid.plan import protocols
from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import collectives, rates
from braid.plan.hardware import Path
from braid.plan.network import Network
from braid.plan.one_node import NVLS_GPUS, us
from braid.plan.prediction import Leg, Prediction, Request


def from_links(request: Request, path: Path, network: Network, algorithm: str) -> Prediction:
    """Left to choose, a library takes the ring, or for an all_reduce what is faster."""
    if request.op == "send":  # from one GPU to another's node, through its NIC
        return by_legs(request, path, network, "direct")
    if request.op == "all_to_all":  # every rank sends to every other one, whatever is asked for
        return by_legs(request, path, network, "direct")
    ring = by_legs(request, path, network, "ring" if algorithm == "auto" else algorithm)
    if algorithm == "auto" and request.op == "all_reduce":
        return _fastest(request, path, network, ring)
    return ring


def _fastest(request: Request, path: Path, network: Network, ring: Prediction) -> Prediction:
    plain = min(ring, by_legs(request, path, network, "tree"), key=us)
    if not path.nvls_part or not path.library_gbps or request.ranks < NVLS_GPUS:
        return plain
    nvls = by_legs(request, path, network, "nvls")
    return replace(nvls, plain=plain) if us(nvls) < us(plain) else plain


def by_legs(request: Request, path: Path, network: Network, algorithm: str) -> Prediction:
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
    time_us = protocols.call_us(wire_us, legs[0].steps, legs[1].steps, legs[0].way == "nvls")
    return Quantity(time_us, "us", Basis.ASSUMED, origin)


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

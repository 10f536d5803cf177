"""One collective inside a node, from its links: bytes by rate, latencies as NCCL reckons them."""

from dataclasses import replace

from braid.plan import protocols
from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import collectives, rates
from braid.plan.hardware import Path
from braid.plan.prediction import Prediction, Request
from braid.plan.wrong import PlanError

NVLS_GPUS = 3
"""From so many GPUs of a node NCCL has NVSwitch add; between two a ring moves less."""


def fastest(request: Request, path: Path) -> Prediction:
    """As NCCL left to choose takes it: what its planner's numbers say is the fastest."""
    plain = fastest_plain(request, path)
    if not path.nvls_part or not path.library_gbps or request.ranks < NVLS_GPUS:
        return plain
    nvls = from_links(request, path, "nvls")
    return replace(nvls, plain=plain) if us(nvls) < us(plain) else plain


def fastest_plain(request: Request, path: Path) -> Prediction:
    """Without the switch's adding."""
    return min((from_links(request, path, way) for way in ("ring", "tree")), key=us)


def _least(request: Request, path: Path, algorithm: str) -> Quantity:
    rate = path.specified(request.ranks)
    wire = collectives.wire_bytes(request.op, algorithm, request.ranks, request.nbytes)
    if not rate.value:
        return Quantity(0.0, "us", Basis.ASSUMED, "the link's rate is not known")
    return Quantity(rates.seconds(wire, rate.value) * 1e6, "us", rate.basis, rate.origin)


def least_of_any(request: Request, path: Path) -> Quantity:
    """A measured call does not say how it was done: the way with the fewest bytes counts."""
    ways = ["ring"]
    if request.op == "all_reduce" and path.nvls_part:
        ways.append("nvls")
    return min((_least(request, path, way) for way in ways), key=lambda least: least.value)


def from_links(request: Request, path: Path, algorithm: str) -> Prediction:
    rate = path.achievable(request.ranks, algorithm)
    if not rate.value:
        raise PlanError(f"{path.origin}: no rate is known and {request.op} was not measured")
    wire = collectives.wire_bytes(request.op, algorithm, request.ranks, request.nbytes)
    steps = collectives.steps(request.op, algorithm, request.ranks)
    wire_us = rates.seconds(wire, rate.value) * 1e6
    likely = protocols.call_us(wire_us, steps, is_multicast=algorithm == "nvls")
    origin = f"{algorithm}, {steps} step{'s' * (steps != 1)}; rate: {rate.origin}"
    time = Quantity(likely, "us", Basis.ASSUMED, origin)
    return Prediction(request, algorithm, time, _least(request, path, algorithm))


def us(found: Prediction) -> float:
    """Its time."""
    return found.time_us.value

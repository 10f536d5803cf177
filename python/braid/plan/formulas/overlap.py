"""Compute and communication of one step: one after the other, layer by layer, or at once."""

MODES = ("serial", "per-layer", "perfect")


def is_bottleneck(communication_s: float, compute_s: float) -> bool:
    """F12: with perfect overlap, the network decides when it takes longer than the work."""
    return communication_s > compute_s


def step_s(mode: str, compute_s: float, communication_s: float, layers: int = 1) -> float:
    """F16: time of a step.

    Per layer: a layer's gradients leave while the next layer computes. Only the first layer's
    work and the last layer's communication have nothing beside them.
    """
    beside = _part_beside(mode, layers)
    return max(compute_s, communication_s) + (1 - beside) * min(compute_s, communication_s)


def exposed_s(mode: str, compute_s: float, communication_s: float, layers: int = 1) -> float:
    """F16: the part of a step in which nothing is computed.

    Not the difference of step and computation, which rounding makes less than 0.
    """
    return communication_s - _part_beside(mode, layers) * min(compute_s, communication_s)


def _part_beside(mode: str, layers: int) -> float:
    """Of the shorter one, computation or communication: what runs beside the longer one."""
    if mode == "serial":
        return 0.0
    return 1.0 if mode == "perfect" else (layers - 1) / layers


def rate_to_hide_gbps(wire_bytes: float, compute_s: float) -> float:
    """The rate at which communication takes exactly as long as the work."""
    return wire_bytes / compute_s / 1e9


def bubble_part(stages: int, microbatches: int) -> float:
    """Of a pipeline's step, what every stage waits."""
    return (stages - 1) / (microbatches + stages - 1)

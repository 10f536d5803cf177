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
    if mode == "serial":
        return compute_s + communication_s
    if mode == "perfect":
        return max(compute_s, communication_s)
    work, wire = compute_s / layers, communication_s / layers
    return work + (layers - 1) * max(work, wire) + wire


def exposed_s(mode: str, compute_s: float, communication_s: float, layers: int = 1) -> float:
    """F16: the part of a step in which nothing is computed."""
    return step_s(mode, compute_s, communication_s, layers) - compute_s


def rate_to_hide_gbps(wire_bytes: float, compute_s: float) -> float:
    """The rate at which communication takes exactly as long as the work."""
    return wire_bytes / compute_s / 1e9


def bubble_part(stages: int, microbatches: int) -> float:
    """Of a pipeline's step, what every stage waits."""
    return (stages - 1) / (microbatches + stages - 1)

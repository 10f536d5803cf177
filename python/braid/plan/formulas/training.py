"""Training: memory, gradients and weights on the wire, floating-point work."""

from braid.plan.shipped import constant

BYTES_PER_PARAMETER = constant("bytes_per_parameter")
"""Mixed precision with Adam: weights 2 + 4, gradients 4, two moments 8."""

GRADIENT_BYTES = constant("gradient_bytes")
FORWARD_BACKWARD = int(constant("passes"))
"""Work of a step in forward passes: one, and two for the backward pass."""
FORWARD_BACKWARD_RECOMPUTE = int(constant("passes_recompute"))

ZERO_MULTIPLES = {stage: int(constant(f"zero_{stage}")) for stage in range(4)}
"""F15: how many times the model crosses the links in a step, by ZeRO stage; 0 is DDP.

Gradients take a reduce-scatter and an all-gather. Stage 3 gathers the weights twice (forward and
backward) and reduce-scatters the gradients.
"""


def weight_bytes(parameters: float, bytes_per_parameter: float) -> float:
    """All weights."""
    return parameters * bytes_per_parameter


def memory_bytes(parameters: float) -> float:
    """F4: weights, gradients and optimizer; activations not counted."""
    return parameters * BYTES_PER_PARAMETER


def transfer_s(parameters: float, bytes_per_parameter: float, rate_gbps: float) -> float:
    """F3: time to send all parameters once."""
    return weight_bytes(parameters, bytes_per_parameter) / (rate_gbps * 1e9)


def ddp_rough_bytes(parameters: float, gradient_bytes: float = GRADIENT_BYTES) -> float:
    """F7: twice the gradients, which is the limit for many ranks."""
    return 2 * parameters * gradient_bytes


def ddp_bytes(parameters: float, ranks: int, gradient_bytes: float = GRADIENT_BYTES) -> float:
    """F8: per rank and direction."""
    return 2 * (ranks - 1) / ranks * parameters * gradient_bytes


def ddp_rough_s(
    parameters: float, rate_gbps: float, gradient_bytes: float = GRADIENT_BYTES
) -> float:
    """F7 in time."""
    return ddp_rough_bytes(parameters, gradient_bytes) / (rate_gbps * 1e9)


def ddp_s(
    parameters: float, ranks: int, rate_gbps: float, gradient_bytes: float = GRADIENT_BYTES
) -> float:
    """F8 in time."""
    return ddp_bytes(parameters, ranks, gradient_bytes) / (rate_gbps * 1e9)


def zero_bytes(stage: int, parameters: float, bytes_per_parameter: float) -> float:
    """F15: bytes per rank and step, for many ranks."""
    return ZERO_MULTIPLES[stage] * parameters * bytes_per_parameter


def zero_s(stage: int, parameters: float, bytes_per_parameter: float, rate_gbps: float) -> float:
    """F15 in time."""
    return zero_bytes(stage, parameters, bytes_per_parameter) / (rate_gbps * 1e9)


def tflop_per_gpu(
    parameters: float, sequence: int, batch: int, gpus: int, passes: int = FORWARD_BACKWARD
) -> float:
    """F9: work of one step; a pass takes two operations per parameter and token."""
    return parameters * 2 * passes * sequence * batch / gpus / 1e12


def compute_s(tflop: float, peak_tflops: float, mfu: float) -> float:
    """F10: time of work at a part of the peak."""
    return tflop / (peak_tflops * mfu)


def mfu(achieved_tflops: float, peak_tflops: float) -> float:
    """F11: the part of the peak that was reached."""
    return achieved_tflops / peak_tflops


def dense_tflops(marketed_tflops: float) -> float:
    """Data sheets quote twice the dense peak, "with sparsity"."""
    return marketed_tflops / 2

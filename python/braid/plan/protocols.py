"""What a call costs besides its bytes, as NCCL's own planner reckons it.

Constants: graph/tuning.cc, as of 2026-06. LL sends 8 bytes of data in 16, LL128 120 in 128, which
makes their steps short and their rate lower; Simple has the whole rate.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """One way to hand data on."""

    base_us: float
    """Of a call."""
    step_us: float
    """Of a step inside a node."""
    net_step_us: float
    """Of a step between nodes."""
    data: float
    """What part of the bytes on the wire is data."""


LL = Protocol(6.6, 0.6, 2.7, 8 / 16)
LL128 = Protocol(14.0, 1.9, 4.0, 120 / 128)
SIMPLE = Protocol(8.4, 3.4, 14.0, 1.0)
MULTICAST = Protocol(8.4, 25.0 / 2, 14.0, 1.0)
"""NVLS: 25 us for its two steps."""


def call_us(wire_us: float, steps: int, net_steps: int = 0, is_multicast: bool = False) -> float:
    """The best protocol's time for bytes that take `wire_us` at the rate to be reached."""
    ways = (MULTICAST,) if is_multicast else (LL, LL128, SIMPLE)
    return min(
        way.base_us + steps * way.step_us + net_steps * way.net_step_us + wire_us / way.data
        for way in ways
    )

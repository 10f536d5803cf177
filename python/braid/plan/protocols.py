"""What a call costs besides its bytes, as NCCL's own planner reckons it.

Constants: data/protocols.json. LL sends 8 bytes of data in 16, LL128 120 in 128, which makes their
steps short and their rate lower; Simple has the whole rate.
"""

from dataclasses import dataclass

from braid.plan import shipped


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


def _protocol(name: str) -> Protocol:
    row = shipped.table("protocols")[name]
    data = row["payload"] / row["frame"]
    return Protocol(row["base_us"], row["step_us"], row["net_step_us"], data)


LL, LL128, SIMPLE = map(_protocol, ("ll", "ll128", "simple"))
MULTICAST = _protocol("multicast")
"""NVLS."""


def call_us(wire_us: float, steps: int, net_steps: int = 0, is_multicast: bool = False) -> float:
    """The best protocol's time for bytes that take `wire_us` at the rate to be reached."""
    ways = (MULTICAST,) if is_multicast else (LL, LL128, SIMPLE)
    return min(
        way.base_us + steps * way.step_us + net_steps * way.net_step_us + wire_us / way.data
        for way in ways
    )

"""What a collective's bus bandwidth means on the wire. Pure.

Bus bandwidth is the wire's when every byte crosses a link once in each direction, as in a ring or
between all pairs. Where NVSwitch adds (NVLS), a GPU sends and receives S(n + 1)/n for an
all_reduce of S bytes instead of 2S(n - 1)/n, so bus bandwidth can pass what the link carries.
"""

from braid.plan.formulas.collectives import nvls_wire_gbps

_LEAST_NVLS_RANKS = 3


def may_be_nvls(op: str, ranks: int, who: str, options: dict[str, str]) -> bool:
    """Whether the switch may have added. Only NCCL does, and it does not say when."""
    if op != "all_reduce" or not who.startswith("nccl") or ranks < _LEAST_NVLS_RANKS:
        return False
    algorithm = options.get("NCCL_ALGO", "").lower()
    is_off = options.get("NCCL_NVLS_ENABLE") == "0" or (algorithm and "nvls" not in algorithm)
    return not is_off


def wire_gbps(op: str, ranks: int, busbw: float, *, nvls: bool) -> float:
    """What a GPU's links carried in one direction, at the least."""
    if nvls and op == "all_reduce":
        return min(busbw, nvls_wire_gbps(ranks, busbw))
    return busbw

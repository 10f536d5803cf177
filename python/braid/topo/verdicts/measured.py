"""Whether what was measured can be true of this machine."""

from collections.abc import Iterator, Sequence

from braid.topo.rates import Rate
from braid.topo.verdicts.verdict import Verdict

_MOST = 1.5
"""Times what is specified: clocks and rounding explain less than this."""


def too_fast(links: Sequence[Rate]) -> Iterator[Verdict]:
    """Links that a record says carried far more than they can."""
    for one in links:
        most, found = one.theoretical_gbps, one.measured_gbps
        if most and found and found > _MOST * most:
            yield Verdict(
                "measured-too-fast",
                "warning",
                f"{one.a} to {one.b}: {found:.4g} GB/s were measured, {one.name} has {most:.4g}",
                [one.a],
                "give a record of this machine",
            )

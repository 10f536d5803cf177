"""One transfer over one kind of link: bytes, and times at the rate that is promised and usual."""

from dataclasses import dataclass

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import rates
from braid.plan.hardware import Path
from braid.plan.report import Report
from braid.plan.wrong import a_count, above_zero


@dataclass(frozen=True)
class Pipe:
    """What the bytes go through."""

    rate: Quantity
    name: str


def over_nics(gbit: float, count: int) -> Pipe:
    """Several NICs, or lanes, of one rate."""
    above_zero("--gbit", gbit)
    a_count("--count", count)
    total = rates.node_gbps(count, gbit)
    name = f"{count} x {gbit:g} Gbit/s"
    return Pipe(Quantity(total, "GB/s", Basis.SPECIFIED, f"{name}, as given"), name)


def over_path(path: Path) -> Pipe:
    """One GPU to one other."""
    rate = Quantity(path.pair_gbps, "GB/s", path.basis, path.origin)
    return Pipe(rate, f"{path.name}, one pair of GPUs")


def report(size: Quantity, pipe: Pipe, inputs: dict[str, str | int | float | None]) -> Report:
    """F3 with F1 and F14."""
    nbytes = size.value
    above_zero("bytes", nbytes)
    above_zero("rate", pipe.rate.value)
    answer = Report("transfer", f"{nbytes / 1e9:.6g} GB over {pipe.name}", dict(inputs))
    answer.add("bytes", "to send", size)
    answer.derived("gbit", "the same in bits", nbytes * 8 / 1e9, "Gbit", [size])
    answer.add("rate_gbps", "rate, one direction", pipe.rate)
    least = rates.seconds(nbytes, pipe.rate.value)
    answer.derived("least_s", "time at the specified rate", least, "s", [pipe.rate, size])
    usual = rates.achievable_gbps(pipe.rate.value)
    likely = Quantity(
        rates.seconds(nbytes, usual), "s", Basis.ASSUMED, f"{rates.ACHIEVABLE:.0%} of the rate"
    )
    answer.add("likely_s", "time as large messages see it", likely)
    answer.notes.append("many small messages take longer: see buckets")
    return answer

"""What records of several kinds have alike: the machine, and every rank's own times."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """The machine. All ranks of one record run on it unless num_hosts says otherwise."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    num_hosts: int = 1
    tcp: str = ""
    """Its congestion control: what paces small writes over TCP (BBR: half of CUBIC's rate)."""


@dataclass(frozen=True)
class RankTimes:
    """One rank's own times in a case."""

    p50_us: float
    p95_us: float
    slowest: int
    """In how many samples it took longer than every other rank."""
    behind_us: float
    """By how much in those, their median: what all would gain if it were as the next slowest."""


def check_by_rank(
    by_rank_us: Mapping[int, float] | Mapping[str, float],
    by_rank: Mapping[int, RankTimes] | Mapping[str, RankTimes],
    ranks: int,
    samples: int,
    where: str,
) -> None:
    """ValueError for times of ranks that no run can have: of all ranks or of none, above 0.
    `ranks` is 0 where these are lanes, of which there may be any number.
    """
    for name, found in (("by_rank_us", len(by_rank_us)), ("by_rank", len(by_rank))):
        if ranks and found not in (0, ranks):
            raise ValueError(f"{where}.{name}: asked for {ranks} ranks or none, found {found}")
    for rank, us in by_rank_us.items():
        if not us > 0:
            raise ValueError(f"{where}.by_rank_us[{rank}]: asked for us above 0, found {us:g}")
    for rank, one in by_rank.items():
        if not (one.p50_us > 0 and one.p95_us > 0 and one.behind_us >= 0):
            times = f"{one.p50_us:g}, {one.p95_us:g} and {one.behind_us:g} us"
            raise ValueError(f"{where}.by_rank[{rank}]: asked for times above 0, found {times}")
        if not 0 <= one.slowest <= samples:
            asked = f"0 to {samples} samples"
            raise ValueError(
                f"{where}.by_rank[{rank}].slowest: asked for {asked}, found {one.slowest}"
            )

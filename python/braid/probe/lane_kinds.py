"""The cases of the kinds that only need lanes: host, interference, engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from braid.probe.job import ALONE, BESIDE, Job, lane_beside, lanes_together
from braid.probe.lane import Lane
from braid.record.probe import Series
from braid.sizes import format_size

_THROUGH = 64 << 20
"""Windows and pages go through this much memory, so that caches do not hold it all."""
_MOST_SLOTS = 4096


@dataclass(frozen=True)
class Ways:
    """The two ways between a GPU (or what stands for it) and the host's memory."""

    gpu: str
    out: Lane
    back: Lane


def slots_of(nbytes: int, through: int) -> int:
    """Pieces of this size in so much memory."""
    return min(max(through // nbytes, 1), _MOST_SLOTS)


def host(ways: Sequence[Ways], windows: Sequence[int]) -> list[Job]:
    """Each way alone, both at once, and all GPUs at once, by window size."""
    found = []
    for window in windows:
        size, slots = format_size(window), slots_of(window, _THROUGH)
        for each in ways:
            both = [each.out, each.back]
            found += [
                lanes_together(f"d2h {size}", each.gpu, [each.out], window, slots),
                lanes_together(f"h2d {size}", each.gpu, [each.back], window, slots),
                lanes_together(f"both {size}", each.gpu, both, window, slots),
            ]
        if len(ways) > 1:
            outs, backs = [each.out for each in ways], [each.back for each in ways]
            name = f"{len(ways)} at once"
            found += [
                lanes_together(f"all d2h {size}", name, outs, window, slots),
                lanes_together(f"all h2d {size}", name, backs, window, slots),
                lanes_together(f"all both {size}", name, outs + backs, window, slots),
            ]
    return found


def interference(lanes: Sequence[Lane], nbytes: int) -> list[Job]:
    """Each lane alone in turn with the same beside each other one, and beside all others."""
    found = []
    for lane in lanes:
        others = [other for other in lanes if other is not lane]
        found += [lane_beside(other.name, lane, [other], nbytes) for other in others]
        if len(others) > 1:
            found.append(lane_beside("all others", lane, others, nbytes))
    return found


def kept(series: Sequence[Series]) -> dict[str, float]:
    """Of every lane, the part of its bandwidth that it keeps beside others: 1 is all."""
    rates = {(one.case, one.group): one.gbps for one in series if one.gbps}
    found = {}
    for (case, group), gbps in rates.items():
        alone = rates.get((case, group.replace(BESIDE, ALONE, 1)))
        if group.startswith(BESIDE) and gbps and alone:
            found[f"{case} {group}"] = round(gbps / alone, 4)
    return found


def engine(lanes: Sequence[Lane], pages: Sequence[int], total: int) -> list[Job]:
    """The same bytes in pages, one copy each, and as one piece: what a transfer engine that moves
    pages has to win back.
    """
    found = []
    for lane in lanes:
        found.append(lanes_together("one piece", lane.name, [lane], total))
        for page in pages:
            group, slots = f"pages of {format_size(page)}", slots_of(page, total)
            found.append(lanes_together(group, lane.name, [lane], page, slots))
    return found


def page_cost(series: Sequence[Series]) -> dict[str, float]:
    """How many times as long the same bytes take in pages."""
    whole = {one.case: one.gbps for one in series if one.group == "one piece" and one.gbps}
    return {
        f"{one.case}, {one.group}": round(whole[one.case] / one.gbps, 4)
        for one in series
        if one.group != "one piece" and one.gbps and one.case in whole
    }

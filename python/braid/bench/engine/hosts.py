"""Two hosts, rails of 800, 400 and 200 Mbit/s, pages of 64 KiB: the share of the rails' sum that is
reached; then a rail is cut under load, and restored.
"""

import secrets
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic_ns, sleep
from typing import Any

from braid.bench.engine.contestants import acquaint
from braid.bench.engine.network import SOURCE, TARGET, TwoHosts
from braid.bench.engine.player import Player
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.probe.publish import Figures
from braid.record.probe import Series, gbps_of, times_of

RATES_MBIT = (800.0, 400.0, 200.0)
_PAGE_BYTES = 64 << 10
_SLOT_BYTES = 2 << 20
_SLOTS = 16


@dataclass(frozen=True)
class Plan:
    """How long each part lasts, and what is cut."""

    provider: str = "tcp"
    steady_s: float = 3.0
    cut_s: float = 3.0
    restored_s: float = 5.0
    rail: int = 0
    """Which is cut: the control connection runs on rail 0 at first."""
    end: int = SOURCE
    """At whose end it is switched off."""


@dataclass
class Outcome:
    """What came of it."""

    transfers: int
    wrong_bytes: int
    miscounted: int
    """Transfers whose pages were not all counted."""
    counted_twice: int
    """Pages."""
    share: dict[str, float]
    """Of the sum of the rates of rails that work: "steady", "cut", "restored"."""
    back_after_s: float | None
    """From the restoring until the rate was above the other rails' sum; None: it never was."""
    longest_gap_s: float
    """Without a finished transfer, over the whole time."""
    troubles: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Nothing lost, torn, or counted twice."""
        lost = self.wrong_bytes or self.miscounted or self.counted_twice
        return not (lost or self.troubles) and self.transfers > 0


def job(plan: Plan) -> tuple[Job, Figures]:
    """As a case of a run, and what follows from it."""
    figures: dict[str, float] = {}

    def run(effort: Effort, tick: Tick) -> list[Series]:
        del effort
        outcome = measure(plan)
        tick(1)
        figures.update({f"{name}, part of the sum": part for name, part in outcome.share.items()})
        figures["transfers"] = outcome.transfers
        figures["pages lost or counted twice"] = outcome.miscounted + outcome.counted_twice
        figures["rails given up"] = outcome.stats["rails_fenced"]
        figures["longest time without a finished transfer, s"] = outcome.longest_gap_s
        if outcome.back_after_s is not None:
            figures["restored rail carries again after, s"] = outcome.back_after_s
        return outcome.series

    return Job("two hosts", _SLOT_BYTES, run), lambda _: figures


def measure(plan: Plan) -> Outcome:
    """The whole of it."""
    with (
        TwoHosts(RATES_MBIT) as hosts,
        Player("source", prefix=hosts.prefix(SOURCE)) as source,
        Player("target", prefix=hosts.prefix(TARGET)) as target,
    ):
        _introduce(plan, hosts, source, target)
        target.tell("take", page_bytes=_PAGE_BYTES, slots=_SLOTS)
        seconds = plan.steady_s + plan.cut_s + plan.restored_s
        begun = monotonic_ns()
        source.tell(
            "stream", seconds=seconds, page_bytes=_PAGE_BYTES, slots=_SLOTS,
        )  # fmt: skip
        sleep(plan.steady_s)
        cut = monotonic_ns()
        hosts.cut(plan.rail, plan.end)
        sleep(plan.cut_s)
        hosts.restore(plan.rail, plan.end)
        restored = monotonic_ns()
        given = source.answer(seconds + 50)
        source.ask("end")
        taken = target.answer(60)
        health = source.ask("health")
    return _outcome(plan, [begun, cut, restored], given, taken, health)


def _introduce(plan: Plan, hosts: TwoHosts, source: Player, target: Player) -> None:
    token = secrets.token_hex(16)
    for place, player in ((SOURCE, source), (TARGET, target)):
        addresses = hosts.addresses(place)
        player.tell(
            "open", name=player.name, token=token, hosts=addresses, host_id=player.name,
            nics=[[plan.provider, each] for each in addresses], nbytes=_SLOT_BYTES * _SLOTS,
        )  # fmt: skip
    acquaint(source, target)


def _outcome(
    plan: Plan, marks: list[int], given: dict[str, Any], taken: dict[str, Any],
    health: dict[str, Any],
) -> Outcome:  # fmt: skip
    begun, cut, restored = marks
    whole = sum(RATES_MBIT) / 8e3
    without = whole - RATES_MBIT[plan.rail] / 8e3
    done: list[tuple[int, int]] = [(int(at), int(size)) for at, size in given["done"]]
    ends = done[-1][0] if done else restored
    back = _back_after(done, restored, (without + whole) / 2)
    spans = {
        "steady": (begun + 500_000_000, cut, whole),  # rates are not known in the first moment
        "cut": (cut, restored, without),  # with the time until the cut is noticed
        "restored": (restored if back is None else restored + int(back * 1e9), ends, whole),
    }
    moments = [begun, *(at for at, _ in done)]
    outcome = Outcome(
        transfers=taken["taken"],
        wrong_bytes=taken["wrong_bytes"],
        miscounted=taken["miscounted"] + (len(done) != taken["taken"]),
        counted_twice=taken["counted_twice"],
        share={name: round(_gbps(done, a, b) / sum_, 4) for name, (a, b, sum_) in spans.items()},
        back_after_s=back,
        longest_gap_s=max((b - a for a, b in pairwise(moments)), default=0) / 1e9,
        troubles=given["troubles"] + taken["troubles"],
        health=health["lines"],
        stats=health["stats"],
    )
    outcome.series = [_series(outcome, name, done, a, b) for name, (a, b, _) in spans.items()]
    return outcome


def _gbps(done: list[tuple[int, int]], since: int, until: int) -> float:
    """What ended within, by all of the time: a time in which nothing ended counts, too."""
    return sum(size for at, size in done if since <= at < until) / max(until - since, 1)


def _back_after(done: list[tuple[int, int]], restored: int, above_gbps: float) -> float | None:
    """When half a second's rate is first well above what the other rails can do."""
    window = 500_000_000
    for at, _ in done:
        if (
            at >= restored
            and at + window <= done[-1][0]
            and (_gbps(done, at, at + window) > above_gbps)
        ):
            return round((at - restored) / 1e9, 2)
    return None


def _series(
    outcome: Outcome, name: str, done: list[tuple[int, int]], since: int, until: int
) -> Series:
    inside = [at for at, _ in done if since <= at <= until]
    gaps = [max((b - a) / 1e3, 0.001) for a, b in pairwise(inside)]
    rate = _gbps(done, since, until)
    return Series(
        "two hosts", name, _SLOT_BYTES, times_of(gaps) if gaps else None,
        gbps_of(_SLOT_BYTES, _SLOT_BYTES / rate / 1e3) if rate > 0 else None,
        verdict="ok" if outcome.is_whole else "wrong data",
        wrong_bytes=outcome.wrong_bytes,
        note="; ".join(outcome.troubles) or "times from one transfer's end to the next one's",
    )  # fmt: skip

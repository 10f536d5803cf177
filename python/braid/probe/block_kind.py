"""The cases of `braid bench tp-block`: parts of a block alone, all-reduces around its size, and the
block; and what `braid plan` makes of the first two, beside the third.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from braid.plan.basis import Basis
from braid.plan.curve import Curve
from braid.plan.hardware import Path
from braid.plan.parallel.block import ATTENTION, MLP, block_us
from braid.plan.predict import Request, from_curves
from braid.probe.block import Block
from braid.probe.call_kinds import Team
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick, with_ranks
from braid.probe.player import Call, Player
from braid.record.probe import Series, times_of
from braid.record.ranks import divided
from braid.sizes import format_size

PARTS = tuple(dict.fromkeys((*ATTENTION, *MLP)))
BLOCK, ALONE = "block", "compute"
AT_SIZE = "all_reduce at its size"
_FACTORS = (0.25, 0.5, 2, 4)
"""Of the size, around which it is predicted: itself is left out."""
_LAST_US = 5000.0
"""A sample lasts about so long: starting and waiting then do not count."""
_MOST_ROUNDS = 200


@dataclass(frozen=True)
class Forecast:
    """What the prediction needs besides the run."""

    ranks: int
    call: Call
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    """By player, of saved records; where they have none, the run's own around the size count."""

    def figures(self, series: Sequence[Series]) -> dict[str, float]:
        """Predicted and measured block by player; nothing for one that was not reached."""
        times = {(one.group, one.case): one.times.p50_us for one in series if one.times}
        if any((part, ALONE) not in times for part in PARTS):
            return {}
        parts = {part: times[part, ALONE] for part in PARTS}
        found = {"compute, us": round(block_us(parts, 0.0), 3)}
        for who in dict.fromkeys(one.case for one in series if one.group == BLOCK):
            all_reduce_us = self._all_reduce_us(who, series)
            if all_reduce_us is None or (BLOCK, who) not in times:
                continue
            predicted, measured = block_us(parts, all_reduce_us), times[BLOCK, who]
            found[f"{who}: one all_reduce predicted, us"] = round(all_reduce_us, 3)
            found[f"{who}: block predicted, us"] = round(predicted, 3)
            found[f"{who}: block measured, us"] = measured
            found[f"{who}: error"] = round(predicted / measured - 1, 4)
        return found

    def from_records_us(self, who: str) -> float | None:
        """One all_reduce as the records have it; None when they have none like it."""
        return self._read(self.curves.get(who, ()))

    def _all_reduce_us(self, who: str, series: Sequence[Series]) -> float | None:
        recorded = self.from_records_us(who)
        return self._read(self._own(who, series)) if recorded is None else recorded

    def _read(self, curves: Sequence[Curve]) -> float | None:
        path = Path("measured", "host", 0.0, 0.0, 0.0, 0.0, "", Basis.MEASURED, tuple(curves))
        found = from_curves(Request("all_reduce", self.call.total_bytes, self.ranks), path)
        return found.value if found else None

    def _own(self, who: str, series: Sequence[Series]) -> list[Curve]:
        points = [
            (one.bytes, one.times.p50_us)
            for one in series
            if one.case == who and one.group.startswith("all_reduce ") and one.group != AT_SIZE
            if one.times
        ]
        return [Curve.of("all_reduce", self.ranks, points, "measured", "run")] if points else []


def errors(figures: Mapping[str, float]) -> dict[str, float]:
    """The predictions' errors, by player."""
    return {
        name.removesuffix(": error"): error
        for name, error in figures.items()
        if name.endswith(": error")
    }


def around(call: Call) -> list[Call]:
    """The calls that the prediction goes by: a size cut to whole elements of any type."""
    sizes = (int(call.total_bytes * factor) // 16 * 16 for factor in _FACTORS)
    return [replace(call, total_bytes=size) for size in sizes if size > 0]


def jobs(team: Team, players: Sequence[Player], block: Block, call: Call) -> list[Job]:
    """Parts, then each player's calls, then each player's block."""
    found = [_part(team, block, part) for part in PARTS]
    blocks = []
    for player in players:
        wrong = player.prepare([call, *around(call)])
        for each in (*around(call), call):
            group = AT_SIZE if each == call else f"all_reduce {format_size(each.total_bytes)}"
            do = partial(_row, partial(player.run, each), player.wait)
            found.append(_each(team, group, player.name, each.total_bytes, do, 1, wrong[each]))
        do = partial(_row, partial(_blocks, block, player, call), player.wait)
        blocks.append(_each(team, BLOCK, player.name, 0, do, block.layers, 0))
    return [*found, *blocks]


def _part(team: Team, block: Block, part: str) -> Job:
    def layers() -> None:
        for layer in range(block.layers):
            block.run(part, layer)

    return _each(team, part, ALONE, 0, partial(_row, layers, block.wait), block.layers, 0)


def _blocks(block: Block, player: Player, call: Call) -> None:
    """All layers, each with two calls."""
    for layer in range(block.layers):
        for parts in (ATTENTION, MLP):
            for part in parts:
                block.run(part, layer)
            player.run(call)


def _row(once: Callable[[], None], wait: Callable[[], None], rounds: int) -> None:
    for _ in range(rounds):
        once()
    wait()


def _each(
    team: Team,
    group: str,
    case: str,
    moved: int,
    row: Callable[[int], None],
    count: int,
    wrong: int,
) -> Job:
    """A case whose time is that of one of the `count` things that one round does."""
    row(1)
    once_us = team.crew.slowest([team.timed_us(lambda: row(1))])[0]
    rounds = team.crew.agree(int(min(max(_LAST_US / max(once_us, 1e-3), 1), _MOST_ROUNDS)))[0]
    things = rounds * count
    job = team.series(
        group, case, moved * things, partial(row, rounds), wrong, max(things, 2)
    )  # fmt: skip

    def run(effort: Effort, tick: Tick) -> list[Series]:
        return [_scaled(one, things, moved) for one in job.run(effort, tick)]

    return replace(job, bytes=moved, run=run)


def _scaled(one: Series, things: int, moved: int) -> Series:
    assert one.times
    samples = [us / things for us in one.times.samples_us]
    scaled = replace(one, bytes=moved, times=times_of(samples))
    return with_ranks(scaled, divided(one.by_rank, things))

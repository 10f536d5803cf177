"""The cases on one host: the engine and its baselines in turn, sample by sample, each round with
another one first. Every byte is compared before anything is timed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from braid.bench.engine import contestants
from braid.bench.engine.contestants import Case, Contestant
from braid.errors import Error
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of
from braid.sizes import format_size

KINDS = ("write", "pages")
WAYS = ("local", "tcp", "net", "shm")
_ALONE_WRITES = 200
_MOST_PAGES = 16384
_SAMPLE_US = 20_000.0
_MOST_REPEATS = 20


@dataclass(frozen=True)
class Rivals:
    """What there is to measure against; None: left out."""

    plain: Path | None
    """The program of tests/engine/plain_write.c."""
    nixl_python: Path | None
    """A Python that can import nixl."""
    nixl_plugin: Path | None = None
    """libplugin_BRAID.so: NIXL over braid, too."""


@dataclass(kw_only=True)
class Opened:
    """The contestants of the way at hand: who is there, and who is not."""

    way: str = ""
    present: list[Contestant] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Who is missing, and why."""
    number: int = 0

    def open(self, name: str, make: Callable[[], Contestant]) -> None:
        """Adds one, or notes why there is none."""
        try:
            self.present.append(make())
        except Error as error:
            self.absent[name] = str(error)

    def close(self) -> None:
        """Ends all processes."""
        for each in self.present:
            each.close()
        self.present, self.absent, self.way = [], {}, ""


@dataclass
class Field(Opened):
    """Opened when the first case of a way comes."""

    rivals: Rivals
    nbytes: int
    seats: contestants.Seats = field(default_factory=contestants.Seats)

    def enter(self, way: str) -> Sequence[Contestant]:
        """Those who can, braid first."""
        if way != self.way:
            self.close()
            self.way = way
            self.open("braid", lambda: contestants.engine(way, self.nbytes, self.seats))
            provider = "shm" if way == "local" else way
            if (plain := self.rivals.plain) is not None:
                name = f"plain {provider}"
                self.open(name, lambda: contestants.Plain(plain, provider, self.nbytes, self.seats))
            transports = "tcp,sm" if provider == "shm" else "tcp"
            if (python := self.rivals.nixl_python) is not None:
                name = f"NIXL, UCX {transports}"
                self.open(
                    name, lambda: contestants.nixl(python, transports, self.nbytes, self.seats)
                )
                if (plugin := self.rivals.nixl_plugin) is not None:
                    self.open(
                        contestants.PLUGIN,
                        lambda: contestants.nixl_over_braid(
                            python, plugin, way, self.nbytes, self.seats
                        ),
                    )
        return self.present


def case_of(kind: str, page_bytes: int, total: int) -> Case:
    """As many pages as fit, up to a number that does not take for ever."""
    most = _ALONE_WRITES if kind == "write" else _MOST_PAGES
    return Case(kind, page_bytes, min(total // page_bytes, most))


def jobs(
    kinds: Sequence[str], sizes: Sequence[int], ways: Sequence[str], found: Field
) -> list[Job]:
    """Way by way, so that a way's processes are started once."""
    return [
        _job(way, case_of(kind, size, found.nbytes), found)
        for way in ways
        for kind in kinds
        for size in sizes
    ]


def group_of(way: str, case: Case) -> str:
    """Its contestants are comparable."""
    return f"{case.kind} {format_size(case.page_bytes)} {way}"


def _job(way: str, case: Case, found: Field) -> Job:
    group = group_of(way, case)

    def run(effort: Effort, tick: Tick) -> list[Series]:
        present = list(found.enter(way))
        missing = [
            Series(group, name, case.page_bytes, None, None, verdict="unsupported", note=why)
            for name, why in found.absent.items()
        ]
        wrong = {}
        for each in present:
            found.number += 1
            wrong[each.name] = each.check(case, found.number)
        return race(group, case, present, wrong, effort, tick) + missing

    return Job(f"{case.kind} {way}", case.page_bytes, run)


def race(
    group: str,
    case: Case,
    present: Sequence[Contestant],
    wrong: Mapping[str, int],
    effort: Effort,
    tick: Tick,
    sample_us: float = _SAMPLE_US,
) -> list[Series]:
    """Times those who were checked, in turn, each for about `sample_us`; each round begins with
    another one.
    """
    repeats = {}
    for each in present:
        once_us = each.samples_us(case, 2)[-1] * case.calls()
        repeats[each.name] = int(min(max(sample_us / max(once_us, 1), 1), _MOST_REPEATS))
    times: dict[str, list[float]] = {each.name: [] for each in present}
    rounds = 0

    def sample() -> float:
        nonlocal rounds
        for k in range(len(present)):
            each = present[(rounds + k) % len(present)]
            times[each.name] += each.samples_us(case, repeats[each.name])
        rounds += 1
        return 0.0

    effort.repeat(sample, tick)
    moved = case.page_bytes * (1 if case.kind == "write" else case.count)
    return [
        _series(group, each.name, case, times[each.name], wrong[each.name], moved)
        for each in present
        if times[each.name]
    ]


def _series(
    group: str, name: str, case: Case, samples: list[float], wrong: int, moved: int
) -> Series:
    times = times_of(samples)
    return Series(
        group=group,
        case=name,
        bytes=case.page_bytes,
        times=times,
        gbps=gbps_of(moved, times.p50_us),
        verdict="wrong data" if wrong else "ok",
        wrong_bytes=wrong,
    )


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """Every baseline's median time by braid's, and UCX's by that of braid behind NIXL: above 1,
    braid is faster.
    """
    p50 = {(one.group, one.case): one.times.p50_us for one in series if one.times}
    out = {}
    for (group, case), us in p50.items():
        ours, behind = p50.get((group, "braid")), p50.get((group, contestants.PLUGIN))
        if ours and case != "braid":
            out[f"{group}, {case}"] = round(us / ours, 4)
        if behind and case.startswith("NIXL, UCX"):
            out[f"{group}, {case} by {contestants.PLUGIN}"] = round(us / behind, 4)
    return out

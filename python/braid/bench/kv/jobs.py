"""The cases: pages of one size, by each way, the engine alone and NIXL in turn with braid.kv; and
layers behind a stand-in for computing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from braid.bench.engine import contestants as engine
from braid.bench.engine.contestants import Case, Contestant
from braid.bench.engine.jobs import Opened, case_of, race
from braid.bench.kv.contestants import Requests, Servers, Warm, whole_layers
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.record.probe import Series, gbps_of, times_of
from braid.sizes import format_size


@dataclass
class Field(Opened):
    """braid.kv, the engine alone, and NIXL."""

    nbytes: int
    nixl_python: Path | None

    def enter(self, way: str) -> list[Contestant]:
        """braid.kv's two first."""
        if way != self.way:
            self.close()
            self.way = way
            servers = Servers(way, self.nbytes)
            self.open("push", lambda: Requests(servers, is_push=True))
            self.open("pull", lambda: Requests(servers, is_push=False))
            alone = "the engine alone"
            self.open(alone, lambda: Warm(engine.engine(way, self.nbytes), alone))
            if (python := self.nixl_python) is not None:
                transports = "tcp,sm" if way == "local" else "tcp"
                self.open("NIXL", lambda: Warm(engine.nixl(python, transports, self.nbytes)))
                self.open(
                    "NIXL, read",
                    lambda: Warm(engine.nixl(python, transports, self.nbytes, is_read=True)),
                )
        return self.present


def jobs(sizes: Sequence[int], ways: Sequence[str], layer_ms: float, found: Field) -> list[Job]:
    """Way by way."""
    out = []
    for way in ways:
        cases = [whole_layers(case_of("pages", size, found.nbytes)) for size in sizes]
        out += [_rates(way, case, found) for case in cases]
        if layer_ms:
            out.append(_layers(way, cases[-1], layer_ms, found))
    return out


def _rates(way: str, case: Case, found: Field) -> Job:
    group = f"{case.count} pages of {format_size(case.page_bytes)} {way}"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        present = found.enter(way)
        wrong = {}
        for each in present:
            found.number += 1
            wrong[each.name] = each.check(case, found.number)
        missing = [
            Series(group, name, case.page_bytes, None, None, verdict="unsupported", note=why)
            for name, why in found.absent.items()
        ]
        return race(group, case, present, wrong, effort, tick) + missing

    return Job(f"pages {way}", case.page_bytes, run)


def _layers(way: str, case: Case, layer_ms: float, found: Field) -> Job:
    group = f"layers of {layer_ms:g} ms, {case.count} pages of {format_size(case.page_bytes)} {way}"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        push = next(each for each in found.enter(way) if isinstance(each, Requests))
        computed: list[float] = []
        whole: list[float] = []

        def sample() -> float:
            for times, us in zip(
                (computed, whole), push.behind_compute_us(case, layer_ms), strict=True
            ):
                times.append(us)
            return 0.0

        effort.repeat(sample, tick)
        moved = case.page_bytes * case.count
        return [
            Series(group, name, case.page_bytes, times_of(times),
                   gbps_of(moved, times_of(times).p50_us))
            for name, times in (("computing alone", computed), ("until all pages are there", whole))
        ]  # fmt: skip

    return Job(f"layers {way}", case.page_bytes, run)


def ratios_of(series: Sequence[Series]) -> dict[str, float]:
    """Each other's time by braid.kv's (above 1, braid.kv is faster), for push and pull; and of
    layers the share of the time that is exposed behind computing.
    """
    p50 = {(one.group, one.case): one.times.p50_us for one in series if one.times}
    out = {}
    for (group, name), us in p50.items():
        for (other, mode), ours in p50.items():
            ways = mode.removeprefix("braid.kv, ")
            if other == group and ways != mode and not name.startswith("braid.kv"):
                out[f"{group}, {ways} against {name}"] = round(us / ours, 4)
        alone = p50.get((group, "computing alone"))
        if name == "until all pages are there" and alone:
            out[f"{group}, exposed"] = round(us / alone - 1, 4)
    return out

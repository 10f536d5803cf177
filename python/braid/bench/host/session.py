"""`braid bench` between CPUs on one rank: settings, the loop over cases, and the record.

Every rank runs the same code; rank 0 alone prints and writes. What is measured is in
braid.cases.host, who is measured in contestants.py, how in measure.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import cast

import braid
from braid.bench import facts
from braid.bench.command import Asked
from braid.bench.host import measure
from braid.bench.host.contestants import Braid, Contestant, Gloo
from braid.bench.interrupt import Interrupt, join
from braid.bench.request import check_root
from braid.cases.host import Buffers, Case
from braid.cases.operations import busbw_factor
from braid.record.bench import SCHEMA, Baseline, Record, Result, Samples
from braid.terminal.reporter import Reporter

AGAINST = ("best-link", "fixed-shares", "gloo", "none")
_SIZE = 64 << 20
_BUDGET_S = 60.0


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    ops: list[str]
    sizes: list[int]
    dtype: str
    redop: str
    against: str
    effort: measure.Effort
    time_budget_s: float
    options: dict[str, str]
    """braid.init's options: links, pace, timeout, tune."""
    json_path: Path | None
    svg_path: Path | None
    by_rank: bool = False
    """Print every rank's times, even where none is late."""
    root: int | None = None
    """Broadcast's, if one was asked for."""
    quiet: bool = False
    """No tables."""
    commit: str = ""
    """Of a tree without git."""

    @classmethod
    def of(cls, asked: Asked, dtype: str) -> "Settings":
        """With what is not said as it is between CPUs."""
        return cls(
            ops=asked.ops,
            sizes=asked.sizes or [_SIZE],
            dtype=dtype,
            redop=asked.redop,
            against=asked.against or AGAINST[0],
            effort=measure.Effort(
                samples=asked.samples,
                warm_up_calls=asked.warm_up_calls,
                checks=asked.checks,
                calls=asked.calls,
            ),
            time_budget_s=asked.time_budget_s or _BUDGET_S,
            options=asked.options,
            json_path=asked.json_path,
            svg_path=asked.svg_path,
            by_rank=asked.by_rank,
            root=asked.root,
            quiet=asked.quiet,
            commit=asked.commit,
        )


class Bench:
    """One run."""

    def __init__(
        self,
        settings: Settings,
        comm: braid.Comm,
        reporter: Reporter,
        asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stopped = ""
        self._asked = asked
        self._settings = settings
        self._comm = comm
        self._reporter = reporter
        self._braid = Braid(comm)
        self._gloo = Gloo(comm) if settings.against == "gloo" else None
        self._cases = [
            Case.of(op, size, settings.dtype, settings.redop, comm, settings.root)
            for op in settings.ops
            for size in settings.sizes
        ]
        self._end_ns = monotonic_ns() + settings.time_budget_s * 1e9

    def run(self) -> list[Result]:
        """Measures every case, or until rank 0 is asked to stop."""
        self._reporter.start(len(self._cases))
        results = []
        for i, case in enumerate(self._cases):
            budget_ns = max(self._end_ns - monotonic_ns(), 0) / (len(self._cases) - i)
            results.append(self._measure(case, budget_ns))
            self._reporter.case_done()
            if measure.agree(self._comm, int(self._asked()))[0]:
                self.stopped = f"interrupted in case {i + 1} of {len(self._cases)}"
                break
        if self._gloo:
            self._gloo.close()
        return results

    def _measure(self, case: Case, budget_ns: float) -> Result:
        start_ns = monotonic_ns()
        self._reporter.say(case.name, "making data")
        buffers = Buffers(case)
        self._braid.prepare(buffers)
        self._reporter.say(case.name, "checking every byte")
        wrong, call_ns = self._check(self._braid, buffers)
        rival, rival_wrong, rival_ns = self._find_rival(case, buffers)
        racers: list[Contestant] = [self._braid, *([rival] if rival else [])]
        quickest_ns = min(call_ns, rival_ns) if rival else call_ns
        calls = self._settings.effort.calls or measure.calls_for(quickest_ns)
        left_ns = budget_ns - (monotonic_ns() - start_ns)
        wanted = measure.samples_for(
            left_ns, calls * (call_ns + rival_ns), self._settings.effort.samples
        )
        calls, samples = measure.agree(self._comm, calls, wanted)
        times, links, later = self._race(racers, buffers, calls, samples)
        wrong, rival_wrong = wrong + later[0], rival_wrong + later[-1]
        baseline = Baseline(rival.name, times[1], rival_wrong) if rival else None
        algbw = case.total_bytes / times[0].median_us / 1e3
        wire = links.wire_gbps(times[0].median_us)
        return Result(
            op=case.op,
            bytes=case.total_bytes,
            dtype=str(case.dtype),
            redop=case.redop if "reduce" in case.op else "",
            calls_per_sample=calls,
            warm_up_calls=self._settings.effort.warm_up_calls,
            times=times[0],
            algbw_gbps=round(algbw, 4),
            busbw_gbps=round(algbw * busbw_factor(case.op, case.ranks), 4),
            checked_bytes=buffers.out.nbytes * case.ranks * (self._settings.effort.checks + 2),
            wrong_bytes=wrong,
            links=links.uses(),
            baseline=baseline,
            ratio=round(baseline.times.median_us / times[0].median_us, 4) if baseline else None,
            wire_gbps=None if wire is None else round(wire, 4),
            root=case.root if case.op == "broadcast" else None,
        )

    def _race(
        self, racers: list[Contestant], buffers: Buffers, calls: int, samples: int
    ) -> tuple[list[Samples], measure.LinkTotals, list[int]]:
        """Times of the racers, what the first one's links carried, and of every racer the bytes
        that were wrong after a sample on a soiled result and after the last one.
        """
        wrong = dict.fromkeys(racers, 0)

        def look(racer: Contestant) -> None:
            wrong[racer] += measure.wrong_after(self._comm, racer, buffers)

        for racer in racers:
            measure.soil(racer, buffers)
            measure.sample(self._comm, racer, self._settings.effort.warm_up_calls)
            look(racer)
        self._reporter.expect(samples)
        times, links = measure.race(
            self._comm, racers, samples, calls,
            lambda what: self._reporter.step(buffers.case.name, what), look,
        )  # fmt: skip
        return times, links, list(wrong.values())

    def _check(self, contestant: Contestant, buffers: Buffers) -> tuple[int, float]:
        """Wrong bytes over all checked calls, and the time of the last one in ns."""
        wrong, call_ns = 0, 0.0
        for _ in range(self._settings.effort.checks):
            found, call_ns = measure.check(self._comm, contestant, buffers)
            wrong += found
        return wrong, call_ns

    def _find_rival(self, case: Case, buffers: Buffers) -> tuple[Contestant | None, int, float]:
        """The baseline for this case, its wrong bytes, and its time in ns."""
        against = self._settings.against
        if self._gloo:
            self._gloo.prepare(buffers)
            return self._gloo, *self._check(self._gloo, buffers)
        if against == "best-link" and self._comm.links:  # one rank alone has none
            return self._best_link(case, buffers)
        if against == "fixed-shares":
            return self._fixed_shares(case, buffers)
        return None, 0, 0.0

    def _best_link(self, case: Case, buffers: Buffers) -> tuple[Contestant, int, float]:
        """Checks and times each link alone, and keeps the fastest."""
        links = self._comm.links
        found: list[tuple[float, int, Braid]] = []
        for i, link in enumerate(links):
            self._reporter.say(case.name, f"checking {link.name} alone")
            alone = Braid(
                self._comm, f"{link.name} alone", [float(k == i) for k in range(len(links))]
            )
            alone.prepare(buffers)
            wrong, call_ns = measure.check(self._comm, alone, buffers)
            found.append((call_ns, wrong, alone))
        call_ns, _, best = min(found, key=lambda row: row[0])
        return best, sum(wrong for _, wrong, _ in found), call_ns

    def _fixed_shares(self, case: Case, buffers: Buffers) -> tuple[Contestant, int, float]:
        """Braid held to the shares it plans now: what running balancing costs, or brings."""
        plan = self._comm.explain(cast("braid.Operation", case.op), case.total_bytes).json
        shares = [link["fraction"] for link in plan["links"]]
        fixed = Braid(self._comm, "fixed shares", shares)
        fixed.prepare(buffers)
        return fixed, *self._check(fixed, buffers)


def make_record(
    settings: Settings,
    comm: braid.Comm,
    results: list[Result],
    stopped: str = "",
    num_hosts: int = 0,
) -> Record:
    """Everything about this run. `num_hosts` 0: as many as machines. Collective."""
    links = facts.fabric(comm)
    commit, dirty = facts.commit(settings.commit)
    chosen = {f"BRAID_{name.upper()}": value for name, value in settings.options.items()}
    options = facts.options(chosen)
    return Record(
        schema=SCHEMA,
        command=facts.command(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        ranks=comm.size,
        paced=bool(options.get("BRAID_PACE")) or any(link.source == "paced" for link in links),
        fabric_hash=comm.fabric_hash,
        fabric=links,
        options=options,
        host=facts.host(num_hosts or facts.num_hosts(comm)),
        versions=facts.versions(),
        results=results,
        balance_log=comm.balance_log(),
        stopped=stopped,
    )


def publish(settings: Settings, record: Record) -> None:
    """The tables, and the files that were asked for. On one rank."""
    from braid.bench.host import plot, table
    from braid.terminal.console import console

    out = console(settings.json_path)
    if not settings.quiet:
        table.show(record, out, by_rank=settings.by_rank)
    if settings.json_path:
        record.save(settings.json_path)
        out.print(f"record  {settings.json_path}")
    if settings.svg_path:
        plot.save(record, settings.svg_path)
        out.print(f"plot    {settings.svg_path}")
    if record.stopped:
        out.print(f"stopped: {record.stopped}")


def run_rank(settings: Settings) -> int:
    """The whole benchmark on this rank.

    Returns the exit code: 1 when one byte was wrong anywhere. After Ctrl-C the case at hand ends,
    and the record has what was measured.
    """
    with Interrupt() as stop, Reporter.for_this_rank() as reporter:
        comm = join(progress=reporter.tuning, **settings.options)
        with comm:
            check_root(settings.root, comm.size)
            bench = Bench(settings, comm, reporter, stop.asked)
            results = bench.run()
            made = make_record(settings, comm, results, bench.stopped)
            record = made if comm.rank == 0 else None
            comm.barrier()
    if record is not None:
        publish(settings, record)
    wrong = sum(r.wrong_bytes + (r.baseline.wrong_bytes if r.baseline else 0) for r in results)
    return 1 if wrong else 0

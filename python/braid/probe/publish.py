"""From jobs to a record, a table and a picture. Rank 0 alone prints and writes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from braid import json_file
from braid.bench import facts
from braid.bench.interrupt import Interrupt
from braid.probe.effort import Effort
from braid.probe.job import Job, Runner
from braid.record.probe import SCHEMA, ProbeRecord, Series
from braid.terminal.reporter import Reporter

Figures = Callable[[Sequence[Series]], dict[str, float]]


@dataclass(frozen=True)
class Output:
    """What the command line asked for."""

    samples: int
    budget_s: float
    json_path: Path | None = None
    svg_path: Path | None = None
    quiet: bool = False
    why_cpus: str = ""
    """Said before a run between CPUs."""
    commit: str = ""
    """Of a tree without git."""


@dataclass(frozen=True)
class Run:
    """One run of one kind."""

    kind: str
    device: str
    """GPUs by name; "" between CPUs."""
    jobs: Sequence[Job]
    output: Output
    settings: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    rank: int = 0
    figures: Figures = lambda _: {}
    judge: Callable[[Sequence[Series]], list[Series]] = list
    versions: dict[str, str] = field(default_factory=dict)
    """Of what else took part, by package."""


def measure(run: Run, agree: Callable[[bool], bool] = bool) -> int:
    """Does the jobs and publishes. `agree` makes all ranks stop alike. The exit code: 1 when a
    byte was wrong or a case did not come back, 130 after Ctrl-C; what was measured is kept.
    """
    if run.rank == 0 and not run.device and run.output.why_cpus:
        print(run.output.why_cpus, file=sys.stderr, flush=True)  # noqa: T201
    # Before the first job: a refusal costs no measurement, and the record itself, saved over one
    # that git has, does not count as a change.
    tree = facts.commit(run.output.commit)
    with Interrupt() as stop, Reporter.for_this_rank() as reporter:
        output = run.output
        effort = Effort(output.samples, output.budget_s, 1, lambda: agree(stop.came))
        runner = Runner(effort, reporter)

        def save() -> None:
            path = output.json_path
            if run.rank == 0 and path and json_file.is_replaced(path):
                _record(run, runner, tree).save(path)

        runner.run(run.jobs, save)
    record = _record(run, runner, tree)
    if run.rank == 0:
        _show(record, output)
    if record.is_bad:
        return 1
    return 130 if runner.stopped else 0


def _record(run: Run, runner: Runner, tree: tuple[str, bool]) -> ProbeRecord:
    commit, dirty = tree
    series = run.judge(runner.series)
    return ProbeRecord(
        schema=SCHEMA,
        kind=run.kind,
        command=facts.command(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        device=run.device,
        ranks=run.ranks,
        host=facts.host(),
        versions={**_versions(), **run.versions},
        settings=run.settings,
        options=facts.variables(),
        series=series,
        figures=run.figures(series),
        stopped=runner.stopped,
    )


def _versions() -> dict[str, str]:
    import importlib.metadata as packages
    import platform

    found = {"python": platform.python_version()}
    for name in ("linkbraid", "numpy", "torch"):
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return found


def _show(record: ProbeRecord, output: Output) -> None:
    from braid.probe import picture, table
    from braid.terminal.console import console

    out = console(output.json_path)
    if not output.quiet:
        table.show(record, out)
    if output.json_path:
        record.save(output.json_path)
        out.print(f"record  {output.json_path}")
    if output.svg_path and record.series:
        picture.save(record, output.svg_path)
        out.print(f"plot    {output.svg_path}")

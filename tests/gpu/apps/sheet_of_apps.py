"""What the programs came to, as a record (braid.probe/1): kind "apps"."""

import importlib.metadata
import math
import platform
import statistics
import sys
from datetime import UTC, datetime

import braid
from braid.bench import facts
from braid.record.probe import SCHEMA, ProbeRecord, Series, Verdict, times_of

PACKAGES = ("torch", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "numpy")


def verdict_of(run) -> Verdict:
    """Of one run of a program."""
    if run.total("wrong"):
        return "wrong data"
    if run.ended.startswith("did not end"):
        return "hang"
    return "failed" if run.ended else "ok"


def series_of(found) -> list[Series]:
    """Everything that was timed, by both; one case without times for what has none."""
    title = found.program.title
    if found.skipped:
        return [Series(title, "braid", 0, None, None, verdict="unsupported", note=found.skipped)]
    made = []
    for way, run in found.runs.items():
        how, note = verdict_of(run), run.ended
        times = run.times_us()
        made += [
            Series(f"{title}: {name}", way, 0, times_of(us), None, verdict=how, note=note)
            for name, us in times.items()
        ]
        if not times:
            made.append(Series(title, way, 0, None, None, verdict=how, note=note))
    return made


def ratios(found) -> dict[str, float]:
    """Times by NCCL by those by braid: above 1, braid is faster."""
    times = {way: run.times_us() for way, run in found.runs.items()}
    both = [name for name in times.get("braid", {}) if name in times.get("nccl", {})]
    return {
        f"{name}: nccl / braid": round(
            statistics.median(times["nccl"][name]) / statistics.median(times["braid"][name]), 4
        )
        for name in both
    }


def figures_of(found) -> dict[str, float]:
    """Counts and gaps of one program."""
    braid_run = found.runs.get("braid")
    if braid_run is None:
        return {}
    said: dict[str, float] = {"wrong": float(len(found.wrong)), **ratios(found)}
    between = found.gaps()
    if between:
        losses = braid_run.losses()[0]
        said["parameters"] = float(braid_run.ranks[0]["parameters"])
        said["steps"] = float(len(between))
        said["steps with losses equal to the bit on all ranks"] = float(between.count(0.0))
        said["largest gap of a loss"] = max(between)
        said["first loss"], said["last loss"] = losses[0], losses[-1]
    if found.own_gap is not None:
        said["largest gap of NCCL from itself"] = found.own_gap
    if braid_run.total("checked"):
        said["results"] = float(braid_run.total("checked"))
        said["wrong results"] = float(braid_run.total("wrong"))
    for what, calls in braid_run.calls.items():
        said[f"calls {what}"] = float(sum(calls.values()))
    title = found.program.title
    return {f"{title}: {name}": v for name, v in said.items() if math.isfinite(v)}


def settings_of(findings, args) -> dict[str, str]:
    """Versions, what was wrong, and the calls by operation, by program."""
    said = {"ranks": str(args.ranks), "cpu": str(args.cpu)}
    for found in findings:
        title, run = found.program.title, found.runs.get("braid")
        said[title] = found.skipped or found.what
        if found.wrong:
            said[f"{title}: wrong"] = "; ".join(found.wrong)
        for what, calls in (run.calls if run else {}).items():
            said[f"{title}: {what}"] = ", ".join(f"{op} {n}" for op, n in calls.items())
    return said


def device_of(findings, ranks: int) -> str:
    """As the programs saw it."""
    names = [r["device"] for found in findings for run in found.runs.values() for r in run.ranks]
    return f"{ranks} x {names[0]}" if names and names[0] else ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "braid": braid.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def record_of(findings, args) -> ProbeRecord:
    """Everything about this run."""
    commit, dirty = facts.commit(args.commit)
    figures: dict[str, float] = {}
    for found in findings:
        figures |= figures_of(found)
    return ProbeRecord(
        schema=SCHEMA,
        kind="apps",
        command=" ".join(["python3", *sys.argv]),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        device=device_of(findings, args.ranks),
        ranks=args.ranks,
        host=facts.host(),
        versions=_versions(),
        settings=settings_of(findings, args),
        options=facts.variables(),
        series=[one for found in findings for one in series_of(found)],
        figures=figures,
    )

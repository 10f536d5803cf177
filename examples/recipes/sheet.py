"""A recipe's run as a record (braid.probe/1, docs/probe_record.schema.json) and as a table.

`braid bench compare` and `braid report` read such records.
"""

import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from contest import Contest

import braid
from braid.bench import facts
from braid.probe import table
from braid.record.probe import SCHEMA, ProbeRecord, Series
from braid.terminal.console import console


def ratios(series: Sequence[Series]) -> dict[str, float]:
    """Times of the other by those of braid, by what was timed: above 1, braid is faster."""
    found = {}
    for what in dict.fromkeys(one.group for one in series):
        times = {one.case: one.times.p50_us for one in series if one.group == what and one.times}
        for other in times.keys() - {"braid"}:
            found[f"{what}: {other} / braid"] = round(times[other] / times["braid"], 4)
    return found


def record_of(
    kind: str,
    contest: Contest,
    series: Sequence[Series],
    figures: Mapping[str, float],
    settings: Mapping[str, object],
) -> ProbeRecord:
    """Everything about this run. `settings` are the command's; its "commit" is for a tree without
    git.
    """
    is_gpu = contest.device.type == "cuda"
    commit, dirty = facts.commit(str(settings["commit"] or ""))
    return ProbeRecord(
        schema=SCHEMA,
        kind=kind,
        command=" ".join([f"braid run -n {contest.size}", *sys.argv]),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        device=f"{contest.size} x {torch.cuda.get_device_name()}" if is_gpu else "",
        ranks=contest.size,
        host=facts.host(),
        versions=_versions(is_gpu),
        settings={k: str(v) for k, v in settings.items() if k not in ("commit", "json")},
        options=facts.variables(),
        series=list(series),
        figures={**ratios(series), **figures},
    )


def publish(record: ProbeRecord, path: Path | None) -> None:
    """Prints the table, and writes the record; "-" is standard output. For rank 0."""
    out = console(path)
    table.show(record, out)
    if path is not None:
        record.save(path)
        out.print(f"record  {path}")


def _versions(is_gpu: bool) -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "braid": braid.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "torch": torch.__version__,
    }
    if is_gpu:
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found

"""Timelines of ranks (BRAID_TRACE, comm.trace) put together, and what they add up to.

Every file has times of its host's monotonic clock. Files of one host agree already; those of
another are moved by what the wall clocks of the two say, which is as exact as these are set.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid.errors import InvalidArgument

Event = dict[str, Any]
CLOCKS = ("host", "rank", "monotonic_ns", "realtime_ns")


@dataclass(frozen=True)
class Timeline:
    """One rank's file."""

    path: Path
    about: dict[str, Any]
    events: list[Event]


def read(path: Path) -> Timeline:
    """InvalidArgument names the file and what is wrong with it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"trace: {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"trace: {path}: no JSON: {error}") from error
    about = document.get("otherData") if isinstance(document, dict) else None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(about, dict) or not isinstance(events, list) or not set(CLOCKS) <= set(about):
        raise InvalidArgument(f"trace: {path}: asked for a timeline that braid wrote")
    return Timeline(path, about, events)


def _ahead_ns(about: dict[str, Any]) -> int:
    """How far a host's wall clock is ahead of its monotonic one."""
    return int(about["realtime_ns"]) - int(about["monotonic_ns"])


def _moved(timeline: Timeline, pid: int, shift_us: float) -> Iterable[Event]:
    for event in timeline.events:
        moved = {**event, "pid": pid}
        if "ts" in event:
            moved["ts"] = event["ts"] + shift_us
        if "id" in event:  # of an arrow, which must not lead to another process
            moved["id"] = f"{pid}/{event['id']}"
        yield moved


def merge(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """One timeline with all ranks of all files, in the order of their ranks."""
    if not timelines:
        raise InvalidArgument("trace: asked for one file or more, found none")
    in_order = sorted(timelines, key=lambda each: int(each.about["rank"]))
    first = in_order[0].about
    taken: set[int] = set()
    events: list[Event] = []
    for timeline in in_order:
        pid = int(timeline.about["rank"])
        while pid in taken:  # another job's, or another process of this rank
            pid += 1
        taken.add(pid)
        is_first_host = timeline.about["host"] == first["host"]
        shift_us = 0 if is_first_host else (_ahead_ns(timeline.about) - _ahead_ns(first)) / 1e3
        events += _moved(timeline, pid, shift_us)
    return {
        "displayTimeUnit": "ns",
        "otherData": {**first, "files": [str(each.path) for each in in_order]},
        "traceEvents": events,
    }


@dataclass(frozen=True)
class Row:
    """Calls of one kind and size, on all ranks of a timeline."""

    op: str
    memory: str
    dtype: str
    bytes: int
    path: str
    calls: int
    median_us: float
    """Of calls whose time is known; 0 when none is."""
    busbw_gbps: float


Kind = tuple[str, str, str, int, str]


def _kind_of(event: Event, memory: str) -> Kind:
    args = event["args"]
    return (event["name"], memory, args["dtype"], int(args["bytes"]), args["path"])


def summary(timelines: Sequence[Timeline]) -> list[Row]:
    """What the calls add up to, most time first."""
    calls: Counter[Kind] = Counter()
    times: dict[Kind, list[float]] = {}
    speeds: dict[Kind, list[float]] = {}
    for event in (event for timeline in timelines for event in timeline.events):
        category = event.get("cat")
        if event.get("ph") != "X" or category not in ("host", "enqueue", "gpu"):
            continue
        kind = _kind_of(event, "host" if category == "host" else "gpu")
        if category != "gpu":
            calls[kind] += 1
        # A GPU call takes what its stream takes; the caller's thread has only enqueued it.
        if category != "enqueue" and event["args"]["state"] == "completed":
            times.setdefault(kind, []).append(float(event["dur"]))
            speeds.setdefault(kind, []).append(float(event["args"].get("busbw_gbps", 0)))
    rows = [
        Row(
            *kind,
            calls=count,
            median_us=statistics.median(times.get(kind, [0.0])),
            busbw_gbps=statistics.median(speeds.get(kind, [0.0])),
        )
        for kind, count in calls.items()
    ]
    return sorted(rows, key=lambda row: -row.calls * row.median_us)

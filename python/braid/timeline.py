"""Timelines of ranks (BRAID_TRACE, comm.trace) put together, and what they add up to.

Every file has times of its host's monotonic clock. Files of one host agree already; those of
another are moved by what the wall clocks of the two say, which is as exact as these are set.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid.errors import InvalidArgument

Event = dict[str, Any]
_MOST_BYTES = 1 << 30
"""Most bytes of a file: one without an end (/dev/zero) is not read for ever."""
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
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"trace: {path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise InvalidArgument(f"trace: {path}: more than {_MOST_BYTES >> 20} MiB, no timeline")
    try:
        document = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"trace: {path}: no JSON: {error}") from error
    about = document.get("otherData") if isinstance(document, dict) else None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(about, dict) or not isinstance(events, list) or not set(CLOCKS) <= set(about):
        raise InvalidArgument(f"trace: {path}: asked for a timeline that braid wrote")
    if wrong := _wrong(about, _CLOCK_FIELDS):
        raise InvalidArgument(f"trace: {path}: otherData: {wrong}")
    for number, event in enumerate(events):
        if wrong := _wrong_in_event(event):
            raise InvalidArgument(f"trace: {path}: event {number}: {wrong}")
    return Timeline(path, about, events)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    """What is shown as it is."""
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_size(value: object) -> bool:
    return isinstance(value, int) and _is_whole(value) and value >= 0


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and abs(value) < 2**63)


_Fields = dict[str, Callable[[object], bool]]

_CLOCK_FIELDS: _Fields = {
    "host": _is_text, "rank": _is_size, "monotonic_ns": _is_whole, "realtime_ns": _is_whole,
}  # fmt: skip
_CALL_FIELDS: _Fields = {"name": _is_name, "dur": _is_number}
_ARGUMENT_FIELDS: _Fields = {
    "dtype": _is_name, "bytes": _is_size, "path": _is_name, "state": _is_text,
}  # fmt: skip
_CALLS = ("host", "enqueue", "gpu")  # the categories of slices that are calls


def _wrong(found: dict[str, Any], fields: _Fields) -> str:
    """Which field is missing or of another kind than braid writes; empty: none."""
    for name, is_right in fields.items():
        if name not in found:
            return f"asked for a field {name}"
        if not is_right(found[name]):
            return f"field {name}: asked for what braid writes, found {found[name]!r:.80}"
    return ""


def _wrong_in_event(event: object) -> str:
    """The same of an event: of what is read here alone, for others may add what they like."""
    if not isinstance(event, dict):
        return f"asked for an object, found {event!r:.80}"
    if "ts" in event and (wrong := _wrong(event, {"ts": _is_number})):
        return wrong
    if not _is_call(event):
        return ""
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return "asked for a field args"
    speed: _Fields = {"busbw_gbps": _is_number} if "busbw_gbps" in arguments else {}
    return _wrong(event, _CALL_FIELDS) or _wrong(arguments, {**_ARGUMENT_FIELDS, **speed})


def _is_call(event: Event) -> bool:
    return event.get("ph") == "X" and event.get("cat") in _CALLS


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
        if not _is_call(event):
            continue
        category = event["cat"]
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

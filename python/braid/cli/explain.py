"""`braid explain`: a plan, with what tuning measured on this machine where a rate is assumed.

The plan itself goes by what was measured already; its words name the links' facts, which are
assumed for memory that nobody paces. Tuning leaves its measurements in a file, by operation,
number of ranks and link: the time of a message of some size over that link alone.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import braid
from braid.sizes import format_size

ASSUMED = "assumed"


@dataclass(frozen=True)
class Point:
    """A message over one link alone."""

    bytes: int
    ns: float

    @property
    def gbps(self) -> float:
        """Of the message, not of what the link moves for it."""
        return self.bytes / self.ns

    def words(self) -> str:
        """What was measured."""
        return f"measured: {format_size(self.bytes)} over it alone in {self.ns / 1e3:,.1f} us"


def cache_folder() -> Path:
    """Where tuning keeps its files, as src/coll/tune/cache.cc has it."""
    if own := os.environ.get("BRAID_CACHE_DIR"):
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "braid"


def _tables(folder: Path, fabric_hash: str) -> list[dict[str, Any]]:
    """The newest file first; one that cannot be read is none."""
    found = []
    paths = {path: path.stat().st_mtime for path in folder.glob(f"tuning-{fabric_hash}-*.json")}
    for path in sorted(paths, key=lambda each: -paths[each]):
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(table, dict) and str(table.get("fabric_hash")).startswith(fabric_hash):
            found.append(table)
    return found


def measured(plan: dict[str, Any], fabric_hash: str, folder: Path) -> dict[str, Point]:
    """By link, the point whose size is nearest to the plan's."""
    for table in _tables(folder, fabric_hash):
        try:
            return _nearest(table, plan)
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # not of this form; tuning makes it anew
    return {}


def _nearest(table: dict[str, Any], plan: dict[str, Any]) -> dict[str, Point]:
    found = {}
    for curve in table["rates"]:
        if (curve["op"], curve["num_ranks"]) != (plan["op"], plan["num_ranks"]):
            continue
        points = [Point(int(size), float(ns)) for size, ns in curve["points"] if size > 0 < ns]
        if points:
            nearest = min(points, key=lambda one: abs(one.bytes - plan["bytes"]))
            found[str(table["links"][curve["link"]])] = nearest
    return found


def told(comm: braid.Comm, op: str, nbytes: int) -> braid.Explanation:
    """The plan; a link whose rate is assumed is told with what tuning measured of it."""
    plan = comm.explain(op, nbytes)
    if os.environ.get("BRAID_TUNE", "auto") == "off":
        return with_measured(plan, {})  # what others measured here is not used
    return with_measured(plan, measured(plan.json, comm.fabric_hash, cache_folder()))


def with_measured(plan: braid.Explanation, points: dict[str, Point]) -> braid.Explanation:
    """The same with these in the words where a rate is assumed. In JSON rate_gbps and source stay
    those of the link's facts, beside measured_bytes and
    measured_ns.
    """
    lines = plan.text.split("\n")
    document = json.loads(json.dumps(plan.json))
    for line, link in enumerate(document["links"], start=1):
        point = points.get(link["name"]) if link["source"] == ASSUMED else None
        link["measured_bytes"] = point and point.bytes
        link["measured_ns"] = point and point.ns
        if point is not None:
            before, _, after = lines[line].partition("  at ")
            shares = after.partition(f"({ASSUMED}")[2]
            lines[line] = f"{before}  at {point.gbps:.3g} GB/s ({point.words()}{shares}"
    return braid.Explanation("\n".join(lines), document)

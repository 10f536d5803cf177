"""`braid explain`: a plan, and from where and from when the measurements are that it goes by.

The plan says of every link the rate that decides: what tuning measured, else the link's facts.
Tuning keeps its measurements in a file, by fabric; they hold until they are made again.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import braid

_DAY_S = 86400.0


@dataclass(frozen=True)
class Cache:
    """What tuning kept of this fabric."""

    file: Path
    age_s: float

    def words(self) -> str:
        """Where it is, how old, and how to have it made again."""
        return f"  tuned {_ago(self.age_s)}, {self.file}; BRAID_TUNE=force measures again\n"


def _ago(age_s: float) -> str:
    for unit, scale in (("day", _DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if age_s >= scale:
            count = int(age_s / scale)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


def cache_folder() -> Path:
    """Where tuning keeps its files, as src/coll/tune/cache.cc has it."""
    if own := os.environ.get("BRAID_CACHE_DIR"):
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "braid"


def cache_of(fabric_hash: str, folder: Path) -> Cache | None:
    """The newest file of a fabric; one that cannot be read is none."""
    paths = {path: path.stat().st_mtime for path in folder.glob(f"tuning-{fabric_hash}-*.json")}
    for path in sorted(paths, key=lambda each: -paths[each]):
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(table, dict) and str(table.get("fabric_hash")).startswith(fabric_hash):
            return Cache(path, max(0.0, time.time() - paths[path]))
    return None


def told(comm: braid.Comm, op: str, nbytes: int) -> braid.Explanation:
    """The plan, with the file of the measurements that it goes by, if it goes by any."""
    plan = comm.explain(cast("braid.Operation", op), nbytes)
    is_tuned = any(link.get("alone_ns") for link in plan.json["links"])
    return with_cache(plan, cache_of(comm.fabric_hash, cache_folder()) if is_tuned else None)


def with_cache(plan: braid.Explanation, cache: Cache | None) -> braid.Explanation:
    """The same with a line more; in JSON tuning_file and tuning_age_s, null where the plan goes by
    facts, or nothing could be kept, and a link's alone_source.
    """
    document = {
        **plan.json,
        "links": [_with_source(link) for link in plan.json["links"]],
        "tuning_file": str(cache.file) if cache else None,
        "tuning_age_s": round(cache.age_s, 1) if cache else None,
    }
    return braid.Explanation(plan.text + (cache.words() if cache else ""), document)


def _with_source(link: dict[str, Any]) -> dict[str, Any]:
    """Its `source` is that of rate_gbps and latency_ns; alone_ns, where there is one, was timed."""
    return {**link, "alone_source": "measured" if link.get("alone_ns") else None}

"""Models by name, from our table, or from a checkpoint's config.json."""

import json
import os
from pathlib import Path

from braid.plan import shipped
from braid.plan.config import from_config
from braid.plan.model import Model
from braid.plan.wrong import PlanError, unknown

_MOST_BYTES = 64 << 20
"""No config.json is larger; what has no end (/dev/zero) is not read to it."""


def names() -> list[str]:
    """The models we know by name."""
    return list(shipped.table("models"))


def find(name: str) -> Model:
    """By name, or from a config.json (a file, or a folder that has one). PlanError else."""
    table = shipped.table("models")
    if name.lower() in table:
        row = table[name.lower()]
        return from_config(row["config"], name.lower(), shipped.source(row["source"]))
    path = Path(name)
    if os.path.isdir(path):  # pathlib raises where a folder may not be entered
        path /= "config.json"
    if path.suffix == ".json" or os.path.exists(path):
        return _from_file(path)
    raise unknown("model", name, table, "or a config.json: give its path")


def _from_file(path: Path) -> Model:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PlanError(f"model {path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise PlanError(f"model {path}: more than {_MOST_BYTES >> 20} MiB, which is no config.json")
    try:
        config = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise PlanError(f"model {path}: not JSON: {error!s:.100}") from error
    if not isinstance(config, dict):
        raise PlanError(f"model {path}: a config.json holds an object")
    return from_config(config, str(path), f"config.json {path}")

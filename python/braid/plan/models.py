"""Models by name, from our table, or from a checkpoint's config.json."""

import json
from pathlib import Path

from braid.plan import shipped
from braid.plan.config import from_config
from braid.plan.model import Model
from braid.plan.wrong import PlanError, unknown


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
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json" or path.exists():
        return _from_file(path)
    raise unknown("model", name, table, "or a config.json: give its path")


def _from_file(path: Path) -> Model:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"model {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"model {path}: not JSON: {error!s:.100}") from error
    if not isinstance(config, dict):
        raise PlanError(f"model {path}: a config.json holds an object")
    return from_config(config, str(path), f"config.json {path}")

"""The package's own data files, read once."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

Json: TypeAlias = Any  # what json.loads gives


@cache
def table(name: str) -> Json:
    """data/NAME.json."""
    return json.loads(text(f"{name}.json"))


def text(file_name: str) -> str:
    """A data file as text."""
    return (files("braid.plan") / "data" / file_name).read_text(encoding="utf-8")


def source(key: str) -> str:
    """A source in a few words; data/sources.json has the rest."""
    row = table("sources")[key]
    return f"{row['short']}, {row['date']}"


def constant(name: str) -> float:
    """A number of data/constants.json, whose row has its unit, what it means and its source."""
    value: float = table("constants")[name]["value"]
    return value

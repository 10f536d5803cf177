"""Every formula as data: what it says, in which units, and who said so when.

data/formulas.json has a row per function of `braid.plan.formulas`; data/sources.json the sources.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import FunctionType

from braid.plan import shipped

_PROTOCOLS = "protocols"


@dataclass(frozen=True)
class Formula:
    """One row."""

    name: str
    """Of the function."""
    ids: list[str]
    """Numbers of docs/plan_vectors.md: F17."""
    what: str
    says: str
    unit: str
    """Of the result; "" for a count or a ratio."""
    given: dict[str, str]
    """Arguments and their units."""
    words: list[str]
    """Terms of the glossary that it belongs to."""
    source: str
    date: str
    where: str
    call: str
    """The function: "braid.plan.formulas.rates.gbps"."""

    def goes_by(self, word: str) -> bool:
        """Whether it may be asked for like this, in small letters."""
        names = (self.name, self.call, *self.ids, *self.words)
        return word in (name.lower() for name in names)

    def function(self) -> FunctionType:
        """The code."""
        place, _, name = self.call.rpartition(".")
        found: FunctionType = getattr(import_module(place), name)
        return found


@cache
def every() -> tuple[Formula, ...]:
    """All of them, F1 first."""
    return tuple(
        Formula(
            row["call"].partition(".")[2],
            row["ids"],
            row["what"],
            row["says"],
            row["unit"],
            row["given"],
            row["words"],
            **_source(row["source"]),
            call=_place(row["call"]),
        )
        for row in shipped.table("formulas")
    )


def _source(key: str) -> dict[str, str]:
    row = shipped.table("sources")[key]
    return {"source": row["title"], "date": row["date"], "where": row["where"]}


def _place(call: str) -> str:
    module = call.partition(".")[0]
    folder = "braid.plan" if module == _PROTOCOLS else "braid.plan.formulas"
    return f"{folder}.{call}"


def find(word: str) -> list[Formula]:
    """Those of a number (F17), of a function or of a term; none for any other word."""
    return [one for one in every() if one.goes_by(word.strip().lower())]

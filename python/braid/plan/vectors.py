"""Published figures beside what braid computes: data/vectors.json, one row per figure.

A row names a function ("rates.gbps_of_gbit"), its arguments, and the expected value with its
tolerance (relative). Every row is a test, and docs/plan_vectors.md shows them all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from braid.plan import shipped

_PLACES = {
    "rates": "braid.plan.formulas.rates",
    "collectives": "braid.plan.formulas.collectives",
    "training": "braid.plan.formulas.training",
    "overlap": "braid.plan.formulas.overlap",
    "messages": "braid.plan.formulas.messages",
    "hardware": "braid.plan.hardware",
    "nodes": "braid.plan.formulas.nodes",
    "network": "braid.plan.network",
    "expert": "braid.plan.parallel.expert",
    "published": "braid.plan.published",
}


@dataclass(frozen=True)
class Vector:
    """One published figure."""

    id: str
    what: str
    call: str
    given: dict[str, Any]
    expected: float
    unit: str
    tolerance: float

    def words(self) -> str:
        """The arguments: "ranks 8, busbw 480"."""
        return ", ".join(f"{name} {_short(value)}" for name, value in self.given.items())

    def found(self) -> float:
        """What braid computes."""
        place, name = self.call.split(".")
        value: float = getattr(import_module(_PLACES[place]), name)(**self.given)
        return value

    def error(self) -> float:
        """Relative, signed."""
        return self.found() / self.expected - 1 if self.expected else self.found()

    def holds(self) -> bool:
        """Whether braid agrees within the tolerance."""
        return abs(self.error()) <= self.tolerance + 1e-12


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"


def load() -> Iterator[Vector]:
    """All of them, in order."""
    for row in shipped.table("vectors"):
        for given, expected in row["cases"]:
            yield Vector(
                row["id"],
                row["what"],
                row["call"],
                given,
                expected,
                row["unit"],
                row["tolerance"],
            )

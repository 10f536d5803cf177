"""The form of what `braid plan --json` prints.

The classes are the form, docs/plan.schema.json is made from them (`python -m braid.plan.answer`).
Names of results and columns are stable as well; labels, notes and titles are for people.
"""

from dataclasses import dataclass
from typing import Final, Literal

from braid.plan.basis import Basis, Quantity
from braid.typed_json import format_schema, publish

SCHEMA: Final = "braid.plan/1"

Value = str | bool | int | float | None


@dataclass(frozen=True)
class Result:
    """One number."""

    name: str
    label: str
    value: float
    unit: str
    basis: Basis
    origin: str


@dataclass(frozen=True)
class TableRow:
    """One line of a ranking or a table: numbers by column."""

    name: str
    note: str
    cells: dict[str, Quantity]


@dataclass(frozen=True)
class Answer:
    """What one command of `braid plan` answers."""

    schema: Literal["braid.plan/1"]
    command: str
    title: str
    inputs: dict[str, Value]
    results: list[Result]
    rows: list[TableRow]
    notes: list[str]
    warnings: list[str]


def main() -> None:
    """Prints the schema; docs/plan.schema.json is this output."""
    publish(format_schema(Answer, f"answer of braid plan, {SCHEMA}"))


if __name__ == "__main__":
    main()

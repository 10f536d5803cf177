"""What a question to `braid plan` answers: numbers with names, and what follows from them.

Names are stable: programs read them from --json. Labels are for people and may change.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from braid.plan.answer import SCHEMA, Answer, Result, TableRow, Value
from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.model import Model


@dataclass(frozen=True)
class Line:
    """One number."""

    name: str
    label: str
    quantity: Quantity


@dataclass(frozen=True)
class Row:
    """One line of a ranking or a table: its name, and numbers by column."""

    name: str
    cells: dict[str, Quantity]
    note: str = ""


@dataclass
class Report:
    """The answer to one command."""

    command: str
    title: str
    inputs: dict[str, Value]
    lines: list[Line] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, name: str, label: str, quantity: Quantity) -> Quantity:
        """Appends a number and gives it back."""
        self.lines.append(Line(name, label, quantity))
        return quantity

    def exact(self, name: str, label: str, value: float, unit: str, origin: str = "") -> Quantity:
        """Appends a number that follows from the question alone."""
        return self.add(name, label, Quantity(value, unit, Basis.EXACT, origin))

    def derived(
        self,
        name: str,
        label: str,
        value: float,
        unit: str,
        parts: Iterable[Quantity],
        origin: str = "",
    ) -> Quantity:
        """Appends a number computed from others: it is as good as the weakest of them."""
        basis = weakest(part.basis for part in parts)
        return self.add(name, label, Quantity(value, unit, basis, origin))

    def about(self, model: Model) -> None:
        """Appends what a reader of this model's numbers must know."""
        self.warnings += model.warnings
        self.notes += model.notes

    def first(self, count: int) -> "Report":
        """The same answer with fewer rows."""
        return replace(self, rows=self.rows[:count])

    def value(self, name: str) -> float:
        """A number by its name. KeyError when there is none."""
        for line in self.lines:
            if line.name == name:
                return line.quantity.value
        raise KeyError(name)

    def document(self) -> dict[str, Any]:
        """The answer for programs."""
        results = [_result(line) for line in self.lines]
        rows = [TableRow(row.name, row.note, row.cells) for row in self.rows]
        answer = Answer(
            SCHEMA, self.command, self.title, self.inputs, results, rows, self.notes, self.warnings
        )
        return asdict(answer)


def _result(line: Line) -> Result:
    q = line.quantity
    return Result(line.name, line.label, q.value, q.unit, q.basis, q.origin)

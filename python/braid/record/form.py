"""How records of every kind are read: the classes are the format, and a check follows them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from braid.typed_json import Json, build, format_schema, publish


class HasSchema(Protocol):
    """What every record begins with."""

    @property
    def schema(self) -> str:
        """The name of its form, and the form's age."""


R = TypeVar("R", bound=HasSchema)


@dataclass(frozen=True)
class Form(Generic[R]):
    """One kind of record. Its JSON Schema under docs/ is made of the same classes."""

    kind: type[R]
    schema: str
    """What `kind` has as its schema: "braid.bench/1"."""
    check: Callable[[R], None]
    """ValueError, with the place, for numbers that no run can have."""

    def from_json(self, document: Json) -> R:
        """Checks a parsed document. ValueError names the place that does not fit."""
        record: R = build(self.kind, document, "record")
        if record.schema != self.schema:
            raise ValueError(f"record.schema: asked for {self.schema}, found {record.schema}")
        self.check(record)
        return record

    def load(self, path: Path) -> R:
        """Reads and checks a record. ValueError names the place that does not fit."""
        return self.from_json(json.loads(path.read_text(encoding="utf-8")))

    def json_schema(self) -> dict[str, Any]:
        """The format as JSON Schema."""
        return format_schema(self.kind, f"braid record, {self.schema}")

    def print_schema(self) -> None:
        """What the file under docs/ is."""
        publish(self.json_schema())

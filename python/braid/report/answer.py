"""The form of what `braid report --json` prints: what is on the page.

docs/report.schema.json is made from the classes (`python -m braid.report.answer`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from braid.plan.answer import Answer
from braid.report.plan import Plan
from braid.report.probes import Probed
from braid.report.runs import Run
from braid.topo.document import Document
from braid.topo.verdicts.verdict import Verdict
from braid.typed_json import format_schema, publish

SCHEMA: Final = "braid.report/1"


@dataclass(frozen=True)
class OnPage:
    """What is on a page: of every record path, title and the facts of its provenance; of every
    plan what braid plan says (braid.plan/1), and with whose times it was made.
    """

    schema: Literal["braid.report/1"]
    page: str
    machine: str
    records: list[dict[str, str]]
    verdicts: list[Verdict]
    plans: list[Answer]


def document(
    out: Path, whole: Document, runs: Sequence[Run | Probed], plans: Sequence[Plan]
) -> dict[str, Any]:
    """For programs."""
    records = [{"path": one.path, "title": one.title, **one.facts} for one in runs]
    page = OnPage(SCHEMA, str(out), whole.machine.name, records, whole.derived.verdicts, [])
    named = [{"with": one.title, **one.answer.document()} for one in plans]
    return {**asdict(page), "plans": named}


def json_schema() -> dict[str, Any]:
    """The form as JSON Schema (2020-12). "with" is a word of Python's own: no class can have it."""
    schema = format_schema(OnPage, f"what is on a page of braid report, {SCHEMA}")
    answer = schema["$defs"]["Answer"]
    answer["properties"] = {"with": {"type": "string"}, **answer["properties"]}
    answer["required"] = ["with", *answer["required"]]
    return schema


def main() -> None:
    """Prints the schema; docs/report.schema.json is this output."""
    publish(json_schema())


if __name__ == "__main__":
    main()

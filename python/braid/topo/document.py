"""The JSON of `braid topo --json`, braid.topo/1.

The fields of Machine are its facts; a reader needs nothing else. `links`, `matrix`, `roles`,
`verdicts`, `measured_pairs` and `places` are there for scripts: they follow from the facts and
from records, and reading a document computes them anew, so that an old document gets what braid
has learnt since. Within version 1 fields may be added, with defaults. docs/topo.schema.json is
generated from the classes (`python -m braid.topo.document`).
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from braid.topo import facts
from braid.topo.check import checked
from braid.topo.errors import BadTopology
from braid.topo.facts import Machine
from braid.topo.look import View
from braid.topo.matrix import Matrix, matrix
from braid.topo.measured import Measured
from braid.topo.pairs import PairRate, pair_rates
from braid.topo.places import Place, places
from braid.topo.rates import Rate, rates
from braid.topo.roles import roles
from braid.topo.verdicts import Verdict, verdicts
from braid.topo.verdicts.measured import too_fast
from braid.typed_json import Json, build, object_schema, parts_of

SCHEMA = "braid.topo/1"


@dataclass(frozen=True)
class Derived:
    """What follows from the facts."""

    links: list[Rate] = field(default_factory=list)
    matrix: list[Matrix] = field(default_factory=list)
    roles: dict[str, facts.NicRole] = field(default_factory=dict)
    """NIC -> the network it belongs to."""
    verdicts: list[Verdict] = field(default_factory=list)
    measured_pairs: list[PairRate] = field(default_factory=list)
    """What records say about two GPUs, whatever joins them."""
    places: list[Place] = field(default_factory=list)
    """NUMA node and PCIe switches of every GPU and NIC, also where only paths tell of them."""


@dataclass(frozen=True)
class Document:
    """A machine, and what follows from its facts."""

    machine: Machine
    derived: Derived


def document(machine: Machine, measured: Sequence[Measured] = ()) -> Document:
    """Everything about a machine."""
    words = [matrix(machine, "nvidia"), matrix(machine, "nccl")]
    view = View(machine)
    pairs = pair_rates(machine, measured)
    links = rates(machine, measured)
    found = [*too_fast(links), *verdicts(machine)]
    return Document(machine, Derived(links, words, roles(view), found, pairs, places(view)))


def to_json(whole: Document) -> str:
    """As text, readable by people too."""
    parts = {"schema": SCHEMA, **_parts(whole.machine), **_parts(whole.derived)}
    return json.dumps(parts, indent=1, default=_parts)


def _parts(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Its fields as they are: asdict would copy all that is in them, too."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


def read(text: str) -> Machine:
    """The machine in a document's text. BadTopology names what does not fit."""
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTopology(f"the JSON is cut off or damaged: {error!s:.120}") from error
    if not isinstance(parsed, dict) or "schema" not in parsed:
        raise BadTopology("the JSON has no schema; braid topo --json writes one")
    if parsed["schema"] != SCHEMA:
        raise BadTopology(f"the JSON is of {parsed['schema']!r:.40}, braid reads {SCHEMA}")
    ours = {f.name: parsed[f.name] for f in fields(Machine) if f.name in parsed}
    try:
        machine: Machine = build(Machine, ours, "machine")
    except ValueError as error:
        raise BadTopology(str(error)) from error
    return checked(machine)


def json_schema() -> dict[str, Any]:
    """The format as JSON Schema (2020-12)."""
    machine, derived = object_schema(Machine), object_schema(Derived)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"braid topology, {SCHEMA}",
        **machine,
        "properties": {
            "schema": {"const": SCHEMA},
            **machine["properties"],
            **derived["properties"],
        },
        "required": ["schema", *machine["required"]],
        "$defs": {
            part.__name__: object_schema(part) for part in [*parts_of(Machine), *parts_of(Derived)]
        },
    }


def main() -> None:
    """Prints the schema; docs/topo.schema.json is this output."""
    json.dump(json_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

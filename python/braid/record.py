"""Records: what `braid bench --json` writes, and the only source of numbers in the documentation.

A record holds everything that is needed to judge a number without the machine: how it was made,
on what, every sample, what it was compared with in the same run. The classes below are the
format; docs/record.schema.json is generated from them (`python -m braid.record`), and from_json()
checks against them, so the three cannot differ. Units are in the names: _us microseconds, _gbps
1e9 bytes per second.
"""

import inspect
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

SCHEMA = "braid.bench/1"

Json: TypeAlias = Any  # what json.loads gives
Kind: TypeAlias = Any  # a type as written in an annotation


@dataclass(frozen=True)
class Host:
    """The machine. All ranks of one record run on it unless num_hosts says otherwise."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    num_hosts: int = 1


@dataclass(frozen=True)
class Versions:
    """What was running. None: not installed, or not used."""

    braid: str
    python: str
    numpy: str
    torch: str | None
    build_type: str
    reduce_isa: str


@dataclass(frozen=True)
class FabricLink:
    """A link as the run knew it at its start."""

    name: str
    kind: str
    rate_gbps: float
    latency_ns: int
    source: str


@dataclass(frozen=True)
class LinkUse:
    """What one link carried of one result, as rank 0 saw it."""

    name: str
    share: float
    """Of the bytes, by the plan: 0 to 1."""
    rate_gbps: float
    """Bytes through this link (the larger direction) by the whole call's time."""


@dataclass(frozen=True)
class Samples:
    """Times of one contestant.

    A sample is the slowest rank's time for one call, or the mean of calls_per_sample.
    """

    samples_us: list[float]
    median_us: float
    p5_us: float
    p95_us: float


@dataclass(frozen=True)
class Baseline:
    """What braid was compared with, measured in the same processes, sample by sample in turn with
    braid.
    """

    name: str
    times: Samples
    wrong_bytes: int


@dataclass(frozen=True)
class Result:
    """One operation at one size."""

    op: str
    bytes: int
    """As nccl-tests counts: the buffer for all_reduce and broadcast, the sum over ranks for the
    others.
    """
    dtype: str
    redop: str
    calls_per_sample: int
    warm_up_calls: int
    times: Samples
    algbw_gbps: float
    busbw_gbps: float
    checked_bytes: int
    """Bytes compared before timing, all ranks together."""
    wrong_bytes: int
    links: list[LinkUse]
    baseline: Baseline | None
    ratio: float | None
    """Median time of the baseline by the median time of braid: above 1, braid is faster."""


@dataclass(frozen=True)
class Record:
    """One run of `braid bench`."""

    schema: str
    command: str
    date: str
    """UTC, ISO 8601."""
    commit: str
    """Of the checkout that the command ran in; "unknown" outside of one."""
    dirty: bool
    ranks: int
    paced: bool
    """True when links were slowed down on purpose; every rate is then the experiment's, not the
    machine's.
    """
    fabric_hash: str
    """Of the links and devices; the key of the tuning cache."""
    fabric: list[FabricLink]
    options: dict[str, str]
    """BRAID_ options that differ from their defaults, the job token left out."""
    host: Host
    versions: Versions
    results: list[Result]
    balance_log: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Writes JSON, readable by people too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """Reads and checks a record. ValueError names the place that does not fit."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))


def from_json(document: Json) -> Record:
    """Checks a parsed document against the classes above.

    ValueError names the place that does not fit.
    """
    record = build(Record, document, "record")
    if record.schema != SCHEMA:
        raise ValueError(f"record.schema: asked for {SCHEMA}, found {record.schema}")
    return record  # type: ignore[no-any-return]


def build(kind: Kind, value: Json, where: str) -> Json:
    """A value of `kind` out of parsed JSON. ValueError names the place that does not fit."""
    origin: Kind = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else build(_not_none(kind), value, where)
    if origin is list:
        _expect(isinstance(value, list), "a list", value, where)
        return [build(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        return {
            key: build(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()
        }
    if is_dataclass(kind):
        return _build_object(kind, value, where)
    return _build_plain(kind, value, where)


def _build_object(kind: Kind, value: Json, where: str) -> Json:
    _expect(isinstance(value, Mapping), "an object", value, where)
    known = {f.name for f in fields(kind)}
    missing = {f.name for f in fields(kind) if _required(f)} - value.keys()
    _expect(not missing, "the fields " + ", ".join(sorted(missing)), sorted(value), where)
    _expect(value.keys() <= known, "no other fields", sorted(value.keys() - known), where)
    hints = get_type_hints(kind)
    return kind(
        **{name: build(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    )


def _build_plain(kind: type, value: Json, where: str) -> Json:
    if kind is float and type(value) is int:
        return float(value)
    _expect(type(value) is kind, kind.__name__, value, where)
    return value


def _expect(is_right: bool, wanted: str, found: object, where: str) -> None:
    if not is_right:
        raise ValueError(f"{where}: asked for {wanted}, found {found!r:.80}")


def _not_none(kind: Kind) -> Kind:
    return next(option for option in get_args(kind) if option is not type(None))


def _required(f: "Field[Any]") -> bool:
    return f.default is MISSING and f.default_factory is MISSING


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema_of(kind: Kind) -> dict[str, Any]:
    origin: Kind = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(_not_none(kind)), {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _schema_of(get_args(kind)[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(get_args(kind)[1])}
    if is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}  # type: ignore[union-attr]
    return {"type": _JSON_TYPES[kind]}


def _object_schema(kind: Kind) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": {f.name: _schema_of(hints[f.name]) for f in fields(kind)},
        "required": [f.name for f in fields(kind) if _required(f)],
        "additionalProperties": False,
    }


def parts_of(kind: Kind) -> list[Kind]:
    """The classes that a class's fields are made of, each once."""
    found: list[Kind] = []
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part) and part not in found:
                found += [part, *(deeper for deeper in parts_of(part) if deeper not in found)]
    return found


def schema_of(kind: Kind, name: str) -> dict[str, Any]:
    """A format as JSON Schema (2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"braid record, {name}",
        **_object_schema(kind),
        "$defs": {part.__name__: _object_schema(part) for part in parts_of(kind)},
    }


def json_schema() -> dict[str, Any]:
    """This format."""
    return schema_of(Record, SCHEMA)


def main() -> None:
    """Prints the schema; docs/record.schema.json is this output."""
    json.dump(json_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

"""Dataclasses as JSON and back, checked, with a published schema.

A format is a tree of frozen dataclasses. build() makes it from a parsed document and names the
place that does not fit; format_schema() describes it. Both read the same annotations, so what is
published and what is accepted cannot differ. Fields without a default are required, unknown
fields are refused. Known annotations: str, int, float, bool, Literal, StrEnum, list, dict,
`X | None`, several of the plain ones (`str | float`), dataclasses.
"""

import inspect
import json
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

Json: TypeAlias = Any  # what json.loads gives
Kind: TypeAlias = Any  # a type as written in an annotation

_LARGEST = 1 << 63  # of integers that a float field takes: JSON has none, floats have


def build(kind: Kind, value: Json, where: str) -> Json:
    """`value` as a `kind`. ValueError names the place, starting with `where`, that does not fit."""
    origin: Kind = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else build(_option_for(kind, value), value, where)
    if origin is list:
        _expect(isinstance(value, list), "a list", value, where)
        return [build(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        return {
            key: build(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()
        }
    if origin is Literal:
        words = get_args(kind)
        _expect(value in words, "one of " + ", ".join(words), value, where)
        return value
    if is_dataclass(kind):
        return _build_object(kind, value, where)
    if issubclass(kind, StrEnum):
        _expect(value in list(kind), "one of " + ", ".join(kind), value, where)
        return kind(value)
    return _build_plain(kind, value, where)


def _build_object(kind: Kind, value: Json, where: str) -> Json:
    _expect(isinstance(value, Mapping), "an object", value, where)
    known = {f.name for f in fields(kind)}
    missing = {f.name for f in fields(kind) if _required(f)} - value.keys()
    _expect(not missing, "the fields " + ", ".join(sorted(missing)), sorted(value), where)
    _expect(value.keys() <= known, "no other fields", sorted(value.keys() - known), where)
    hints = _hints(kind)
    return kind(
        **{name: build(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    )


def _build_plain(kind: type, value: Json, where: str) -> Json:
    if kind is float and type(value) is int and abs(value) < _LARGEST:
        value = float(value)
    _expect(type(value) is kind, kind.__name__, value, where)
    # json.loads takes NaN and Infinity, which are no numbers of a measurement.
    _expect(kind is not float or math.isfinite(value), "a finite number", value, where)
    return value


def _expect(is_right: bool, wanted: str, found: object, where: str) -> None:
    if not is_right:
        raise ValueError(f"{where}: asked for {wanted}, found {found!r:.80}")


def _options(kind: Kind) -> list[Kind]:
    return [option for option in get_args(kind) if option is not type(None)]


def _option_for(kind: Kind, value: Json) -> Kind:
    """The option that a value is of; the last one, whose complaint it gets, if it is of none."""
    options = _options(kind)
    return type(value) if type(value) in options else options[-1]


@cache
def _hints(kind: Kind) -> dict[str, Any]:
    return get_type_hints(kind)


def _required(f: "Field[Any]") -> bool:
    return f.default is MISSING and f.default_factory is MISSING


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema_of(kind: Kind) -> dict[str, Any]:
    origin: Kind = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [*map(_schema_of, _options(kind)), {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _schema_of(get_args(kind)[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(get_args(kind)[1])}
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}  # type: ignore[union-attr]
    if issubclass(kind, StrEnum):
        return {"enum": list(kind)}
    return {"type": _JSON_TYPES[kind]}


def object_schema(kind: Kind) -> dict[str, Any]:
    """A dataclass as JSON Schema; other dataclasses are references into $defs."""
    hints = _hints(kind)
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
    for hint in _hints(kind).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part) and part not in found:
                found += [part, *(deeper for deeper in parts_of(part) if deeper not in found)]
    return found


def format_schema(kind: Kind, title: str) -> dict[str, Any]:
    """A format as JSON Schema (2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **object_schema(kind),
        "$defs": {part.__name__: object_schema(part) for part in parts_of(kind)},
    }


def publish(schema: dict[str, Any]) -> None:
    """Prints a schema; docs/*.schema.json are such outputs."""
    json.dump(schema, sys.stdout, indent=1)
    sys.stdout.write("\n")

"""What of JSON Schema (2020-12) the published schemas use: whether a document fits, and the names
of its fields.
"""

import json
import math
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_ANNOTATIONS = {"$schema", "$defs", "title", "description"}
_TYPES = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}


def published(form):
    """The schema in docs/ of a form such as braid.plan/1."""
    found = [
        schema
        for path in sorted(DOCS.glob("*.schema.json"))
        if (schema := json.loads(path.read_text()))["title"].endswith(f", {form}")
    ]
    assert len(found) == 1, f"{form} has {len(found)} schemas in docs/"
    return found[0]


def complaints(schema, value, where="document", top=None):
    """Every place that does not fit."""
    top = top or schema
    for word, wanted in schema.items():
        if word not in _ANNOTATIONS:
            yield from _WORDS[word](schema, wanted, value, where, top)


def _ref(_, wanted, value, where, top):
    yield from complaints(_part(wanted, top), value, where, top)


def _part(reference, top):
    return top["$defs"][reference.removeprefix("#/$defs/")]


def _any_of(_, wanted, value, where, top):
    if all(list(complaints(each, value, where, top)) for each in wanted):
        yield f"{where}: {value!r:.60} is none of {wanted}"


def _enum(_, wanted, value, where, __):
    if value not in wanted:
        yield f"{where}: {value!r:.60} is none of {wanted}"


def _const(_, wanted, value, where, __):
    if value != wanted:
        yield f"{where}: {value!r:.60} is not {wanted!r}"


def _type(_, wanted, value, where, __):
    if wanted in ("integer", "number"):
        kinds = (int,) if wanted == "integer" else (int, float)
        fits = type(value) in kinds and math.isfinite(value)
    else:
        fits = type(value) is _TYPES[wanted]
    if not fits:
        yield f"{where}: {value!r:.60} is no {wanted}"


def _properties(_, wanted, value, where, top):
    for name in wanted.keys() & value.keys() if isinstance(value, dict) else ():
        yield from complaints(wanted[name], value[name], f"{where}.{name}", top)


def _required(_, wanted, value, where, __):
    for name in set(wanted) - value.keys() if isinstance(value, dict) else ():
        yield f"{where}: {name} is missing"


def _additional(schema, wanted, value, where, top):
    known = schema.get("properties", {})
    for name in value.keys() - known.keys() if isinstance(value, dict) else ():
        if wanted is False:
            yield f"{where}: {name} is no field"
        else:
            yield from complaints(wanted, value[name], f"{where}.{name}", top)


def _items(_, wanted, value, where, top):
    for i, each in enumerate(value if isinstance(value, list) else ()):
        yield from complaints(wanted, each, f"{where}[{i}]", top)


_WORDS = {
    "$ref": _ref, "anyOf": _any_of, "enum": _enum, "const": _const, "type": _type, "items": _items,
    "properties": _properties, "required": _required, "additionalProperties": _additional,
}  # fmt: skip


def field_names(schema, where="", top=None):
    """Every field by its way there: results[].value; keys that a document makes up are *."""
    top = top or schema
    if "$ref" in schema:
        yield from field_names(_part(schema["$ref"], top), where, top)
    for each in schema.get("anyOf", ()):
        yield from field_names(each, where, top)
    if "items" in schema:
        yield from field_names(schema["items"], f"{where}[]", top)
    for name, each in schema.get("properties", {}).items():
        way = f"{where}.{name}".removeprefix(".")
        yield way
        yield from field_names(each, way, top)
    if schema.get("additionalProperties"):
        yield from field_names(schema["additionalProperties"], f"{where}.*", top)


def keys(value, where=""):
    """The same of a document that has no schema."""
    found = {}
    if isinstance(value, list):
        found = dict.fromkeys(way for each in value for way in keys(each, f"{where}[]"))
    elif isinstance(value, dict):
        for name, each in value.items():
            way = f"{where}.{name}".removeprefix(".")
            found |= {way: None, **dict.fromkeys(keys(each, way))}
    return list(found)

"""Dataclasses out of JSON: what fits, what is refused and where, and the schema that says so."""

import json
import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Literal

import pytest

from braid.typed_json import build, format_schema, object_schema, parts_of, publish


@dataclass(frozen=True)
class Wheel:
    """Turns."""

    spokes: int
    inches: float = 28.0


@dataclass(frozen=True)
class Bell:
    """Rings."""

    tone: Literal["high", "low"]


@dataclass(frozen=True)
class Bike:
    """Has wheels.

    And more.
    """

    name: str
    wheels: list[Wheel]
    bell: Bell | None
    gears: dict[str, int] = field(default_factory=dict)
    is_red: bool = False
    spare: Wheel | None = None


WHOLE = {
    "name": "ada",
    "wheels": [{"spokes": 32}, {"spokes": 36, "inches": 26}],
    "bell": {"tone": "low"},
    "gears": {"front": 3, "back": 9},
    "is_red": True,
    "spare": None,
}


def test_a_whole_tree():
    bike = build(Bike, WHOLE, "bike")
    assert bike == Bike(
        "ada", [Wheel(32), Wheel(36, 26.0)], Bell("low"), {"front": 3, "back": 9}, True
    )
    assert type(bike.wheels[1].inches) is float
    assert build(Bike, json.loads(json.dumps(asdict(bike))), "bike") == bike


def test_defaults_are_for_what_is_absent_and_nullable_fields_are_still_required():
    bike = build(Bike, {"name": "bo", "wheels": [], "bell": None}, "bike")
    assert bike == Bike("bo", [], None, {}, False, None)
    with pytest.raises(ValueError, match="bike: asked for the fields bell, found"):
        build(Bike, {"name": "bo", "wheels": []}, "bike")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "bike.name: asked for str, found 3"),
        ({"name": None}, "bike.name: asked for str, found None"),
        ({"wheels": {}}, "bike.wheels: asked for a list, found {}"),
        ({"wheels": [{"spokes": 32}, 4]}, r"bike.wheels\[1\]: asked for an object, found 4"),
        ({"wheels": [{"spokes": 32.0}]}, r"bike.wheels\[0\].spokes: asked for int, found 32.0"),
        ({"wheels": [{"spokes": True}]}, r"bike.wheels\[0\].spokes: asked for int, found True"),
        ({"wheels": [{}]}, r"bike.wheels\[0\]: asked for the fields spokes"),
        ({"bell": {"tone": "off"}}, "bike.bell.tone: asked for one of high, low, found 'off'"),
        ({"bell": {"tone": None}}, "bike.bell.tone: asked for one of high, low, found None"),
        ({"bell": []}, "bike.bell: asked for an object"),
        ({"gears": [1]}, "bike.gears: asked for an object"),
        ({"gears": {"front": "3"}}, "bike.gears.front: asked for int, found '3'"),
        ({"is_red": 1}, "bike.is_red: asked for bool, found 1"),
        ({"spare": {"spokes": 1, "inches": "x"}}, "bike.spare.inches: asked for float"),
        ({"saddle": 1, "pump": 2}, r"bike: asked for no other fields, found \['pump', 'saddle'\]"),
    ],
)
def test_the_place_that_does_not_fit_is_named(change, said):
    with pytest.raises(ValueError, match=said):
        build(Bike, {**WHOLE, **change}, "bike")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_floats_are_finite(text):
    with pytest.raises(ValueError, match=r"wheel.inches: asked for a finite number, found -?\w+"):
        build(Wheel, json.loads(f'{{"spokes": 1, "inches": {text}}}'), "wheel")


def test_integers_stand_for_floats_as_far_as_floats_reach():
    last = (1 << 63) - 1
    for value in (0, -7, last, -last):
        found = build(Wheel, {"spokes": 1, "inches": value}, "w").inches
        assert math.isclose(found, value, rel_tol=1e-15, abs_tol=0)
    for value in (1 << 63, -(1 << 63), 10**400):
        with pytest.raises(ValueError, match=r"w\.inches: asked for float"):
            build(Wheel, {"spokes": 1, "inches": value}, "w")


def test_what_was_found_is_cut_short():
    with pytest.raises(ValueError, match="asked for int") as caught:
        build(Wheel, {"spokes": "s" * 100_000}, "w")
    assert len(str(caught.value)) < 200


def test_parts_come_once_and_through_every_annotation():
    assert parts_of(Bike) == [Wheel, Bell]
    assert parts_of(Wheel) == []


def test_the_schema_says_what_build_takes():
    schema = format_schema(Bike, "bikes")
    assert schema == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bikes",
        "type": "object",
        "description": "Has wheels.\n\nAnd more.",
        "properties": {
            "name": {"type": "string"},
            "wheels": {"type": "array", "items": {"$ref": "#/$defs/Wheel"}},
            "bell": {"anyOf": [{"$ref": "#/$defs/Bell"}, {"type": "null"}]},
            "gears": {"type": "object", "additionalProperties": {"type": "integer"}},
            "is_red": {"type": "boolean"},
            "spare": {"anyOf": [{"$ref": "#/$defs/Wheel"}, {"type": "null"}]},
        },
        "required": ["name", "wheels", "bell"],
        "additionalProperties": False,
        "$defs": {
            "Wheel": {
                "type": "object",
                "description": "Turns.",
                "properties": {"spokes": {"type": "integer"}, "inches": {"type": "number"}},
                "required": ["spokes"],
                "additionalProperties": False,
            },
            "Bell": {
                "type": "object",
                "description": "Rings.",
                "properties": {"tone": {"enum": ["high", "low"]}},
                "required": ["tone"],
                "additionalProperties": False,
            },
        },
    }


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Lamp:
    """Shines."""

    colour: Colour
    power: str | int | float | None
    marks: dict[str, str | bool | None]


def test_words_of_an_enum_and_one_of_several_kinds():
    lamp = build(Lamp, {"colour": "red", "power": 1.5, "marks": {"a": True, "b": None}}, "lamp")
    assert lamp == Lamp(Colour.RED, 1.5, {"a": True, "b": None})
    assert type(lamp.colour) is Colour
    for power in ("much", 3, None):
        found = build(Lamp, {"colour": "blue", "power": power, "marks": {}}, "lamp").power
        assert (found, type(found)) == (power, type(power))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "green"}, "lamp.colour: asked for one of red, blue, found 'green'"),
        ({"colour": []}, "lamp.colour: asked for one of red, blue"),
        ({"power": [1]}, r"lamp.power: asked for float, found \[1\]"),
        ({"power": True}, "lamp.power: asked for float, found True"),
        ({"power": math.inf}, "lamp.power: asked for a finite number"),
        ({"marks": {"a": 1}}, "lamp.marks.a: asked for bool, found 1"),
    ],
)
def test_what_is_none_of_them_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        build(Lamp, {"colour": "red", "power": 1, "marks": {}, **change}, "lamp")


def test_their_schema():
    found = object_schema(Lamp)["properties"]
    assert found["colour"] == {"enum": ["red", "blue"]}
    kinds = [each["type"] for each in found["power"]["anyOf"]]
    assert kinds == ["string", "integer", "number", "null"]


def test_a_schema_is_printed_whole(capsys):
    publish(format_schema(Bike, "bikes"))
    out = capsys.readouterr().out
    assert json.loads(out) == format_schema(Bike, "bikes")
    assert out.endswith("}\n")

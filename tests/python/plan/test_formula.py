"""Formulas and constants as data: complete, with units, source and date."""

import inspect
import re
from importlib import import_module

import pytest

from braid.plan import formula, glossary, protocols, shipped
from braid.plan.formulas import rates, training
from braid.plan.wrong import PlanError

SUBJECTS = ("rates", "collectives", "training", "overlap", "messages", "nodes")
UNITS = {"_gbps": "GB/s", "gbit": "Gbit/s", "_us": "us", "_s": "s", "_tflops": "TFLOP/s",
         "_bytes": "B", "nbytes": "B", "gt_per_s": "GT/s"}  # fmt: skip
DATE = re.compile(r"(read )?20\d\d-\d\d")
EVERY = formula.every()


def test_every_function_of_the_formulas_has_its_row():
    written = set()
    for subject in SUBJECTS:
        module = import_module(f"braid.plan.formulas.{subject}")
        for name, one in inspect.getmembers(module, inspect.isfunction):
            if one.__module__ == module.__name__ and not name.startswith("_"):
                written.add(f"{module.__name__}.{name}")
    assert {one.call for one in EVERY} == written | {"braid.plan.protocols.call_us"}
    assert len(EVERY) == len({one.call for one in EVERY})


def test_every_number_is_there():
    assert {number for one in EVERY for number in one.ids} == {f"F{i}" for i in range(1, 23)}


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_arguments_have_the_units_of_their_names(one):
    assert list(one.given) == list(inspect.signature(one.function()).parameters)
    for name, unit in one.given.items():
        ending = next(
            (end for end in sorted(UNITS, key=len, reverse=True) if name.endswith(end)), ""
        )
        assert not ending or unit == UNITS[ending], name
    ending = next((end for end in UNITS if end[0] == "_" and one.name.endswith(end)), "")
    assert not ending or one.unit == UNITS[ending]


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_each_says_who_and_when(one):
    assert all((one.what, one.says, one.source))
    assert DATE.fullmatch(one.date)
    for word in one.words:
        assert glossary.find(word)


def test_constants_and_protocols_say_it_too():
    for row in [*shipped.table("constants").values(), *shipped.table("protocols").values()]:
        assert DATE.fullmatch(shipped.table("sources")[row["source"]]["date"])
        assert row.get("what") or row.get("title")
    assert all("unit" in row for row in shipped.table("constants").values())


def test_constants_are_those_of_the_formulas():
    """The tables are what is computed with, not a copy of it."""
    assert rates.achievable_gbps(100) == 100 * shipped.constant("achievable") == 80
    assert training.memory_bytes(1) == shipped.constant("bytes_per_parameter") == 18
    assert training.ZERO_MULTIPLES == {0: 2, 1: 2, 2: 2, 3: 3}
    assert protocols.LL128.data == 120 / 128
    assert protocols.MULTICAST.step_us == 12.5


def test_every_source_has_a_date():
    for key, row in shipped.table("sources").items():
        assert DATE.fullmatch(row["date"]), key


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("F19", ["nic_busbw_gbps"]),
        ("f4", ["memory_bytes"]),
        ("bus_factor", ["bus_factor"]),
        ("nvls", ["nvls_wire_gbps", "nvls_saving"]),
        ("busbw", ["busbw_gbps"]),
        ("rank", []),
    ],
)
def test_found_by_number_name_and_word(word, names):
    assert [one.name for one in formula.find(word)] == names


def test_a_word_brings_its_formulas_and_a_number_no_word():
    both = glossary.meanings("NVLS")
    assert [term.word for term in both.terms] == ["NVLS"]
    assert [one.name for one in both.formulas] == ["nvls_wire_gbps", "nvls_saving"]
    assert glossary.meanings("F17").terms == []
    whole = glossary.meanings("")
    assert (whole.terms, whole.formulas) == (list(glossary.terms()), list(EVERY))
    with pytest.raises(PlanError, match="'F99' is not in the glossary"):
        glossary.meanings("F99")

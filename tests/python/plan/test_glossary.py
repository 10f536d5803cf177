"""Every word of docs/glossary.md and docs/words.md is explained, those of the field among them."""

import re
from pathlib import Path

import pytest

from braid.plan import glossary
from braid.plan.wrong import PlanError

DOCS = Path(__file__).parents[3] / "docs"


def words_of(page):
    found = re.findall(r"^\| ([^|]+) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return [word.strip() for word in found if word.strip() not in ("word", "---")]


WORDS = words_of("glossary.md") + words_of("words.md")
ABBREVIATIONS = [
    "ALU",
    "AR",
    "DMA",
    "EFA",
    "HCA",
    "IB",
    "MFU",
    "NIC",
    "OPA",
    "OPX",
    "OSFP",
    "RDMA",
    "RoCE",
    "RoE",
    "SHARP",
    "VPI",
    "xGMI",
]
SPEEDS = ["unidirectional", "duplex", "GBps", "GB/s", "GT/s", "Gbps", "bisection width"]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_page(word):
    found = glossary.find(word)
    assert word in [term.word for term in found]
    assert all(term.meaning for term in found)


@pytest.mark.parametrize("word", [*ABBREVIATIONS, *SPEEDS, "adaptive routing"])
def test_words_of_the_field(word):
    assert glossary.find(word)


def test_braids_own_words_are_few():
    assert len(words_of("glossary.md")) <= 60


def test_no_word_is_explained_twice_alike():
    assert len(WORDS) == len(set(WORDS))


def test_a_word_of_two_meanings_has_both():
    assert len(glossary.find("window")) == 2


def test_links_are_words():
    assert "](" not in "".join(term.meaning for term in glossary.terms())


def test_unknown_words_bring_the_nearest():
    with pytest.raises(PlanError, match="did you mean busbw"):
        glossary.find("busbq")
    with pytest.raises(PlanError, match="not in the glossary"):
        glossary.find("xyzzyx")


def test_a_word_that_is_only_used_leads_to_its_users():
    with pytest.raises(PlanError, match="'bandwidth' is not in the glossary; it is said of: link"):
        glossary.find("bandwidth")

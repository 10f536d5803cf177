"""The table of claims in docs/plan_vectors.md: each is there, and what it names exists."""

import re
from pathlib import Path

import pytest
from command_line import COMMANDS

from braid.plan import vectors

PAGE = (Path(__file__).parents[3] / "docs/plan_vectors.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Claims that are no number")[2]
NAMED = sorted(set(re.findall(r"`(braid [^`]+)`", TABLE)))


def test_every_claim_is_a_figure_or_has_its_place():
    told = set(re.findall(r"C\d\d", TABLE)) | {figure.id for figure in vectors.load()}
    assert {f"C{i:02}" for i in range(1, 45)} <= told


@pytest.mark.parametrize("line", NAMED)
def test_what_a_claim_names_exists(line):
    """Two claims were given to options of bench that it never had."""
    words = tuple(word for word in line.split()[1:] if not word.startswith("-"))
    options = {name for each in COMMANDS[words].params for name in each.opts}
    assert {word for word in line.split() if word.startswith("-")} <= options


def test_claims_are_not_given_to_a_command_as_a_whole():
    """`braid bench` is a dozen commands: what of it shows the claim must be said."""
    rows = [line.strip("|").split(" | ")[-1] for line in TABLE.splitlines() if line[:3] == "| C"]
    assert not [row for row in rows if row.strip(" |") in ("`braid bench`", "`braid plan`")]

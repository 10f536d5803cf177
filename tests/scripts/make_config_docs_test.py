"""The page of options: one row each, and in step with the registry that was compiled in."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import make_config_docs  # noqa: E402


def test_a_row_shows_the_default_and_keeps_the_table_whole() -> None:
    text = make_config_docs.row(("BRAID_X", "text", "", "One | two.", True))
    assert text == "| `BRAID_X` | text | (empty) | One \\| two. |\n"


def test_options_of_tuning_sessions_are_left_out() -> None:
    options = [("BRAID_A", "text", "", "One.", True), ("BRAID_B", "text", "", "Two.", False)]
    assert "BRAID_A" in make_config_docs.page(options)
    assert "BRAID_B" not in make_config_docs.page(options)


def test_the_page_is_current() -> None:
    core = pytest.importorskip("braid._braid")
    assert make_config_docs.PAGE.read_text() == make_config_docs.page(core.options())

"""The page of options: one row each, and in step with the registry that was compiled in."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import make_config_docs  # noqa: E402


def test_a_row_shows_the_default_and_keeps_the_table_whole() -> None:
    text = make_config_docs.row(("BRAID_X", "text", "", "One | two."))
    assert text == "| `BRAID_X` | text | (empty) | One \\| two. |\n"


def test_the_page_is_current() -> None:
    core = pytest.importorskip("braid._braid")
    assert make_config_docs.PAGE.read_text() == make_config_docs.page(core.options())

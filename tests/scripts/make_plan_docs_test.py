"""What `braid plan` shows in the docs is what it computes now."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/make_plan_docs.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_plan_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_current(script):
    stale = [path.name for path, text in script.pages().items() if path.read_text() != text]
    assert not stale, "run scripts/make_plan_docs.py"


def test_every_figure_has_its_line(script):
    page = next(text for path, text in script.pages().items() if path.name == "plan_vectors.md")
    for figure in script.vectors.load():
        assert f"| {figure.id} | {figure.what} | {figure.words()} |" in page

"""What `braid plan` shows in the docs is what it computes now."""

import importlib.util
from pathlib import Path

import pytest

from braid.plan import trial

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/make_plan_docs.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_plan_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_current(script):
    stale = [path.name for path, text in script.pages().items() if path.read_text() != text]
    assert not stale, "run scripts/make_plan_docs.py"


@pytest.mark.parametrize("first", [1, 2])
def test_the_page_tells_the_errors_that_come_out(script, first):
    answer = trial.left_out(script.trial_curves(), first, "nccl")
    median, worst = (f"{100 * answer.value(f'{name}_error'):.1f} %" for name in ("median", "worst"))
    page = " ".join((ROOT / "docs/plan.md").read_text().split())
    assert f"median error {median}, worst {worst}" in page


def test_every_figure_has_its_line(script):
    page = next(text for path, text in script.pages().items() if path.name == "plan_vectors.md")
    for figure in script.vectors.load():
        assert f"| {figure.id} | {figure.what} | {figure.words()} |" in page

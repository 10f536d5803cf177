"""The pictures in docs/results are what the records give today, and nothing else lies there."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from braid.cli import app

REPOSITORY = Path(__file__).parents[3]
_SPEC = importlib.util.spec_from_file_location(
    "make_report_docs", REPOSITORY / "scripts/make_report_docs.py"
)
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)
STALE = "stale; run: scripts/make_report_docs.py"


def test_they_are_linked():
    told = (REPOSITORY / "docs/report.md").read_text()
    assert "](results/report.png)" in told
    assert "](results/bench_host.svg)" in (REPOSITORY / "docs/bench.md").read_text()


@pytest.mark.parametrize("name", script.REPORTS)
def test_the_page_tells_how_they_are_made(name):
    told = " ".join((REPOSITORY / "docs/report.md").read_text().split())
    assert f"`braid {' '.join(script.words(name))}`" in told


def test_every_picture_is_shown_by_a_page():
    """What a script can make and no page shows leaves git."""
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    shown = {
        Path(name).name
        for page in pages
        for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text())
    }
    there = {path.name for path in (REPOSITORY / "docs/results").iterdir()}
    assert there <= shown
    assert {"report.png", "bench_host.svg", "topo_h100.svg"} <= there


@pytest.mark.parametrize("name", script.REPORTS)
def test_they_are_made(name, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    line = [
        str(tmp_path / "now") if each.endswith(".html") else each for each in script.words(name)
    ]
    made = CliRunner().invoke(app.app, line)
    assert made.exit_code == 0, made.output
    assert "In short" in (tmp_path / "now").read_text()


def test_the_picture_is_of_today_s_page():
    assert script.source_of(REPOSITORY / script.SHOT) == script.source(), STALE


@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("chromium-browser")),
    reason="skipped: needs chromium",
)
def test_the_picture_is_made_again(tmp_path):
    """Fonts may differ; its size, what it says of itself, and that ink is on it do not."""
    assert script.source_of(tmp_path / "shot.png") == ""
    script.take_shot(tmp_path / "shot.png")
    assert script.source_of(tmp_path / "shot.png") == script.source()
    for path in (tmp_path / "shot.png", REPOSITORY / script.SHOT):
        with Image.open(path) as shot:
            assert shot.size == (900, 1100)
            assert len(shot.getcolors(1 << 20)) > 100


def test_the_plot_is_of_its_record(tmp_path):
    """Words, numbers and date; outlines of letters differ with matplotlib's version."""
    script.draw_plot(tmp_path / "now.svg")
    now = script.said((tmp_path / "now.svg").read_text())
    assert len(now) > 50
    assert now == script.said((REPOSITORY / script.PLOT).read_text()), STALE

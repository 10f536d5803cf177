"""The report that README links to is what its machine and records give today."""

from pathlib import Path

from typer.testing import CliRunner

from braid.cli import app

REPOSITORY = Path(__file__).parents[3]
PAGE = "docs/results/h200_2.html"
RECORDS = ("records/flexlink_2.json", "records/flexlink_2_held.json")
WORDS = ["report", "--from", "records/topo_h200_2.json", "--model", "llama3-70b", "--out"]


def test_it_is_linked_and_the_page_tells_how_it_is_made():
    assert f"]({PAGE})" in (REPOSITORY / "README.md").read_text()
    told = " ".join((REPOSITORY / "docs/report.md").read_text().split())
    assert f"`braid {' '.join([*WORDS, PAGE, *RECORDS])}`" in told


def test_it_is_current(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    made = CliRunner().invoke(app.app, [*WORDS, str(tmp_path / "now.html"), *RECORDS])
    assert made.exit_code == 0, made.output
    now = (tmp_path / "now.html").read_text()
    command = " ".join(["braid", *WORDS, PAGE, *RECORDS])
    assert now == (REPOSITORY / PAGE).read_text(), f"stale; run: {command}"

"""README.md and docs/results.md say what the records say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def scripts():
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


def test_the_pages_are_current():
    import make_figures

    for name, text, wanted in make_figures.pages():
        assert text == wanted, f"{name}: run scripts/make_figures.py"


def git(root, *words):
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(root), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """Three commits: code, a page, code."""
    root = tmp_path / "checkout"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q")
    for name, text in (("src/a.cc", "1"), ("page.md", "1"), ("src/a.cc", "2")):
        (root / name).write_text(text)
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", "x")
    return root


def test_code_that_changed_is_seen(checkout):
    from record_notes import code_changed

    first, second, third = reversed(git(checkout, "log", "--format=%h").split())
    assert [code_changed(one, checkout) for one in (first, second, third)] == [True, True, False]
    (checkout / "src/a.cc").write_text("3")
    assert code_changed(third, checkout) is True  # before it is committed


def test_where_it_cannot_be_told_nothing_is_said_anew(checkout, tmp_path, monkeypatch):
    import record_notes

    first = git(checkout, "log", "--format=%H").split()[-1]
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(shallow))
    assert record_notes.code_changed(first, shallow) is None
    (tmp_path / "archive").mkdir()
    assert record_notes.code_changed(first, tmp_path / "archive") is None
    monkeypatch.setattr(record_notes, "code_changed", lambda _commit: None)
    assert record_notes.since_line({"2 GPUs": first}, "page") == ""
    there = f"{record_notes.SINCE} it changed.*"
    assert record_notes.since_line({"2 GPUs": first}, f"page\n{there}\nmore") == there


def test_only_what_changed_is_named(monkeypatch):
    import record_notes

    monkeypatch.setattr(record_notes, "code_changed", lambda commit: commit == "old")
    line = record_notes.since_line({"2 GPUs": "new", "4 GPUs": "old", "8 GPUs": "old"}, "")
    assert "on 4 GPUs and 8 GPUs" in line
    assert record_notes.since_line({"2 GPUs": "new"}, line) == ""

"""Of which tree a record is: git says it, and nobody can say otherwise."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from braid import saved
from braid.bench import facts
from braid.errors import InvalidArgument
from braid.probe.job import Job
from braid.probe.publish import Output, Run, measure


def git(*arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    done = subprocess.run(
        ["git", *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A tree that looks like braid's, with one commit."""
    monkeypatch.chdir(tmp_path)
    for name in ("include/braid/braid.h", "src/a.cc", "records/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as committed")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    return tmp_path


@pytest.mark.usefixtures("checkout")
def test_a_tree_as_it_was_committed():
    head = git("rev-parse", "HEAD")
    assert facts.commit() == (head, False)
    assert facts.commit(head[:7]) == (head, False)


@pytest.mark.parametrize("name", ["src/a.cc", "records/a.json", "src/b.cc", "python/new.py"])
def test_what_is_said_makes_no_changed_tree_clean(checkout, name):
    head = git("rev-parse", "HEAD")
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("changed")
    assert facts.commit() == (head, True)
    assert facts.commit(head[:7]) == (head, True)


def test_a_new_record_is_no_change(checkout):
    (checkout / "records/b.json").write_text("{}")
    assert facts.commit() == (git("rev-parse", "HEAD"), False)


@pytest.mark.usefixtures("checkout")
def test_another_commit_than_gits_is_refused():
    with pytest.raises(InvalidArgument, match="abc1234 was said, and git says that this tree is"):
        facts.commit("abc1234")


def test_a_folder_in_the_tree_is_of_the_tree(checkout, monkeypatch):
    (checkout / "src/a.cc").write_text("changed")
    monkeypatch.chdir(checkout / "records")
    assert facts.commit() == (git("rev-parse", "HEAD"), True)


def test_a_tree_without_git_counts_as_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert facts.commit("abc1234") == ("abc1234", True)
    assert facts.commit() == ("unknown", False)


def jobs(ran):
    return [Job("a", 1, lambda *_: ran.append(1) or []), Job("b", 1, lambda *_: [])]


def test_a_record_saved_over_one_that_git_has_is_no_change(checkout):
    path = checkout / "records/a.json"
    output = Output(samples=1, budget_s=1, json_path=path, quiet=True)
    assert measure(Run("lanes", "", jobs([]), output)) == 0
    record = saved.load(path)
    assert (record["commit"], record["dirty"]) == (git("rev-parse", "HEAD"), False)


@pytest.mark.usefixtures("checkout")
def test_another_commit_than_gits_is_refused_before_anything_is_measured():
    ran = []
    output = Output(samples=1, budget_s=1, quiet=True, commit="abc1234")
    with pytest.raises(InvalidArgument, match="abc1234 was said"):
        measure(Run("lanes", "", jobs(ran), output))
    assert not ran


@pytest.mark.parametrize(
    ("module", "typed"),
    [
        (None, "braid"),  # the installed program
        ("braid.cli.__main__", "braid"),
        ("braid.bench.kv.gpu", "python -m braid.bench.kv.gpu"),
        ("pytest.__main__", "braid"),
    ],
)
def test_a_command_is_the_one_that_was_typed(monkeypatch, module, typed):
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", ["/somewhere/file.py", "--json", "a.json"])
    assert facts.command() == f"{typed} --json a.json"

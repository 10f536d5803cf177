"""Names in records of others: a terminal obeys none of them, and they are no markup of tables."""

import json
import sys
from dataclasses import asdict, replace

import pytest

from braid.cli import main
from braid.printable import printable
from braid.record.parts import Host
from braid.record.probe import SCHEMA, ProbeRecord, Series, times_of

NAMES = ["[/b]", "[red]x", ":smile:", "\x1b[31mx", "\x9b31mx", "\u202eabc"]


@pytest.fixture
def braid(monkeypatch, capsys):
    """A command line, in this process: exit code, output, errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["braid", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def saved(path, name, device):
    case = Series("one way", name, 8, times_of([100.0]), 1.0)
    made = ProbeRecord(
        SCHEMA, "p2p", "braid bench p2p", "2026-11-21T00:00:00+00:00", "abc", False, "2 x H200", 0,
        Host("cpu", 2, 1.0, "6"), {}, {}, {}, [case],
    )  # fmt: skip
    path.write_text(json.dumps(asdict(replace(made, device=device))))
    return path


def is_text(output):
    return all(line.isprintable() for line in output.split("\n"))


@pytest.mark.parametrize("name", NAMES)
def test_compared_records_show_names_as_they_are(tmp_path, braid, name):
    old = saved(tmp_path / "old.json", name, "2 x H200")
    new = saved(tmp_path / "new.json", name, name)
    code, out, error = braid("bench", "compare", old, new)
    assert (code, error) == (0, "")
    assert is_text(out)
    assert out.count(printable(name)) == 2  # the case, and what differs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [["bench", "compare"], ["plan", "validate"], ["report"]])
def test_errors_name_what_they_found(tmp_path, braid, words, name):
    record = tmp_path / "r.json"
    record.write_text(json.dumps({"schema": name}))
    code, out, error = braid(*words, record, *([record] if words[-1] == "compare" else []))
    assert (code, out) == (2, "")
    assert is_text(error)
    assert error.count("\n") == 1


def test_a_word_of_the_command_line_is_shown_so_too(braid):
    assert braid("plan", "models", "\x1b[31m")[2].startswith("braid: '?[31m' is no model")
    assert "\x1b" not in braid("plan", "--\x1b[31m")[2]
    assert "\x1b" not in braid("run", "--grace", "\x1b[31m", "x")[2]

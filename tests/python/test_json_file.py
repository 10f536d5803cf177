"""Where records go: what is there already, what cannot be written, and that no half file stays."""

import errno
import json
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from braid import json_file
from braid.errors import InvalidArgument


@dataclass
class Made:
    """A record."""

    ranks: int


def test_a_pipe_gets_the_record_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    json_file.save(Made(4), pipe)
    reader.join(10.0 if stat.S_ISFIFO(pipe.lstat().st_mode) else 0.1)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert json.loads(found[0]) == {"ranks": 4}


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    file, link = tmp_path / "there" / "file.json", tmp_path / "link.json"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    json_file.save(Made(4), link)
    assert link.is_symlink()
    assert json.loads(file.read_text()) == {"ranks": 4}
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file.json", "link.json", "there"]


def test_a_full_device_stays_and_is_named(tmp_path):
    link = tmp_path / "full.json"
    link.symlink_to("/dev/full")
    json_file.check(link, "--json")
    with pytest.raises(InvalidArgument, match=r"full\.json: cannot be written: No space left"):
        json_file.save(Made(4), link)
    assert link.is_symlink()
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert list(tmp_path.iterdir()) == [link]


def test_a_write_that_fails_leaves_no_part_and_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "file.json"
    file.write_text("old")

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InvalidArgument, match=r"file\.json: cannot be written: Input/output"):
        json_file.save(Made(4), file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_pipe_gets_the_last_record_alone(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    file = tmp_path / "file.json"
    assert not json_file.is_replaced(pipe)
    assert not json_file.is_replaced(json_file.STDOUT)
    assert json_file.is_replaced(file)
    file.touch()
    assert json_file.is_replaced(file)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", r"--json: \. is a folder, a file is needed"),
        ("{tmp}", "--json: .* is a folder, a file is needed"),
        ("/proc/x.json", "--json: /proc/x.json: cannot be written: "),
        ("{tmp}/file/x.json", "--json: .*/file/x.json: there is no folder .*/file"),
        ("{tmp}/new/x.json", "--json: .*/new/x.json: there is no folder .*/new"),
        ("{tmp}/" + "x" * 254, "--json: .*x: cannot be written: File name too long"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, words, why):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=why):
        json_file.check(Path(words.format(tmp=tmp_path)), "--json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidArgument, match=r"x\.json: cannot be written: Permission denied"):
        json_file.check(tmp_path / "x.json", "--json")


def test_what_can_be_written_passes_and_nothing_is_made(tmp_path):
    for path in (None, json_file.STDOUT, tmp_path / "x.json"):
        json_file.check(path, "--json")
    assert not list(tmp_path.iterdir())

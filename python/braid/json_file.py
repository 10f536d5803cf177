"""Where records go: a file, or standard output."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from braid.errors import InvalidArgument

STDOUT = Path("-")
"""`--json -`: the record is all that standard output has; tables go to standard error."""


def save(record: Any, path: Path) -> None:  # noqa: ANN401 - any dataclass
    """Writes JSON; a reader never sees half of a file. Devices and pipes are written into."""
    text = json.dumps(asdict(record), indent=1) + "\n"
    if path == STDOUT:
        print(text, end="")  # noqa: T201 - nothing where standard output is closed
        return
    with writing(path):
        if not is_replaced(path):
            path.write_text(text, encoding="utf-8")
            return
        file = _file_of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = _part_of(file)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def is_replaced(path: Path) -> bool:
    """Whether a record takes the place of the one before; a device or a pipe keeps all of them, so
    that it gets the last one alone.
    """
    return path != STDOUT and (path.is_file() or not path.exists())


@contextmanager
def writing(path: Path, option: str = "") -> Iterator[None]:
    """What the system refuses becomes one line that names the path, and where it was asked for."""
    try:
        yield
    except OSError as error:
        asked = f"{option}: " if option else ""
        raise InvalidArgument(f"{asked}{path}: cannot be written: {error.strerror}") from error


def write_text(path: Path, text: str, option: str) -> None:
    """A page or a picture, into a folder that is there."""
    with writing(path, option):
        check_folder(path, option)
        path.write_text(text, encoding="utf-8")


def check_folder(path: Path, option: str) -> None:
    """Refuses a path whose folder is missing: a name that was mistyped would else become one."""
    if not path.parent.is_dir():
        raise InvalidArgument(f"{option}: {path}: there is no folder {path.parent}")


def make_folder(folder: Path, option: str) -> None:
    """For an option that names a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{option}: {folder}: cannot be made: {error.strerror}") from error


def check(path: Path | None, option: str) -> None:
    """Refuses a path that nothing can be written to, before anything is measured. Leaves no
    trace.
    """
    if path is None or path == STDOUT:
        return
    with writing(path, option):
        check_folder(path, option)
        if path.is_dir():
            raise InvalidArgument(f"{option}: {path} is a folder, a file is needed")
        if not is_replaced(path):
            if not os.access(path, os.W_OK):
                raise InvalidArgument(f"{option}: {path}: cannot be written: no permission")
            return
        file = _file_of(path)
        _part_of(file).exists()  # a name too long is found here
        with tempfile.TemporaryFile(dir=file.parent):
            pass


def _file_of(path: Path) -> Path:
    """Behind links: these stay, and what they point to is written."""
    return Path(os.path.realpath(path))


def _part_of(file: Path) -> Path:
    return file.with_suffix(file.suffix + ".part")

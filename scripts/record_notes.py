"""What has to be said beside a record's numbers: a tree with changes, code that changed since."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
GPU_CODE = ("src", "bindings")
SINCE = "*Since then"
"""What the line about code that changed begins with."""


def load(name: str) -> dict[str, Any]:
    """A record by its file name."""
    record: dict[str, Any] = json.loads((RECORDS / name).read_text(encoding="utf-8"))
    return record


def link(name: str, folder: str = "records") -> str:
    """To a record, in Markdown; marked where its tree had changes that no commit holds."""
    mark = " (+changes)" if load(name).get("dirty") else ""
    return f"[{name}]({folder}/{name}){mark}"


def commit_words(name: str) -> str:
    """Of which commit a record is, and what makes that doubtful."""
    record = load(name)
    commit, said = str(record["commit"]), re.search(r"--commit (\S+)", str(record["command"]))
    words = f"commit {commit[:7]}"
    if record.get("dirty"):
        words += " with changes that no commit holds"
    if said and not commit.startswith(said[1]) and not said[1].startswith(commit):
        words += f" by the record, {said[1]} by its command line: which of them ran is not known"
    return words


def links(names: str, folder: str = "records") -> str:
    """To those of a comma list."""
    return ", ".join(link(name, folder) for name in names.split(", "))


def with_changes() -> list[str]:
    """The records whose tree had changes, by name."""
    return [path.name for path in sorted(RECORDS.glob("*.json")) if load(path.name).get("dirty")]


def _git(root: Path, *arguments: str) -> tuple[int, str]:
    git = shutil.which("git")
    if git is None:
        return 128, ""
    command = [git, "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def code_changed(commit: str, root: Path = ROOT) -> bool | None:
    """Whether what runs on GPUs is another than in that commit, also by changes that are to be
    committed. None: it cannot be told, as in an archive without git or a clone that does not go
    back so far.
    """
    code, top = _git(root, "rev-parse", "--show-toplevel")
    if code or Path(top).resolve() != root.resolve():
        return None
    code, _ = _git(root, "diff", "--quiet", commit, "--", *GPU_CODE)
    return {0: False, 1: True}.get(code)


def since_line(commits: dict[str, str], text: str) -> str:
    """That the code changed since these were measured (words and commit of each), or "". Where it
    cannot be told, what `text` says of it already."""
    changed = {what: code_changed(commit) for what, commit in commits.items()}
    if None in changed.values():
        return next((line for line in text.splitlines() if line.startswith(SINCE)), "")
    what = [one for one, is_changed in changed.items() if is_changed]
    if not what:
        return ""
    words = ", ".join(what[:-1]) + (" and " if what[1:] else "") + what[-1]
    folders = " or ".join(f"`{folder}/`" for folder in GPU_CODE)
    return (
        f"{SINCE} code in {folders} has changed: the present version was not measured"
        f" so on {words}.*"
    )

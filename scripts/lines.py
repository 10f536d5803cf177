"""How many lines there are by hand, and how many of them stand twice.

    .venv/bin/python scripts/lines.py [--out FILE]

Writes records/lines.json (docs/decisions/0031-less.md). A line stands twice when it is in a run of
six lines that was there before, in any file of its folder. Blank lines, comments, imports and lone
punctuation are passed over. "of_a_shape": runs that are alike but for names, numbers and texts.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

FOLDERS = ("src", "bindings", "python", "tests", "scripts")
KINDS = (".cc", ".h", ".cu", ".cuh", ".c", ".py")
RUN = 6
_PASSED_OVER = re.compile(r"\s*(//.*|#(?!define).*|import .*|from .* import .*|using .*|[\W_]*)$")
_VARIABLE = re.compile(r"\"[^\"]*\"|'[^']*'|\b[A-Za-z_]\w*\b|\b\d[\w.]*")


def significant(text: str) -> list[str]:
    """Lines that say something, without the space that they have too much."""
    lines = text.splitlines()
    return [" ".join(line.split()) for line in lines if not _PASSED_OVER.match(line)]


def shape(line: str) -> str:
    """The line with all that has a name left out."""
    return _VARIABLE.sub("x", line)


def again(files: Iterable[list[str]]) -> int:
    """Lines in runs of RUN that were there before."""
    seen: set[int] = set()
    count = 0
    for lines in files:
        runs = [hash(tuple(lines[i : i + RUN])) for i in range(len(lines) - RUN + 1)]
        found: set[int] = set()
        for i, run in enumerate(runs):
            if run in seen:
                found.update(range(i, i + RUN))
        for i, run in enumerate(runs):
            if i not in found:  # a run does not repeat what itself began
                seen.add(run)
        count += len(found)
    return count


def files_of(folder: str) -> Iterator[Path]:
    """Of git."""
    listed = subprocess.run(
        ["git", "ls-files", folder], capture_output=True, text=True, check=True
    ).stdout
    yield from (Path(name) for name in listed.splitlines() if name.endswith(KINDS))


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("records/lines.json"))
    out = parser.parse_args().out
    rows = []
    for folder in FOLDERS:
        texts = [path.read_text(encoding="utf-8") for path in files_of(folder)]
        said = [significant(text) for text in texts]
        rows.append(
            {
                "folder": folder,
                "files": len(texts),
                "lines": sum(len(text.splitlines()) for text in texts),
                "significant": sum(len(lines) for lines in said),
                "again": again(said),
                "again_of_a_shape": again([[shape(line) for line in lines] for lines in said]),
            }
        )
    record = {
        "schema": "braid.lines/1",
        "command": "scripts/lines.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "run_lines": RUN,
        "rows": rows,
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
